"""The index file of a disk tier: which chunk lies in which slot of the data file. 64 bytes a slot, memory-mapped.

    header [4096]: magic [8] | length u32 | crc32 u32 | fingerprint (JSON)
    entry i [64]:  key [24] | crc32 of the payload u32 | crc32 of this entry and i u32 | last use u64 | zeros

An entry is valid where its own checksum is right; zeros are a free slot. `last use` is outside of the checksum: it
changes often, and where it is torn only the order of dropping suffers.
"""

from __future__ import annotations

import mmap
import os
import zlib

import numpy as np

from radixrt.tiers.keys import KEY_BYTES

MAGIC = b"RADIXKV\x01"
HEADER = 4096
ENTRY = np.dtype(
    {
        "names": ["key", "payload", "check", "used"],
        "formats": [("u1", (KEY_BYTES,)), "<u4", "<u4", "<u8"],
        "offsets": [0, 24, 28, 32],
        "itemsize": 64,
    }
)


class IndexFile:
    """`slots` entries in a file that is open as `descriptor`, which this takes over. OSError where the disk is full."""

    def __init__(self, descriptor: int, slots: int) -> None:
        self._descriptor = descriptor
        size = HEADER + slots * ENTRY.itemsize
        os.truncate(descriptor, min(os.fstat(descriptor).st_size, size))
        # All blocks now: a store into a mapping that the disk has no room for would be a SIGBUS, not an error.
        os.posix_fallocate(descriptor, 0, size)
        self._map = mmap.mmap(descriptor, size)
        self._entries = np.frombuffer(self._map, dtype=ENTRY, offset=HEADER)

    # --- header ---------------------------------------------------------------------------------------------------

    def fingerprint(self) -> bytes | None:
        """What was written by `reset`; None where there is nothing, b"" where it is broken."""
        head = self._map[:HEADER]
        if not any(head):
            return None
        length, check = (int.from_bytes(head[at : at + 4], "little") for at in (8, 12))
        body = head[16 : 16 + length]
        return body if head[:8] == MAGIC and zlib.crc32(body) == check else b""

    def reset(self, fingerprint: bytes) -> None:
        """Forget all entries and begin anew under `fingerprint`."""
        if len(fingerprint) > HEADER - 16:
            raise ValueError("a fingerprint must fit the header")
        self._entries[:] = 0
        head = MAGIC + len(fingerprint).to_bytes(4, "little") + zlib.crc32(fingerprint).to_bytes(4, "little")
        self._map[:HEADER] = (head + fingerprint).ljust(HEADER, b"\0")

    # --- entries --------------------------------------------------------------------------------------------------

    def load(self) -> tuple[list[tuple[bytes, int]], int]:
        """((key, slot) of every valid entry, least recently used first; number of broken ones, which are erased)."""
        written = np.flatnonzero(self._entries.view(np.uint64).reshape(len(self._entries), -1).any(axis=1))
        valid, broken = [], 0
        for slot in written.tolist():
            entry = self._entries[slot]
            key = entry["key"].tobytes()
            if int(entry["check"]) == _check(key, int(entry["payload"]), slot):
                valid.append((int(entry["used"]), key, slot))
            else:
                self.erase(slot)
                broken += 1
        valid.sort()
        return [(key, slot) for _, key, slot in valid], broken

    def newest(self) -> int:
        return int(self._entries["used"].max(initial=0))

    def payload_check(self, slot: int) -> int:
        """The checksum that the payload in `slot` must have."""
        return int(self._entries["payload"][slot])

    def write(self, slot: int, key: bytes, payload: int, used: int) -> None:
        """Name what lies in `slot`, whose payload (checksum `payload`) is written already."""
        self._entries["key"][slot] = np.frombuffer(key, np.uint8)
        self._entries["payload"][slot] = payload
        self._entries["used"][slot] = used
        self._entries["check"][slot] = _check(key, payload, slot)  # last: before it the entry does not count

    def use(self, slot: int, used: int) -> None:
        self._entries["used"][slot] = used

    def erase(self, slot: int) -> None:
        self._entries["check"][slot] = 0  # first: half an entry must not count
        self._entries[slot] = 0

    def sync(self) -> None:
        self._map.flush()

    def close(self) -> None:
        del self._entries
        self._map.close()
        os.close(self._descriptor)


def _check(key: bytes, payload: int, slot: int) -> int:
    return zlib.crc32(key + payload.to_bytes(4, "little") + slot.to_bytes(8, "little")) or 1
