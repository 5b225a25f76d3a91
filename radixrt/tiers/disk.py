"""Chunks in a directory of the local disk: two files of fixed-size slots, bounded, checked, warm at the next start.

Crash-safe by order: a slot's entry in the index is erased before its payload is overwritten and written after it, and
both have checksums. A process killed anywhere (what it wrote is the system's then) leaves at most one chunk that does
not count; after a loss of power whatever did not reach the disk fails its checksum when it is read.

Payloads are read through a mapping and written by pwrite: a store into a mapping that the disk has no room for would
kill the process with SIGBUS, while pwrite raises an error that can be logged.
"""

from __future__ import annotations

import fcntl
import logging
import mmap
import os
import zlib
from collections import OrderedDict
from collections.abc import Iterable
from pathlib import Path

from radixrt.errors import StartupError
from radixrt.tiers.fingerprint import Fingerprint
from radixrt.tiers.index import ENTRY, HEADER, IndexFile
from radixrt.tiers.interface import Key, TierError

log = logging.getLogger(__name__)

_PAGE = 4096
_INDEX, _DATA, _LOCK = "radixrt-kv.index", "radixrt-kv.data", "radixrt-kv.lock"


class DiskTier:
    """A `Tier` in `directory`, which is made if need be; one engine at a time uses it.

    What lies there and does not match `fingerprint`, or is broken, is dropped with a log line. `capacity_bytes` bounds
    index and data together; the data file is sparse and takes room as it fills. StartupError where the directory
    cannot be used.
    """

    kind = "disk"

    def __init__(self, directory: Path, fingerprint: Fingerprint, chunk_bytes: int, capacity_bytes: int) -> None:
        self.chunk_bytes = chunk_bytes
        self.capacity_bytes = capacity_bytes
        self._stride = -(-chunk_bytes // _PAGE) * _PAGE
        self._slots = (capacity_bytes - HEADER) // (self._stride + ENTRY.itemsize)
        if self._slots < 1:
            raise StartupError(
                f"a cache directory of {capacity_bytes:,} bytes holds no chunk of {self._stride:,} bytes: raise the "
                "limit (--cache-dir-bytes)",
                param="cache_dir_bytes",
            )
        self._dropped: list[Key] = []
        self._descriptors: list[int] = []
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock = self._open(directory / _LOCK)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._data = self._open(directory / _DATA)
            self._index = IndexFile(self._open(directory / _INDEX), self._slots)
            self._descriptors.pop()
        except BlockingIOError as error:
            self._close_all()
            raise StartupError(
                f"another engine uses the cache directory {directory}: give each its own (--cache-dir)"
            ) from error
        except OSError as error:
            self._close_all()
            raise StartupError(
                f"the cache directory {directory} cannot be used: {error.strerror} (--cache-dir)"
            ) from error
        self._where: OrderedDict[Key, int] = OrderedDict()
        """Slot of each chunk, least recently used first."""
        self._match(fingerprint)
        self._load()
        os.truncate(self._data, self._slots * self._stride)
        self._map = mmap.mmap(self._data, self._slots * self._stride, access=mmap.ACCESS_READ)
        self._used = self._index.newest()

    # --- the interface --------------------------------------------------------------------------------------------

    @property
    def used_bytes(self) -> int:
        return len(self._where) * self._stride

    def keys(self) -> list[Key]:
        return list(self._where)

    def contains(self, key: Key) -> bool:
        return key in self._where

    def put(self, key: Key, payload: memoryview) -> None:
        if len(payload) != self.chunk_bytes:
            raise ValueError(f"a chunk has {self.chunk_bytes} bytes, not {len(payload)}")
        if key in self._where:
            self.touch([key])
            return
        if not self._free:
            self.delete(next(iter(self._where)))
        slot = self._free.pop()
        try:
            self._write(payload, slot * self._stride)
        except OSError as error:
            self._free.append(slot)
            raise TierError(f"a chunk could not be stored: {error.strerror}") from error
        self._used += 1
        self._index.write(slot, key, zlib.crc32(payload), self._used)
        self._where[key] = slot

    def get(self, key: Key) -> bytearray | None:
        slot = self._where.get(key)
        if slot is None:
            return None
        start = slot * self._stride
        if os.fstat(self._data).st_size >= start + self._stride:
            payload = bytearray(self._map[start : start + self.chunk_bytes])
            if zlib.crc32(payload) == self._index.payload_check(slot):
                return payload
        log.warning("dropped a chunk of the cache directory: its checksum is wrong")
        self.delete(key)
        return None

    def delete(self, key: Key) -> None:
        slot = self._where.pop(key, None)
        if slot is not None:
            self._index.erase(slot)
            self._free.append(slot)
            self._dropped.append(key)
            if not self._where:
                os.truncate(self._data, 0)  # gives the disk its room back
                os.truncate(self._data, self._slots * self._stride)

    def touch(self, keys: Iterable[Key]) -> None:
        for key in keys:
            slot = self._where.get(key)
            if slot is not None:
                self._used += 1
                self._index.use(slot, self._used)
                self._where.move_to_end(key)

    def news(self) -> tuple[list[Key], list[Key]]:
        dropped, self._dropped = self._dropped, []
        return [], [key for key in dropped if key not in self._where]

    def sync(self) -> None:
        try:
            os.fdatasync(self._data)
            self._index.sync()
        except OSError as error:
            raise TierError(f"the cache directory could not be synced: {error.strerror}") from error

    def close(self) -> None:
        self._map.close()
        self._index.close()
        self._close_all()

    # --- inside ---------------------------------------------------------------------------------------------------

    def _open(self, path: Path) -> int:
        # 0600: what a model computed from people's words.
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._descriptors.append(descriptor)
        return descriptor

    def _close_all(self) -> None:
        for descriptor in self._descriptors:
            os.close(descriptor)
        self._descriptors.clear()

    def _match(self, fingerprint: Fingerprint) -> None:
        """Start anew unless what lies here was made for the same model."""
        stored = self._index.fingerprint()
        reason = None if stored is None else fingerprint.difference(stored)
        if reason is not None:
            log.warning("dropped what the cache directory held: %s", reason)
        if stored is None or reason is not None:
            self._index.reset(fingerprint.encode())
            os.truncate(self._data, 0)

    def _load(self) -> None:
        """Take over the entries that are whole."""
        size = os.fstat(self._data).st_size
        entries, broken = self._index.load()
        for key, slot in entries:
            if (slot + 1) * self._stride <= size and key not in self._where:
                self._where[key] = slot
            else:
                self._index.erase(slot)
                broken += 1
        if broken:
            log.warning("dropped %d torn chunks of the cache directory", broken)
        taken = set(self._where.values())
        self._free = [slot for slot in range(self._slots - 1, -1, -1) if slot not in taken]

    def _write(self, payload: memoryview, start: int) -> None:
        done = 0
        while done < len(payload):
            done += os.pwrite(self._data, payload[done:], start + done)
