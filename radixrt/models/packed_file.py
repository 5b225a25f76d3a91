"""Packed weights on disk: made once for a model and a form, mapped into memory at every later start.

A file is magic, then blobs at multiples of 64 bytes, then a JSON index, then its length and checksum and the magic
again: it is written front to back, and one that was cut short has no end. Every blob has a checksum. They are verified
before anything is used, and then not again for as long as the file's size, time of change and inode stay what they were
(`<name>.checked` holds these): 5 GB would take a second of two cores at each start. A file appears under its name when
it is whole, so any number of processes may make it at once.
"""

from __future__ import annotations

import errno
import json
import logging
import mmap
import os
import shutil
import struct
import tempfile
import threading
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
_SPARE = 1 << 30
"""Bytes that a file leaves free on its disk."""
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

    def read(self, *, written: bool = False) -> dict[str, tuple[Blob, torch.Tensor]] | None:
        """Each matrix as uint8 over the mapped file; None where there is no file, or (logged) none that can be used.

        `written`: by this process, just now: nothing is verified.
        """
        try:
            with self.path.open("rb") as file:
                index = _read_index(file, self._key)
                mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)  # torch wants to be able to write
                mark = _mark(file.fileno())
            if not written and _read_mark(self.path) != mark:
                _verify(self.path, index.blobs)
                _write_mark(self.path, mark)
        except FileNotFoundError:
            return None
        except (_Damaged, OSError, ValueError) as error:
            _log.warning("the packed weights in %s cannot be used (%s): they are made again", self.path, error)
            return None
        return {
            blob.name: (blob, torch.frombuffer(mapped, dtype=torch.uint8, offset=blob.offset, count=blob.nbytes))
            for blob in index.blobs
        }

    def write(self, nbytes: int) -> Writer:
        """A file to be filled with matrices of `nbytes` in all. OSError where the directory cannot be written to, or
        its disk would be full."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(self.path.parent).free
        if nbytes + _SPARE > free:
            raise OSError(errno.ENOSPC, f"{nbytes / 2**30:.1f} GiB are needed and {free / 2**30:.1f} GiB are free")
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
        """Put the file under its name, and remove those that earlier versions made of the same weights.

        That it is safe on the disk is seen to in the background; before, it does not count as verified.
        """
        index = msgspec.json.encode(_Index(self._key, self._blobs))
        self._file.write(index + _END.pack(len(index), zlib.crc32(index), _MAGIC))
        self._file.flush()
        os.replace(self._scratch, self._path)
        # A thread of its own for the disk; what is written to the file later is not what the mark says.
        kept = os.dup(self._file.fileno())
        threading.Thread(target=_settle, args=(kept, self._path, _mark(kept)), daemon=True, name="fsync").start()
        self._file.close()
        for other in self._path.parent.glob(f"{self._stem}-*.weights"):
            if other != self._path:
                other.unlink(missing_ok=True)
                _mark_path(other).unlink(missing_ok=True)

    def __exit__(self, *_: object) -> None:
        self._file.close()
        self._scratch.unlink(missing_ok=True)


def _settle(descriptor: int, path: Path, mark: list[int]) -> None:
    """Wait until the file is on the disk; then it counts as verified."""
    try:
        os.fsync(descriptor)
        _write_mark(path, mark)
    except OSError as error:
        _log.info("%s is verified at the next start: %s", path, error.strerror)
    finally:
        os.close(descriptor)


def _mark(descriptor: int) -> list[int]:
    """What changes when the file is written to or replaced."""
    facts = os.fstat(descriptor)
    return [facts.st_size, facts.st_mtime_ns, facts.st_ino]


def _mark_path(path: Path) -> Path:
    return path.with_suffix(".checked")


def _read_mark(path: Path) -> object:
    try:
        return json.loads(_mark_path(path).read_text())
    except (OSError, ValueError):
        return None  # none yet, or torn


def _write_mark(path: Path, mark: list[int]) -> None:
    try:
        _mark_path(path).write_text(json.dumps(mark))
    except OSError as error:
        _log.info("%s is verified again at the next start: %s", path, error.strerror)


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
