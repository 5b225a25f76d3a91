"""A GGUF file's header: metadata and where each tensor lies. Bounds-checked, and fast on long token arrays.

Layout: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md (versions 2 and 3, little-endian). The gguf library's
own reader takes seconds on a vocabulary of 49k tokens, because it makes several numpy arrays for every string; three
processes open a checkpoint at every start, so the header is walked here with `struct` instead (tens of milliseconds).
"""

from __future__ import annotations

import mmap
import struct
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec

from radixrt.errors import ModelError

_SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
_STRING, _ARRAY = 8, 9
_ARRAY_CODES = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_MAX_DIMS = 4
_DEFAULT_ALIGNMENT = 32


class GgufTensor(msgspec.Struct, frozen=True, kw_only=True):
    """Where one tensor lies in the file."""

    name: str
    shape: tuple[int, ...]
    """Row-major, as torch and numpy spell it ([out, in] for a matrix): GGUF's own order reversed."""
    ggml_type: int
    """The number of the ggml type; `gguf.GGMLQuantizationType(ggml_type)` names it."""
    type_name: str
    offset: int
    """From the start of the file, in bytes."""
    nbytes: int


class GgufFile(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """The header of a GGUF file. Metadata values are int, float, bool, str, or a list of one of these."""

    path: Path
    version: int
    metadata: dict[str, Any]
    tensors: tuple[GgufTensor, ...]

    @cached_property
    def by_name(self) -> dict[str, GgufTensor]:
        return {tensor.name: tensor for tensor in self.tensors}


class _Broken(Exception):
    """The header contradicts itself or the file's size."""


def read_gguf(path: Path) -> GgufFile:
    """The header of the GGUF file at `path`; no weight is read.

    Raises ModelError when the file is missing, is no GGUF file, is truncated (a tensor reaches past its end included),
    or holds counts and lengths that its size cannot bear. Nothing is allocated before such a count was checked.
    """
    try:
        with path.open("rb") as file:
            if path.stat().st_size < 24:
                raise _Broken("it is shorter than a header")
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                return _Reader(data).read(path)
    except _Broken as error:
        raise ModelError(f"{path.name} is not a usable GGUF file: {error}. Fetch it again.") from error
    except OSError as error:
        raise ModelError(f"{path.name} cannot be read: {error.strerror}.") from error


class _Reader:
    """A cursor over the mapped file; each read checks what is left first."""

    def __init__(self, data: mmap.mmap) -> None:
        self.data = data
        self.size = len(data)
        self.pos = 0

    def read(self, path: Path) -> GgufFile:
        if self.take(4) != b"GGUF":
            raise _Broken("it does not start with GGUF")
        version = self.number("<I")
        if version not in (2, 3):
            raise _Broken(
                f"version {version} is not known (2 and 3 are)"
                if version < 1 << 16
                else "it is big-endian, which radixrt does not read"
            )
        tensor_count, field_count = self.number("<Q"), self.number("<Q")
        # A tensor's entry takes at least 24 bytes, a field's at least 13.
        if tensor_count * 24 + field_count * 13 > self.size:
            raise _Broken("it is too short for its counts of tensors and fields")
        metadata: dict[str, Any] = {}
        for _ in range(field_count):
            key = self.string()
            metadata[key] = self.value(self.number("<I"))
        raw = [self.tensor_entry() for _ in range(tensor_count)]
        alignment = metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
        if not isinstance(alignment, int) or alignment <= 0 or alignment % 8:
            raise _Broken(f"its alignment {alignment!r} is not a positive multiple of 8")
        start = -(-self.pos // alignment) * alignment
        tensors = tuple(self.place(name, dims, kind, start + offset) for name, dims, kind, offset in raw)
        return GgufFile(path=path, version=version, metadata=metadata, tensors=tensors)

    def take(self, count: int) -> bytes:
        end = self.pos + count
        if end > self.size:
            raise _Broken("it ends in the middle of its header")
        piece = self.data[self.pos : end]
        self.pos = end
        return piece

    def number(self, code: str) -> Any:
        return struct.unpack(code, self.take(struct.calcsize(code)))[0]

    def string(self) -> str:
        return self.take(self.number("<Q")).decode("utf-8", "replace")

    def value(self, kind: int) -> Any:
        if kind in _SCALARS:
            return self.number(_SCALARS[kind])
        if kind == _STRING:
            return self.string()
        if kind != _ARRAY:
            raise _Broken(f"it holds a field of unknown type {kind}")
        inner, count = self.number("<I"), self.number("<Q")
        if inner == _STRING:
            return self.strings(count)
        if inner not in _ARRAY_CODES:
            raise _Broken(f"it holds an array of type {inner}, which radixrt does not read")
        code = _ARRAY_CODES[inner]
        width = struct.calcsize("<" + code)
        if count * width > self.size - self.pos:
            raise _Broken("an array reaches past its end")
        return list(struct.unpack(f"<{count}{code}", self.take(count * width)))

    def strings(self, count: int) -> list[str]:
        """An array of strings. The loop is written flat: it runs once for each token and merge of a vocabulary."""
        if count * 8 > self.size - self.pos:
            raise _Broken("an array of strings reaches past its end")
        data, size, pos = self.data, self.size, self.pos
        length_at = struct.Struct("<Q").unpack_from
        out: list[str] = []
        append = out.append
        for _ in range(count):
            start = pos + 8
            if start > size:
                raise _Broken("an array of strings reaches past its end")
            pos = start + length_at(data, pos)[0]
            if pos > size:
                raise _Broken("a string reaches past its end")
            append(data[start:pos].decode("utf-8", "replace"))
        self.pos = pos
        return out

    def tensor_entry(self) -> tuple[str, tuple[int, ...], int, int]:
        name = self.string()
        n_dims = self.number("<I")
        if n_dims > _MAX_DIMS:
            raise _Broken(f"tensor {name!r} has {n_dims} dimensions")
        dims = tuple(self.number("<Q") for _ in range(n_dims))
        return name, dims, self.number("<I"), self.number("<Q")

    def place(self, name: str, dims: tuple[int, ...], kind: int, offset: int) -> GgufTensor:
        if kind not in GGML_TYPES:
            raise _Broken(f"tensor {name!r} is of unknown type {kind}")
        type_name, block, block_bytes = GGML_TYPES[kind]
        count = 1
        for dim in dims:
            count *= dim
        if dims and dims[0] % block:
            raise _Broken(f"tensor {name!r} has rows that are not whole blocks of {type_name}")
        nbytes = count // block * block_bytes
        if offset + nbytes > self.size:
            raise _Broken(f"tensor {name!r} reaches past its end (the file is truncated)")
        return GgufTensor(
            name=name, shape=dims[::-1], ggml_type=kind, type_name=type_name, offset=offset, nbytes=nbytes
        )


GGML_TYPES: dict[int, tuple[str, int, int]] = {
    0: ("F32", 1, 4), 1: ("F16", 1, 2), 2: ("Q4_0", 32, 18), 3: ("Q4_1", 32, 20), 6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24), 8: ("Q8_0", 32, 34), 9: ("Q8_1", 32, 36), 10: ("Q2_K", 256, 84), 11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144), 13: ("Q5_K", 256, 176), 14: ("Q6_K", 256, 210), 15: ("Q8_K", 256, 292),
    16: ("IQ2_XXS", 256, 66), 17: ("IQ2_XS", 256, 74), 18: ("IQ3_XXS", 256, 98), 19: ("IQ1_S", 256, 50),
    20: ("IQ4_NL", 32, 18), 21: ("IQ3_S", 256, 110), 22: ("IQ2_S", 256, 82), 23: ("IQ4_XS", 256, 136),
    24: ("I8", 1, 1), 25: ("I16", 1, 2), 26: ("I32", 1, 4), 27: ("I64", 1, 8), 28: ("F64", 1, 8),
    29: ("IQ1_M", 256, 56), 30: ("BF16", 1, 2), 34: ("TQ1_0", 256, 54), 35: ("TQ2_0", 256, 66), 39: ("MXFP4", 32, 17),
    40: ("NVFP4", 64, 36), 41: ("Q1_0", 128, 18),
}  # fmt: skip
"""ggml type number -> (name, elements of a block, bytes of a block). A test compares it with the gguf library."""
