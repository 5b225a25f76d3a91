"""What no policy can beat: hits with a cache without bounds, and with a bounded one that knows the future."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

Served = tuple[list[int], list[int]]
"""(prompt, output) of a request, in order of arrival."""


def unbounded_hits(served: Sequence[Served]) -> int:
    """Prompt tokens that need not be computed when nothing is ever evicted: an upper bound for every policy and order.

    Each distinct prefix is computed once, an output is there for whoever continues it, and a prompt's last token is
    always computed (its logits are wanted).
    """
    known: set[int] = set()
    for prompt, output in served:
        known.update(_prefixes([*prompt, *output])[len(prompt) :])
    hits = 0
    for prompt, _ in sorted(served, key=lambda pair: len(pair[0])):
        prefixes = _prefixes(prompt)
        hits += min(sum(prefix in known for prefix in prefixes), len(prompt) - 1)
        known.update(prefixes)
    return hits


def belady_hits(served: Sequence[Served], capacity: int) -> int:
    """Hits of one request at a time in order of arrival, evicting what is used again last (Belady, 1966).

    Optimal for this order and `capacity` tokens, since a prefix is always used again no later than what follows it. A
    policy that changes the order may have more, one that runs requests side by side has less room than this one.
    """
    segments = _segments([[*prompt, *output] for prompt, output in served])
    uses: dict[int, list[int]] = {}
    for turn, path in enumerate(segments):
        for name, _ in path:
            uses.setdefault(name, []).append(turn)
    depth = {name: level for path in segments for level, (name, _) in enumerate(path)}
    held: dict[int, int] = {}
    order: list[tuple[int, int, int]] = []
    free, hits = capacity, 0
    for turn, ((prompt, _), path) in enumerate(zip(served, segments, strict=True)):
        found = 0
        for name, length in path:
            found += held.get(name, 0)
            if held.get(name, 0) < length:
                break
        hits += min(found, len(prompt) - 1)
        needed = sum(length - held.get(name, 0) for name, length in path)
        own = {name for name, _ in path}
        kept = []
        while free < needed and order:
            item = heapq.heappop(order)
            next_use, _, name = item
            if name in own:
                kept.append(item)
                continue
            if name not in held or -next_use != _next_use(uses[name], turn):
                continue
            taken = min(held[name], needed - free)
            free += taken
            held[name] -= taken
            if held[name]:
                kept.append(item)
            else:
                del held[name]
        for item in kept:
            heapq.heappush(order, item)
        free -= needed
        for name, length in path:
            held[name] = length
            heapq.heappush(order, (-_next_use(uses[name], turn + 1), -depth[name], name))
    return hits


def _next_use(turns: list[int], turn: int) -> int:
    at = next((use for use in turns if use >= turn), None)
    return 1 << 60 if at is None else at


def _prefixes(tokens: list[int]) -> list[int]:
    """A hash of each prefix."""
    value, hashes = 0, []
    for token in tokens:
        value = hash((value, token))
        hashes.append(value)
    return hashes


@dataclass
class _Trie:
    """Which prefixes end a segment: those where sequences part or end."""

    ends: set[int] = field(default_factory=set)
    follower: dict[int, int] = field(default_factory=dict)

    def insert(self, prefixes: list[int]) -> None:
        for before, after in pairwise([0, *prefixes]):
            if self.follower.setdefault(before, after) != after:
                self.ends.add(before)
        self.ends.add(prefixes[-1])


def _segments(sequences: list[list[int]]) -> list[list[tuple[int, int]]]:
    """Each sequence as [(name, length)] of the spans of the tree that all of them make."""
    hashed = [_prefixes(tokens) for tokens in sequences]
    trie = _Trie()
    for prefixes in hashed:
        trie.insert(prefixes)
    paths = []
    for prefixes in hashed:
        path, start = [], 0
        for i, prefix in enumerate(prefixes):
            if prefix in trie.ends:
                path.append((prefix, i + 1 - start))
                start = i + 1
        paths.append(path)
    return paths
