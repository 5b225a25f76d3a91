"""Where the packed weights of a model are kept on this machine: `<cache>/weights`."""

from __future__ import annotations

import logging
from pathlib import Path

from radixrt.checkpoint import Checkpoint
from radixrt.checkpoint.home import home
from radixrt.models.packed_file import PackedFile
from radixrt.tiers.fingerprint import weights_hash

log = logging.getLogger(__name__)


def weight_files(checkpoint: Checkpoint) -> list[Path]:
    """The files that hold the model's weights."""
    return [checkpoint.gguf_path] if checkpoint.gguf_path is not None else list(checkpoint.safetensors_files)


def packed_file(checkpoint: Checkpoint, form: str) -> PackedFile | None:
    """The file for the model's weights packed as `form`; None, with a warning, where no directory can be had."""
    directory = home() / "weights"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        return PackedFile(directory, weights_hash(weight_files(checkpoint), directory), form)
    except OSError as error:
        log.warning("packed weights cannot be kept in %s: %s", directory, error.strerror)
        return None
