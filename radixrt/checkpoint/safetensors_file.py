"""The headers of safetensors files: which tensors a checkpoint holds, in which types; bounds-checked, no weight read.

Format: https://github.com/huggingface/safetensors (8 bytes of length, a JSON header, the data).
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import msgspec

from radixrt.errors import ModelError

_MAX_HEADER_BYTES = 100_000_000
"""The limit of the safetensors library itself."""
_BITS = {
    "F64": 64, "I64": 64, "U64": 64, "F32": 32, "I32": 32, "U32": 32, "F16": 16, "BF16": 16, "I16": 16, "U16": 16,
    "F8_E4M3": 8, "F8_E5M2": 8, "I8": 8, "U8": 8, "BOOL": 8,
}  # fmt: skip


class SafetensorsEntry(msgspec.Struct, frozen=True):
    """One tensor: its type (`F32`, `BF16` ...) and shape, row-major; offsets in bytes from the start of the data."""

    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]

    @property
    def nbytes(self) -> int:
        return self.data_offsets[1] - self.data_offsets[0]


def read_safetensors_header(path: Path) -> dict[str, SafetensorsEntry]:
    """Name -> entry. ModelError when the file is missing, truncated or contradicts itself."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if size < 8 or length > min(size - 8, _MAX_HEADER_BYTES):
                raise _broken(path, "its header reaches past its end")
            raw = file.read(length)
    except OSError as error:
        raise ModelError(f"{path.name} cannot be read: {error.strerror}") from error
    try:
        fields: dict[str, Any] = msgspec.json.decode(raw, type=dict[str, Any])
        fields.pop("__metadata__", None)
        entries = msgspec.convert(fields, dict[str, SafetensorsEntry])
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise _broken(path, "its header is not what the format asks for") from error
    room = size - 8 - length
    for name, entry in entries.items():
        first, last = entry.data_offsets
        if not 0 <= first <= last <= room:
            raise _broken(path, f"tensor {name!r} reaches past its end (the file is truncated)")
        if (bits := _BITS.get(entry.dtype)) and math.prod(entry.shape) * bits != entry.nbytes * 8:
            raise _broken(path, f"tensor {name!r} has a size that does not fit its shape")
    return entries


def safetensors_files(folder: Path) -> tuple[Path, ...]:
    """The weight files of a directory: those of model.safetensors.index.json where there is one, else all of them.

    ModelError when the index is broken or names a file that is not there.
    """
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        try:
            names = sorted(set(msgspec.json.decode(index.read_bytes(), type=_Index).weight_map.values()))
        except (msgspec.MsgspecError, OSError) as error:
            raise ModelError(f"{index.name} is broken: fetch the model again") from error
        # Only plain file names: an index must not lead out of its directory.
        missing = [name for name in names if Path(name).name != name or not (folder / name).is_file()]
        if missing:
            raise ModelError(f"the model lacks the files {', '.join(missing)}: fetch it again")
        return tuple(folder / name for name in names)
    return tuple(sorted(p for p in folder.glob("*.safetensors") if not p.name.startswith("consolidated")))


class _Index(msgspec.Struct):
    weight_map: dict[str, str]


def _broken(path: Path, why: str) -> ModelError:
    return ModelError(f"{path.name} is not a usable safetensors file: {why}. Fetch it again.")
