"""Weights from safetensors, by the names that transformers gives them."""

from __future__ import annotations

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

    def read(self, name: str, out: torch.Tensor) -> None:
        """Read the tensor into `out` (of its shape), converted to out's dtype. ModelError where it cannot be read."""
        ...

    def is_quantized(self, name: str) -> bool:
        """Whether the files hold the tensor as integers with scales."""
        ...

    def groups(self, name: str) -> Groups | None:
        """The tensor exactly as the files hold it, where that is in groups of 32 with a scale and a shift."""
        ...

    def close(self) -> None: ...


class SafetensorsWeights:
    """One checkpoint in one or more .safetensors files."""

    def __init__(self, files: tuple[Path, ...]) -> None:
        """ModelError for a broken file, or a name that two files hold."""
        from safetensors import SafetensorError, safe_open

        self.shapes: dict[str, tuple[int, ...]] = {}
        self._stack = ExitStack()
        self._files: dict[str, Any] = {}
        for path in files:
            try:
                file = self._stack.enter_context(safe_open(path, framework="pt"))
                names = list(file.keys())
                shapes = {name: tuple(file.get_slice(name).get_shape()) for name in names}
            except (SafetensorError, OSError) as error:
                self.close()
                raise ModelError(f"{path.name} is not a usable safetensors file: {error}. Fetch it again.") from error
            twice = sorted(shapes.keys() & self.shapes.keys())
            if twice:
                self.close()
                raise ModelError(f"{path.name} holds a tensor that another file holds too: {twice[0]}")
            self.shapes |= shapes
            self._files |= dict.fromkeys(names, file)

    def read(self, name: str, out: torch.Tensor) -> None:
        from safetensors import SafetensorError

        try:
            out.copy_(self._files[name].get_tensor(name))
        except SafetensorError as error:
            raise ModelError(f"tensor {name} cannot be read: {error}") from error

    def is_quantized(self, name: str) -> bool:
        return False

    def groups(self, name: str) -> Groups | None:
        return None

    def close(self) -> None:
        self._stack.close()
