"""Where models and derived files lie on this machine."""

from __future__ import annotations

import os
from pathlib import Path


def home() -> Path:
    """The cache directory: RADIXRT_HOME, else radixrt under XDG_CACHE_HOME, else ~/.cache/radixrt. Not created here."""
    if chosen := os.environ.get("RADIXRT_HOME"):
        return Path(chosen).expanduser()
    if cache := os.environ.get("XDG_CACHE_HOME"):
        return Path(cache).expanduser() / "radixrt"
    return Path.home() / ".cache" / "radixrt"


def models_dir() -> Path:
    """One folder a model lies below it."""
    return home() / "models"
