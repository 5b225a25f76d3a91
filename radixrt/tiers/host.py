"""Chunks in host memory: for pools on a device, and in front of a disk. Gone with the process."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

from radixrt.errors import StartupError
from radixrt.tiers.interface import Key


class HostTier:
    """A `Tier` in memory: least recently used chunks are dropped first."""

    kind = "host"

    def __init__(self, chunk_bytes: int, capacity_bytes: int) -> None:
        if capacity_bytes < chunk_bytes:
            raise StartupError(f"a host tier of {capacity_bytes:,} bytes holds no chunk of {chunk_bytes:,} bytes")
        self.chunk_bytes = chunk_bytes
        self.capacity_bytes = capacity_bytes
        self._chunks: OrderedDict[Key, bytes] = OrderedDict()
        self._dropped: list[Key] = []

    @property
    def used_bytes(self) -> int:
        return len(self._chunks) * self.chunk_bytes

    def keys(self) -> list[Key]:
        return list(self._chunks)

    def contains(self, key: Key) -> bool:
        return key in self._chunks

    def put(self, key: Key, payload: memoryview) -> None:
        if len(payload) != self.chunk_bytes:
            raise ValueError(f"a chunk has {self.chunk_bytes} bytes, not {len(payload)}")
        while key not in self._chunks and self.used_bytes + self.chunk_bytes > self.capacity_bytes:
            self._dropped.append(self._chunks.popitem(last=False)[0])
        self._chunks[key] = bytes(payload)
        self._chunks.move_to_end(key)

    def get(self, key: Key) -> bytearray | None:
        chunk = self._chunks.get(key)
        return None if chunk is None else bytearray(chunk)

    def delete(self, key: Key) -> None:
        if self._chunks.pop(key, None) is not None:
            self._dropped.append(key)

    def touch(self, keys: Iterable[Key]) -> None:
        for key in keys:
            if key in self._chunks:
                self._chunks.move_to_end(key)

    def news(self) -> tuple[list[Key], list[Key]]:
        dropped, self._dropped = self._dropped, []
        return [], [key for key in dropped if key not in self._chunks]

    def sync(self) -> None:
        """Memory keeps nothing beyond the process."""

    def close(self) -> None:
        self._chunks.clear()
