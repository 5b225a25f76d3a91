"""Memory in front of a disk: what is put goes to both, what is wanted comes from the first that has it."""

from __future__ import annotations

from collections.abc import Iterable

from radixrt.tiers.interface import Key, Tier, TierError


class LayeredTier:
    """Two tiers as one. `front` is the fast one; a chunk counts as held while either holds it."""

    def __init__(self, front: Tier, back: Tier) -> None:
        if front.chunk_bytes != back.chunk_bytes:
            raise ValueError("both tiers must hold chunks of one size")
        self._front, self._back = front, back
        self.kind = f"{front.kind}+{back.kind}"
        self.chunk_bytes = front.chunk_bytes
        self.capacity_bytes = front.capacity_bytes + back.capacity_bytes

    @property
    def used_bytes(self) -> int:
        return self._front.used_bytes + self._back.used_bytes

    def keys(self) -> list[Key]:
        return list(dict.fromkeys([*self._back.keys(), *self._front.keys()]))

    def contains(self, key: Key) -> bool:
        return self._front.contains(key) or self._back.contains(key)

    def put(self, key: Key, payload: memoryview) -> None:
        self._front.put(key, payload)
        try:
            self._back.put(key, payload)
        except TierError:
            self._front.delete(key)  # or it would be gone after a restart though nobody was told
            raise

    def get(self, key: Key) -> bytearray | None:
        payload = self._front.get(key)
        if payload is None:
            payload = self._back.get(key)
            if payload is not None:
                self._front.put(key, memoryview(payload))
        return payload

    def delete(self, key: Key) -> None:
        self._front.delete(key)
        self._back.delete(key)

    def touch(self, keys: Iterable[Key]) -> None:
        used = list(keys)
        self._front.touch(used)
        self._back.touch(used)

    def news(self) -> tuple[list[Key], list[Key]]:
        added, dropped = zip(self._front.news(), self._back.news(), strict=True)
        gone = dict.fromkeys([*dropped[0], *dropped[1]])
        return [*added[0], *added[1]], [key for key in gone if not self.contains(key)]

    def sync(self) -> None:
        self._front.sync()
        self._back.sync()

    def close(self) -> None:
        self._front.close()
        self._back.close()
