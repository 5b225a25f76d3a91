"""Where the packed weights of a model are kept on this machine: `<cache>/weights`."""

from __future__ import annotations

import logging
import threading
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
    threading.Thread(target=_directory_and_hash, args=(checkpoint,), name="hash", daemon=True).start()


def packed_file(checkpoint: Checkpoint, form: str) -> PackedFile | None:
    """The file for the model's weights packed as `form`; None, with a warning, where no directory can be had."""
    found = _directory_and_hash(checkpoint)
    if isinstance(found, OSError):
        log.warning("packed weights cannot be kept in %s: %s", _directory(), found.strerror)
        return None
    return PackedFile(*found, form)


def _directory() -> Path:
    return home() / "weights"


def _directory_and_hash(checkpoint: Checkpoint) -> tuple[Path, str] | OSError:
    """Where packed weights are kept, and the hash of the model's, which is remembered there; or why there is none."""
    directory = _directory()
    with _one_at_a_time:
        try:
            directory.mkdir(parents=True, exist_ok=True)
            return directory, weights_hash(weight_files(checkpoint), directory)
        except OSError as error:
            return error
