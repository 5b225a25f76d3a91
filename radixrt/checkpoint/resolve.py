"""A model's name -> its files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from radixrt.checkpoint.home import models_dir
from radixrt.errors import ModelError

Progress = Callable[[str, int, int | None], None]


def resolve(model: str, *, progress: Progress | None = None, download: bool = True) -> Path:
    path = Path(model).expanduser()
    if path.exists():
        return path
    raise ModelError(f"no model is called {model!r}")
