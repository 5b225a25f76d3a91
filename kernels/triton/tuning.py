"""Which of a few configurations is the fastest on this device: measured once, kept on disk.

A key is the kernel, the class of its shapes and the device's name. Under the interpreter, on a device that is not a GPU
and while a CUDA graph is captured nothing is measured: the first configuration, the safe one, is taken.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import torch
import triton

from radixrt.checkpoint.home import home
from radixrt.kernels.triton.common import INTERPRETED

_log = logging.getLogger(__name__)

Measure = Callable[[Callable[[], None]], float]
"""Milliseconds that a call takes on the device."""


@dataclass(frozen=True)
class Config:
    """Extents of a tile by name, and how many warps and pipeline stages a program has."""

    sizes: dict[str, int] = field(default_factory=dict)
    num_warps: int = 4
    num_stages: int = 2

    def size(self, name: str) -> int:
        return self.sizes[name]

    def __str__(self) -> str:
        sizes = "".join(f"{name}={size} " for name, size in sorted(self.sizes.items()))
        return f"{sizes}warps={self.num_warps} stages={self.num_stages}"


class Choices:
    """The choices of one device, and the file they are kept in."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._best: dict[str, str] = _read(path)

    def choose(self, key: str, configs: Sequence[Config], launch: Callable[[Config], None], measure: Measure) -> Config:
        """The best of `configs` for `key`: known, or measured now. A configuration the device refuses is passed over.

        Where it refuses all of them, the last one's error is raised.
        """
        known = {str(config): config for config in configs}
        if (best := known.get(self._best.get(key, ""))) is not None:
            return best
        times: dict[str, float] = {}
        refusal: Exception | None = None
        for name, config in known.items():
            try:
                times[name] = measure(lambda config=config: launch(config))  # type: ignore[misc]
            except (triton.runtime.errors.OutOfResources, triton.CompilationError, RuntimeError) as error:
                _log.debug("%s: %s does not run here: %s", key, name, error)
                refusal = error
        if not times:
            raise refusal if refusal is not None else ValueError("there is no configuration to choose from")
        winner = min(times, key=lambda name: times[name])
        self._best[key] = winner
        self._save()
        return known[winner]

    def _save(self) -> None:
        """Whole or not at all; a directory that cannot be written costs the next start a measurement."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            merged = _read(self.path) | self._best
            handle, name = tempfile.mkstemp(dir=self.path.parent)
            try:
                with os.fdopen(handle, "w") as file:
                    json.dump(merged, file, indent=1, sort_keys=True)
                os.replace(name, self.path)
            except BaseException:
                with contextlib.suppress(OSError):
                    os.unlink(name)
                raise
        except OSError as error:
            _log.info("tuned configurations are not kept: %s", error)


def run(kernel: str, shapes: str, configs: Sequence[Config], launch: Callable[[Config], None]) -> None:
    """Launch with the best configuration. While it is sought, `launch` runs many times: it must be idempotent."""
    if INTERPRETED or not torch.cuda.is_available() or torch.cuda.is_current_stream_capturing():
        launch(configs[0])
        return
    device = torch.cuda.get_device_name()
    best = _chosen.get(found := (device, kernel, shapes))
    if best is None:
        best = _choices(device).choose(f"{kernel} {shapes}", configs, launch, triton.testing.do_bench)
        _chosen[found] = best
    launch(best)


_chosen: dict[tuple[str, str, str], Config] = {}


@cache
def _choices(device: str) -> Choices:
    name = re.sub(r"[^A-Za-z0-9]+", "-", device)
    return Choices(home() / "kernels" / f"triton-{name}-{triton.__version__}.json")


def _read(path: Path) -> dict[str, str]:
    """What the file holds; nothing where it is missing or broken."""
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return {key: value for key, value in found.items() if isinstance(value, str)} if isinstance(found, dict) else {}
