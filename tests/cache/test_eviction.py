"""Eviction policies against a scan of all leaves with keys worked out anew; watermarks; what watchers are told."""

from __future__ import annotations

import random
from array import array

import pytest

from radixrt.cache import POLICIES, Node, PrefixCache, TreeWatcher, Watermarks, make_eviction


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


class Scan:
    """The rule of each policy, written as a scan over all leaves; it keeps only what GreedyDual and SLRU need."""

    def __init__(self, name: str, capacity: int) -> None:
        self.name = name
        self.limit = capacity * 4 // 5
        self.floor = 0.0
        self.value: dict[Node, float] = {}
        self.protected: list[tuple[Node, int]] = []
        self.demoted: dict[Node, tuple[float, int]] = {}
        self.demotions = 0

    def used(self, node: Node) -> None:
        cost = 1 + (node.start + node.end) / 2 / 4096
        self.value[node] = self.floor + (1 + node.hits) * cost
        self.demoted.pop(node, None)
        if node.hits:
            self.protected = [entry for entry in self.protected if entry[0] is not node] + [(node, len(node))]
            while sum(tokens for _, tokens in self.protected) > self.limit:
                oldest, _ = self.protected.pop(0)
                self.demotions += 1
                self.demoted[oldest] = node.last_used, self.demotions

    def split(self, upper: Node, lower: Node) -> None:
        self.value[upper] = self.value[lower]

    def key(self, node: Node) -> tuple[float, ...]:
        if self.name == "lru":
            return (node.last_used,)
        if self.name == "lfu":
            return node.hits, node.last_used
        if self.name == "priority":
            return -node.priority, node.last_used
        if self.name == "cost":
            return self.value[node], node.last_used
        if any(entry[0] is node for entry in self.protected):
            return 1, node.last_used
        return (0, *self.demoted.get(node, (node.last_used,)))

    def next(self, cache: PrefixCache) -> Node | None:
        leaves = [n for _, n in cache.tree.walk() if not n.is_root and not n.children and not n.locks]
        return min(leaves, key=self.key, default=None)

    def gone(self, node: Node, kept: int) -> None:
        self.floor = max(self.floor, self.value[node])
        if not kept:
            self.protected = [entry for entry in self.protected if entry[0] is not node]
            self.demoted.pop(node, None)


class Judge(TreeWatcher):
    """Compares every eviction with what the scan would have taken."""

    def __init__(self, cache: PrefixCache, scan: Scan) -> None:
        self.cache, self.scan, self.seen = cache, scan, 0

    def split(self, upper: Node, lower: Node) -> None:
        self.scan.split(upper, lower)

    def evicting(self, node: Node, kept: int, reason: str) -> None:
        assert node is self.expected
        self.seen += 1
        self.scan.gone(node, kept)
        self.expected = None

    expected: Node | None = None


@pytest.mark.parametrize("name", POLICIES)
def test_each_policy_takes_what_a_scan_would(name: str) -> None:
    rng, capacity = random.Random(name), 150
    policy = make_eviction(name, capacity)
    cache = PrefixCache(capacity, clock=Clock(), policy=policy)
    scan = Scan(name, capacity)
    judge = Judge(cache, scan)
    cache.tree.watchers.append(judge)
    inner = policy.used

    def used(node: Node):
        scan.used(node)
        return inner(node)

    policy.used = used  # type: ignore[method-assign]
    rows: list[Node] = []
    for _ in range(4000):
        if rng.random() < 0.55 or not rows:
            ids = array("i", [rng.choice((0, 0, 1, 2)) for _ in range(rng.randint(1, 14))])
            priority = rng.randrange(3)
            node, length = cache.tree.match("n", ids, len(ids))
            cache.tree.lock(node)
            cache.tree.hit(node, priority)
            while cache.pool.free < len(ids) - length:
                judge.expected = scan.next(cache)
                if judge.expected is None:
                    break
                cache.tree.evict(rng.choice((1, min(len(judge.expected), 3))) if len(judge.expected) > 3 else 1)
            slots = cache.pool.allocate(len(ids) - length)
            if slots is None:
                cache.tree.unlock(node)
                continue
            node, _ = cache.tree.extend(node, ids[length:], slots.tolist(), priority)
            rows.append(node)
        else:
            cache.tree.unlock(rows.pop(rng.randrange(len(rows))))
        cache.check()
    assert judge.seen > 300


def fill(cache: PrefixCache, *paths: list[int]) -> None:
    for path in paths:
        ids = array("i", path)
        node, length = cache.tree.match("n", ids, len(ids))
        cache.tree.lock(node)
        slots = cache.allocate(len(ids) - length)
        node, _ = cache.tree.extend(node, ids[length:], slots.tolist())
        cache.tree.unlock(node)


def test_watermarks_evict_ahead_of_need_and_many_at_once() -> None:
    cache = PrefixCache(100, watermarks=Watermarks(low=10, high=40))
    fill(cache, list(range(85)))
    assert cache.keep_free() == 0 and cache.pool.free == 15
    fill(cache, list(range(200, 210)))
    assert cache.pool.free == 5
    assert cache.keep_free() == 35 and cache.pool.free == 40
    cache.check()


def test_watermarks_never_touch_what_is_locked() -> None:
    cache = PrefixCache(10, watermarks=Watermarks(low=5, high=10))
    node, _ = cache.tree.match("n", array("i", [1]), 1)
    cache.tree.lock(node)
    cache.tree.extend(node, array("i", range(8)), cache.allocate(8).tolist())
    assert cache.keep_free() == 0 and cache.available == 2


@pytest.mark.parametrize(("low", "high"), [(5, 4), (-1, 4), (0, 1000)])
def test_watermarks_that_make_no_sense_are_refused(low: int, high: int) -> None:
    with pytest.raises(ValueError, match="watermark"):
        PrefixCache(100, watermarks=Watermarks(low, high))


def test_an_unknown_policy_is_named() -> None:
    with pytest.raises(ValueError, match="lru, lfu"):
        make_eviction("mru", 10)
