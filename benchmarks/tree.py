"""What the prefix tree itself costs, without a model: each operation against the number of cached tokens.

    python benchmarks/tree.py
    python benchmarks/tree.py --tokens 1000 --tokens 100000 --length 1400 --eviction cost --json out.json

A pool is filled with paths of `--length` tokens, half of each shared with others (as agents over a few long prompts
share), so that it holds one node for about `--length` / 2 tokens. Then, interleaved and each over its own random paths:

match   find the longest cached prefix of a prompt that was put in (and may have been cut since), lock and unlock it
miss    the same for a prompt of which the tree has nothing
insert  allocate slots for the second half of a prompt, put it in, and unlock it; what it displaces is not counted
grow    put one more token at the end of a path, as decoding does
evict   free one path's second half, by policy
check   prove all invariants of tree and pool

Printed: median and 99th percentile, microseconds (check: milliseconds).
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from array import array
from collections.abc import Callable
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))

from radixrt.cache import PrefixCache, make_eviction

SIZES = (1_000, 10_000, 100_000, 1_000_000)
VOCABULARY = 49_152
SHARED_BY = 8
"""Paths that begin alike."""


class Forest:
    """A full pool and the paths that were put into it."""

    def __init__(self, tokens: int, length: int, eviction: str, seed: int = 0) -> None:
        self.rng = random.Random(seed)
        self.length = min(length, tokens // 4)
        spare = 4 * self.length
        self.cache = PrefixCache(tokens + spare, policy=make_eviction(eviction, tokens + spare))
        self.paths: list[array[int]] = []
        stem = self.new(self.length // 2)
        while self.cache.tree.tokens < tokens:
            if len(self.paths) % SHARED_BY == 0:
                stem = self.new(self.length // 2)
            path = stem + self.new(self.length - len(stem))
            self.put(path)
            self.paths.append(path)

    def new(self, count: int) -> array[int]:
        return array("i", [self.rng.randrange(VOCABULARY) for _ in range(count)])

    def put(self, path: array[int]) -> None:
        tree = self.cache.tree
        node, known = tree.match("n", path, len(path))
        tree.lock(node)
        slots = self.cache.allocate(len(path) - known)
        if slots is None:
            raise RuntimeError("the pool has no room for one more path")
        node, _ = tree.extend(node, path[known:], slots.tolist())
        tree.unlock(node)

    # --- what is measured: each returns the seconds it took -----------------------------------------------------------

    def match(self) -> float:
        return self._find(self.rng.choice(self.paths))

    def miss(self) -> float:
        return self._find(self.new(self.length))

    def _find(self, path: array[int]) -> float:
        tree = self.cache.tree
        begun = time.perf_counter()
        node, _ = tree.match("n", path, len(path))
        tree.lock(node)
        tree.unlock(node)
        return time.perf_counter() - begun

    def insert(self) -> float:
        """A new second half behind a stem; room is made first, outside of the measured time."""
        path = self.rng.choice(self.paths)[: self.length // 2] + self.new(self.length - self.length // 2)
        missing = 2 * self.length - self.cache.pool.free
        if missing > 0:
            self.cache.tree.evict(missing)
        begun = time.perf_counter()
        self.put(path)
        return time.perf_counter() - begun

    def grow(self) -> float:
        tree = self.cache.tree
        path = self.rng.choice(self.paths)
        node, _ = tree.match("n", path, len(path))
        tree.lock(node)
        slots = self.cache.allocate(1)
        if slots is None:
            raise RuntimeError("the pool has no room for one more token")
        begun = time.perf_counter()
        node, _ = tree.extend(node, [self.rng.randrange(VOCABULARY)], slots.tolist())
        taken = time.perf_counter() - begun
        tree.unlock(node)
        return taken

    def evict(self) -> float:
        begun = time.perf_counter()
        freed = self.cache.tree.evict(self.length // 2)
        taken = time.perf_counter() - begun
        if freed:
            self.put(self.rng.choice(self.paths)[: self.length // 2] + self.new(freed))
        return taken

    def check(self) -> float:
        begun = time.perf_counter()
        self.cache.check()
        return time.perf_counter() - begun


def measure(forest: Forest, rounds: int) -> dict[str, list[float]]:
    """Seconds of each operation, taking turns."""
    operations: dict[str, Callable[[], float]] = {
        "match": forest.match, "miss": forest.miss, "insert": forest.insert, "grow": forest.grow,
        "evict": forest.evict,
    }  # fmt: skip
    taken: dict[str, list[float]] = {name: [] for name in (*operations, "check")}
    for i in range(rounds):
        for name, operation in operations.items():
            taken[name].append(operation())
        if i % max(rounds // 20, 1) == 0:
            taken["check"].append(forest.check())
    return taken


def row(tokens: int, length: int, eviction: str, rounds: int) -> dict[str, object]:
    forest = Forest(tokens, length, eviction)
    taken = measure(forest, rounds)
    figures: dict[str, object] = {"tokens": forest.cache.tree.tokens, "nodes": forest.cache.tree.nodes}
    for name, seconds in taken.items():
        ordered = sorted(seconds)
        scale = 1e3 if name == "check" else 1e6
        p99 = ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))]
        figures[name] = (scale * ordered[len(ordered) // 2], scale * p99)
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, action="append", help="cached tokens; repeatable")
    parser.add_argument("--length", type=int, default=1_400, help="tokens of a path (at most a quarter of the tokens)")
    parser.add_argument("--eviction", default="lru", help="lru, lfu, slru, priority, cost")
    parser.add_argument("--rounds", type=int, default=1_000)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    names = ("match", "miss", "insert", "grow", "evict", "check")
    print("| cached tokens | nodes |", " | ".join(f"{n}, {'ms' if n == 'check' else 'us'}" for n in names), "|")
    print("|" + "---|" * (len(names) + 2))
    rows = []
    for tokens in options.tokens or SIZES:
        figures = row(tokens, options.length, options.eviction, options.rounds)
        rows.append(figures)
        cells = []
        for name in names:
            pair = figures[name]
            cells.append(" / ".join(f"{value:,.1f}" for value in pair) if isinstance(pair, tuple) else "")
        print(f"| {figures['tokens']:,} | {figures['nodes']:,} |", " | ".join(cells), "|", flush=True)
    if options.json is not None:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
