"""What the runner needs of a place that keeps chunks of KV: the whole interface, small on purpose."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, TypeAlias

Key: TypeAlias = bytes
"""KEY_BYTES bytes, see `radixrt.tiers.keys`."""


class TierError(Exception):
    """A tier could not do what it was asked to (disk full, I/O error). No request hears of it: serving goes on."""


class Tier(Protocol):
    """Keeps payloads of one size (`chunk_bytes`) under keys, and drops old ones to stay within its capacity.

    One thread of the runner calls it, never the one that computes; so a call may take its time. A payload is opaque:
    the keys and values of CHUNK tokens, [layers, 2, kv_heads, CHUNK, line] in the pool's dtype. A store that others
    write to, too (LMCache, Mooncake: one store for a cluster), names new keys in `added` and lost ones in `dropped`;
    keys must then be told apart by the model they belong to, for which `Fingerprint.digest` is there.
    """

    kind: str
    """For people: disk, host, disk+host."""
    chunk_bytes: int
    capacity_bytes: int

    @property
    def used_bytes(self) -> int: ...

    def keys(self) -> list[Key]:
        """What it holds; called once, at start."""
        ...

    def contains(self, key: Key) -> bool: ...

    def put(self, key: Key, payload: memoryview) -> None:
        """Keep `payload`; another one may be dropped for it. TierError where that cannot be done, and nothing has
        changed but what was dropped."""
        ...

    def get(self, key: Key) -> bytearray | None:
        """The payload, exactly as it was put; None where it is not there any more, or is not what it was."""
        ...

    def delete(self, key: Key) -> None:
        """Forget a key; an unknown one is ignored."""
        ...

    def touch(self, keys: Iterable[Key]) -> None:
        """These were used now, the last one last: the order in which they are dropped is theirs."""
        ...

    def news(self) -> tuple[list[Key], list[Key]]:
        """(added by others, dropped) since the last call, whatever the reason."""
        ...

    def sync(self) -> None:
        """What was put before survives a loss of power from now on. TierError where it may not."""
        ...

    def close(self) -> None: ...
