"""Which chunks of the tree to copy to the tier, and from which slots: when a node is evicted, or when there is time."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from radixrt.cache import Ids, Node, RadixTree, Slots
from radixrt.cache.watch import Reason, TreeWatcher
from radixrt.messages import Namespace
from radixrt.tiers.keys import CHUNK, KEY_BYTES, next_key, root_key


@dataclass(eq=False)
class Saves(TreeWatcher):
    """Chunks to be copied out with the next TierWork. `wanted(key)` is False for what the tier has, or is given."""

    wanted: Callable[[bytes], bool]
    keys: list[bytes] = field(default_factory=list)
    slots: list[Ids] = field(default_factory=list)

    def add(self, key: bytes, slots: Ids) -> None:
        self.keys.append(key)
        self.slots.append(slots)

    def take(self) -> tuple[np.ndarray, Slots]:
        """(keys uint8[n, KEY_BYTES], slots int32[n, CHUNK]) of all that was added, which is forgotten."""
        keys, slots = key_array(self.keys), slot_array(self.slots)
        self.keys, self.slots = [], []
        return keys, slots

    def forget(self, label: bytes) -> list[bytes]:
        """Drop what begins with `label`; its keys."""
        gone = [key for key in self.keys if key.startswith(label)]
        pairs = [pair for pair in zip(self.keys, self.slots, strict=True) if not pair[0].startswith(label)]
        self.keys, self.slots = [key for key, _ in pairs], [slots for _, slots in pairs]
        return gone

    def evicting(self, node: Node, kept: int, reason: Reason) -> None:
        """Save every whole chunk that loses a token to newer ones."""
        if reason != "pressure":
            return
        path = node.path()
        namespace = path[0].parent.key if path and path[0].parent is not None else None
        if not isinstance(namespace, Namespace):
            return  # a request that shares with nobody
        tokens, slots = array("i"), array("i")
        for step in path:
            tokens.extend(step.tokens)
            slots.extend(step.slots)
        stay = len(tokens) - len(node) + kept
        key = root_key(namespace)
        for start in range(0, len(tokens) - CHUNK + 1, CHUNK):
            key = next_key(key, tokens[start : start + CHUNK])
            if start + CHUNK > stay and self.wanted(key):
                self.add(key, slots[start : start + CHUNK])

    def sweep(self, tree: RadixTree, most: int) -> bool:
        """Add up to `most` whole chunks of the tree, parents before children; False when there are no more."""
        # What a node's children go on from, by depth: the last key and the tokens and slots of the chunk begun.
        states: list[tuple[bytes, Ids, Ids]] = []
        for depth, node in tree.walk():
            del states[depth:]
            if node.is_root:
                key = root_key(node.key) if isinstance(node.key, Namespace) else b""
                states.append((key, array("i"), array("i")))
                continue
            key, tokens, slots = states[-1]
            if not key:
                states.append(states[-1])
                continue
            tokens, slots = tokens + node.tokens, slots + node.slots
            whole = len(tokens) // CHUNK * CHUNK
            for start in range(0, whole, CHUNK):
                key = next_key(key, tokens[start : start + CHUNK])
                if len(self.keys) >= most:
                    return True
                if self.wanted(key):
                    self.add(key, slots[start : start + CHUNK])
            states.append((key, tokens[whole:], slots[whole:]))
        return False


def key_array(keys: list[bytes]) -> np.ndarray:
    return np.frombuffer(b"".join(keys), np.uint8).reshape(-1, KEY_BYTES)


def slot_array(slots: list[Ids]) -> Slots:
    return np.array(slots, dtype=np.int32).reshape(-1, CHUNK)


def key_list(keys: np.ndarray) -> list[bytes]:
    """The keys in uint8[n, KEY_BYTES]."""
    joined = keys.tobytes()
    return [joined[at : at + KEY_BYTES] for at in range(0, len(joined), KEY_BYTES)]
