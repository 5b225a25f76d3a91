"""Weights from safetensors, by the names that transformers gives them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol

import torch

from radixrt.errors import ModelError
from radixrt.kernels.cpu.native.packed import Groups


class WeightSource(Protocol):
    """Named tensors of a checkpoint; nothing is read before `read`."""

    shapes: dict[str, tuple[int, ...]]
    """Every tensor's shape, by the name that transformers gives it (or its own, where it has none there)."""

    def read(self, name: str, out: torch.Tensor, first: int = 0) -> None:
        """Read the tensor into `out`, converted to out's dtype: the len(out) rows from row `first`, which are all where
        `out` has the tensor's shape. ModelError where it cannot be read.
        """
        ...

    def is_quantized(self, name: str) -> bool:
        """Whether the files hold the tensor as integers with scales."""
        ...

    def group_bits(self, name: str) -> int | None:
        """4 or 8 where the files hold the tensor in groups of 32 integers with a scale and a shift, else None."""
        ...

    def groups(self, name: str, first: int, end: int) -> Groups:
        """Rows first..end of a tensor that has `group_bits`, exactly as the files hold them."""
        ...

    def close(self) -> None: ...


class SafetensorsWeights:
    """One checkpoint in one or more .safetensors files."""

    def __init__(self, files: tuple[Path, ...], rename: Callable[[str], str] = str) -> None:
        """`rename`: a file's names -> those that are asked for. ModelError for a broken file, or a name that two files
        hold."""
        from safetensors import SafetensorError, safe_open

        self.shapes: dict[str, tuple[int, ...]] = {}
        self._stack = ExitStack()
        self._files: dict[str, tuple[Any, str]] = {}
        for path in files:
            try:
                file = self._stack.enter_context(safe_open(path, framework="pt"))
                names = {rename(name): name for name in file.keys()}  # noqa: SIM118 - it is no dict
                shapes = {name: tuple(file.get_slice(own).get_shape()) for name, own in names.items()}
            except (SafetensorError, OSError) as error:
                self.close()
                raise ModelError(f"{path.name} is not a usable safetensors file: {error}. Fetch it again.") from error
            twice = sorted(shapes.keys() & self.shapes.keys())
            if twice:
                self.close()
                raise ModelError(f"{path.name} holds a tensor that another file holds too: {twice[0]}")
            self.shapes |= shapes
            self._files |= {name: (file, own) for name, own in names.items()}

    def read(self, name: str, out: torch.Tensor, first: int = 0) -> None:
        from safetensors import SafetensorError

        try:
            file, own = self._files[name]
            whole = out.ndim == 0 or len(out) == self.shapes[name][0]
            out.copy_(file.get_tensor(own) if whole else file.get_slice(own)[first : first + len(out)])
        except SafetensorError as error:
            raise ModelError(f"tensor {name} cannot be read: {error}") from error

    def is_quantized(self, name: str) -> bool:
        return False

    def group_bits(self, name: str) -> int | None:
        return None

    def groups(self, name: str, first: int, end: int) -> Groups:
        raise ModelError(f"tensor {name} holds no integers")

    def close(self) -> None:
        self._stack.close()
