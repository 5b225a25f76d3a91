"""Where the packed weights of a model are kept on this machine: `<cache>/weights`."""

from __future__ import annotations

import logging
import threading
from contextlib import suppress
from pathlib import Path

from radixrt.checkpoint import Checkpoint
from radixrt.checkpoint.home import home
from radixrt.models.packed_file import PackedFile
from radixrt.tiers.fingerprint import weights_hash

log = logging.getLogger(__name__)
_one_at_a_time = threading.Lock()


def weight_files(checkpoint: Checkpoint) -> list[Path]:
    """The files that hold the model's weights."""
    return [checkpoint.gguf_path] if checkpoint.gguf_path is not None else list(checkpoint.safetensors_files)


def hash_ahead(checkpoint: Checkpoint) -> None:
    """Begin to hash the weights in a thread, while the kernels are compiled; `packed_file` then waits for that."""

    def ahead() -> None:
        with suppress(OSError):  # `packed_file` says what is wrong
            _hash(checkpoint, home() / "weights")

    threading.Thread(target=ahead, name="hash", daemon=True).start()


def packed_file(checkpoint: Checkpoint, form: str) -> PackedFile | None:
    """The file for the model's weights packed as `form`; None, with a warning, where no directory can be had."""
    directory = home() / "weights"
    try:
        return PackedFile(directory, _hash(checkpoint, directory), form)
    except OSError as error:
        log.warning("packed weights cannot be kept in %s: %s", directory, error.strerror)
        return None


def _hash(checkpoint: Checkpoint, directory: Path) -> str:
    """Of the model's weights, remembered in `directory`, which is made: who comes second only reads it there."""
    with _one_at_a_time:
        directory.mkdir(parents=True, exist_ok=True)
        return weights_hash(weight_files(checkpoint), directory)
