"""Packed weights on disk: made once for a model and a form, mapped into memory at every later start.

A file is magic, then blobs at multiples of 64 bytes, then a JSON index, then its length and checksum and the magic
again: it is written front to back, and one that was cut short has no end. Every blob has a checksum, which is looked at
before anything is used. A file appears under its name when it is whole, so any number of processes may make it at once.
"""

from __future__ import annotations

import logging
import mmap
import os
import struct
import tempfile
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO

import msgspec
import torch

from radixrt.kernels.cpu.native.packed import LAYOUT

_MAGIC = b"radixrt weights\n"
_END = struct.Struct("<QI16s")
_ALIGN = 64
_READ = 1 << 22
_FORMAT = 2
"""To be raised whenever this file's own layout changes, or what the blocks of a GGUF file become."""

_log = logging.getLogger(__name__)


class Blob(msgspec.Struct, frozen=True):
    """One matrix: `bits` 4 or 8, packed as the library multiplies it; 16: bfloat16, row by row."""

    name: str
    bits: int
    shape: tuple[int, int]
    offset: int
    nbytes: int
    checksum: int


class _Index(msgspec.Struct, frozen=True):
    key: str
    blobs: list[Blob]


class _Damaged(Exception):
    """The file is not what was written."""


class PackedFile:
    """Where the packed weights of one model in one form lie, or will lie."""

    def __init__(self, directory: Path, weights_hash: str, form: str) -> None:
        """`weights_hash`: of the model's files (hexadecimal); `form`: how they are packed, a word."""
        self._stem = f"{weights_hash[:32]}-{form}"
        self._key = f"{self._stem}-{LAYOUT}.{_FORMAT}"
        self.path = directory / f"{self._key}.weights"

    def read(self) -> dict[str, tuple[Blob, torch.Tensor]] | None:
        """Each matrix as uint8 over the mapped file; None where there is no file, or (logged) none that can be used."""
        try:
            with self.path.open("rb") as file:
                index = _read_index(file, self._key)
                mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)  # torch wants to be able to write
            _verify(self.path, index.blobs)
        except FileNotFoundError:
            return None
        except (_Damaged, OSError, ValueError) as error:
            _log.warning("the packed weights in %s cannot be used (%s): they are made again", self.path, error)
            return None
        return {
            blob.name: (blob, torch.frombuffer(mapped, dtype=torch.uint8, offset=blob.offset, count=blob.nbytes))
            for blob in index.blobs
        }

    def write(self) -> Writer:
        """A file to be filled. OSError where the directory cannot be written to."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        return Writer(self.path, self._key, self._stem)


class Writer:
    """Matrices one after the other, each in any number of pieces; a context that leaves no half-made file behind."""

    def __init__(self, path: Path, key: str, stem: str) -> None:
        self._path, self._key, self._stem = path, key, stem
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        self._scratch = Path(name)
        self._file = os.fdopen(handle, "wb")
        self._file.write(_MAGIC)
        self._blobs: list[Blob] = []

    def __enter__(self) -> Writer:
        return self

    def begin(self, name: str, bits: int, shape: tuple[int, int]) -> None:
        self._file.write(bytes(-self._file.tell() % _ALIGN))
        self._blobs.append(Blob(name, bits, shape, self._file.tell(), 0, 0))

    def add(self, piece: torch.Tensor) -> None:
        """More of the matrix that was begun last; contiguous, any type."""
        data = piece.flatten().view(torch.uint8).numpy().data
        last = self._blobs[-1]
        self._file.write(data)
        self._blobs[-1] = msgspec.structs.replace(
            last, nbytes=last.nbytes + len(data), checksum=zlib.crc32(data, last.checksum)
        )

    def finish(self) -> None:
        """Put the file under its name, and remove those that earlier versions made of the same weights."""
        index = msgspec.json.encode(_Index(self._key, self._blobs))
        self._file.write(index + _END.pack(len(index), zlib.crc32(index), _MAGIC))
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        os.replace(self._scratch, self._path)
        for other in self._path.parent.glob(f"{self._stem}-*.weights"):
            if other != self._path:
                other.unlink(missing_ok=True)

    def __exit__(self, *_: object) -> None:
        self._file.close()
        self._scratch.unlink(missing_ok=True)


def _read_index(file: BinaryIO, key: str) -> _Index:
    size = file.seek(0, os.SEEK_END)
    if size < len(_MAGIC) + _END.size:
        raise _Damaged("it is cut short")
    file.seek(size - _END.size)
    length, checksum, magic = _END.unpack(file.read(_END.size))
    if magic != _MAGIC or length > size - _END.size - len(_MAGIC):
        raise _Damaged("it has no end")
    file.seek(size - _END.size - length)
    encoded = file.read(length)
    if zlib.crc32(encoded) != checksum:
        raise _Damaged("its index is damaged")
    try:
        index = msgspec.json.decode(encoded, type=_Index)
    except msgspec.MsgspecError as error:
        raise _Damaged(f"its index cannot be read: {error}") from error
    if index.key != key:
        raise _Damaged("it holds other weights")
    if any(blob.offset < len(_MAGIC) or blob.offset + blob.nbytes > size for blob in index.blobs):
        raise _Damaged("its index reaches past its end")
    return index


def _verify(path: Path, blobs: list[Blob]) -> None:
    """Read through a small buffer, not through the map: what is never used then takes no memory of the process."""

    def one(blob: Blob) -> bool:
        buffer = memoryview(bytearray(min(_READ, max(1, blob.nbytes))))
        with path.open("rb", buffering=0) as file:
            file.seek(blob.offset)
            checksum, left = 0, blob.nbytes
            while left and (got := file.readinto(buffer[: min(left, len(buffer))])):
                checksum = zlib.crc32(buffer[:got], checksum)
                left -= got
        return not left and checksum == blob.checksum

    with ThreadPoolExecutor(2) as pool:
        for blob, whole in zip(blobs, pool.map(one, blobs), strict=True):
            if not whole:
                raise _Damaged(f"{blob.name} is damaged")
