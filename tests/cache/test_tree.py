"""The prefix tree: examples, and a random history against a model that knows what every slot holds."""

from __future__ import annotations

import random
from array import array
from dataclasses import dataclass, field

import pytest

from radixrt.cache import Node, PrefixCache, SlotError


class Clock:
    """Time that passes only when it is asked for."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


def ids(text: str) -> array[int]:
    return array("i", list(text.encode()))


def insert(cache: PrefixCache, text: str, namespace: object = "n") -> Node:
    """Put a text into the tree as a row does, and leave its path locked."""
    tokens = ids(text)
    node, length = cache.tree.match(namespace, tokens, len(tokens))
    cache.tree.lock(node)
    slots = cache.allocate(len(tokens) - length)
    assert slots is not None
    node, duplicates = cache.tree.extend(node, tokens[length:], slots.tolist())
    assert duplicates == 0
    return node


def texts(cache: PrefixCache) -> list[str]:
    return [bytes(node.tokens.tolist()).decode() for _, node in cache.tree.walk() if not node.is_root]


def test_a_longer_text_shares_the_prefix_token_by_token() -> None:
    cache = PrefixCache(64)
    insert(cache, "the cat sat")
    node, length = cache.tree.match("n", ids("the car"), 7)
    assert length == len("the ca")
    assert bytes(node.tokens.tolist()).decode() == "the ca"
    assert texts(cache) == ["the ca", "t sat"]
    cache.check()


def test_the_limit_bounds_a_match() -> None:
    cache = PrefixCache(64)
    insert(cache, "abcdef")
    assert cache.tree.probe("n", ids("abcdef"), 4) == 4
    assert cache.tree.match("n", ids("abcdef"), 4)[1] == 4


def test_probe_changes_nothing() -> None:
    cache = PrefixCache(64)
    insert(cache, "abcdef")
    assert cache.tree.probe("n", ids("abcxyz"), 6) == 3
    assert texts(cache) == ["abcdef"]


def test_namespaces_share_nothing() -> None:
    cache = PrefixCache(64)
    insert(cache, "secret", "a")
    assert cache.tree.probe("b", ids("secret"), 6) == 0
    assert cache.tree.match("b", ids("secret"), 6)[1] == 0


def test_a_leaf_that_only_one_row_holds_grows_in_place() -> None:
    cache = PrefixCache(64)
    node = insert(cache, "abc")
    slots = cache.allocate(2)
    grown, _ = cache.tree.extend(node, ids("de"), slots.tolist())
    assert grown is node and texts(cache) == ["abcde"]


def test_a_leaf_that_two_rows_hold_gets_a_child() -> None:
    cache = PrefixCache(64)
    first = insert(cache, "abc")
    second = insert(cache, "abc")
    assert second is first
    slots = cache.allocate(1)
    grown, _ = cache.tree.extend(first, ids("d"), slots.tolist())
    assert grown is not first and texts(cache) == ["abc", "d"]
    cache.tree.unlock(second)
    assert (first.locks, grown.locks) == (1, 1)
    cache.check()


def test_two_rows_that_generate_the_same_token_keep_one_slot() -> None:
    cache = PrefixCache(64)
    first, second = insert(cache, "abc"), insert(cache, "abc")
    mine, theirs = cache.allocate(1), cache.allocate(1)
    first, duplicates = cache.tree.extend(first, ids("d"), mine.tolist())
    assert duplicates == 0
    second, duplicates = cache.tree.extend(second, ids("d"), theirs.tolist())
    assert duplicates == 1 and second is first
    cache.check(theirs.tolist())
    cache.release(theirs)
    cache.check()


def test_the_least_recently_used_leaf_goes_first_and_only_its_tail() -> None:
    cache = PrefixCache(64, clock=Clock())
    for text in ("one....", "two....", "three.."):
        cache.tree.unlock(insert(cache, text))
    cache.tree.hit(cache.tree.match("n", ids("one...."), 7)[0])
    assert cache.tree.evict(3) == 3
    assert cache.tree.probe("n", ids("two...."), 7) == 4
    assert cache.tree.probe("n", ids("three.."), 7) == 7
    assert cache.tree.probe("n", ids("one...."), 7) == 7
    cache.check()


def test_what_is_locked_stays() -> None:
    cache = PrefixCache(8)
    node = insert(cache, "abcdef")
    assert cache.tree.evict(100) == 0
    assert cache.allocate(3) is None
    cache.tree.unlock(node)
    assert cache.allocate(3) is not None
    assert cache.tree.probe("n", ids("abcdef"), 6) == 5


def test_an_unlock_too_many_is_an_error() -> None:
    cache = PrefixCache(8)
    node = insert(cache, "ab")
    cache.tree.unlock(node)
    with pytest.raises(SlotError):
        cache.tree.unlock(node)


def test_check_finds_a_slot_with_two_owners() -> None:
    cache = PrefixCache(8)
    node = insert(cache, "ab")
    cache.check()
    node.slots[1] = node.slots[0]
    with pytest.raises(SlotError):
        cache.check()


def test_check_finds_a_slot_that_nobody_owns() -> None:
    cache = PrefixCache(8)
    slots = cache.allocate(2)
    with pytest.raises(SlotError):
        cache.check()
    cache.check(slots.tolist())


def test_check_finds_a_wrong_lock_count() -> None:
    cache = PrefixCache(8)
    insert(cache, "ab")
    child = insert(cache, "abcd")
    child.locks += 5
    with pytest.raises(SlotError):
        cache.check()


@dataclass
class Holder:
    """A row of the random history."""

    namespace: int
    tokens: array[int]
    node: Node
    own: list[int] = field(default_factory=list)


class History:
    """Random rows over a small alphabet; `holds[slot]` says which prefix each slot was filled for."""

    def __init__(self, seed: int, capacity: int) -> None:
        self.random = random.Random(seed)
        self.cache = PrefixCache(capacity, clock=Clock())
        self.holds: dict[int, tuple[int, tuple[int, ...]]] = {}
        self.rows: list[Holder] = []

    def cached(self) -> set[tuple[int, tuple[int, ...]]]:
        return {self.holds[slot] for _, node in self.cache.tree.walk() for slot in node.slots}

    def fill(self, slots: list[int], namespace: int, tokens: array[int], start: int) -> None:
        for i, slot in enumerate(slots):
            self.holds[slot] = (namespace, tuple(tokens[: start + i + 1]))

    def begin(self) -> None:
        namespace = self.random.randrange(2)
        tokens = array("i", [self.random.randrange(3) for _ in range(self.random.randint(1, 14))])
        limit = self.random.randint(0, len(tokens))
        before = self.cached()
        longest = 0
        while longest < limit and (namespace, tuple(tokens[: longest + 1])) in before:
            longest += 1
        assert self.cache.tree.probe(namespace, tokens, limit) == longest
        node, length = self.cache.tree.match(namespace, tokens, limit)
        assert length == longest
        path = [slot for step in node.path() for slot in step.slots]
        assert [self.holds[slot] for slot in path] == [(namespace, tuple(tokens[: i + 1])) for i in range(length)]
        self.cache.tree.lock(node)
        slots = self.cache.allocate(len(tokens) - length)
        if slots is None:
            self.cache.tree.unlock(node)
            return
        new = slots.tolist()
        self.fill(new, namespace, tokens, length)
        node, duplicates = self.cache.tree.extend(node, tokens[length:], new)
        self.cache.release(new[:duplicates])
        self.rows.append(Holder(namespace, tokens, node))

    def grow(self) -> None:
        row = self.random.choice(self.rows)
        slots = self.cache.allocate(1)
        if slots is None:
            return
        row.tokens.append(self.random.randrange(3))
        self.fill(slots.tolist(), row.namespace, row.tokens, len(row.tokens) - 1)
        row.node, duplicates = self.cache.tree.extend(row.node, row.tokens[-1:], slots.tolist())
        row.own.extend(slots[:duplicates].tolist())

    def hold(self) -> None:
        """A row that owns slots outside of the tree (tokens under way)."""
        slots = self.cache.allocate(self.random.randint(1, 3))
        if slots is not None:
            self.random.choice(self.rows).own.extend(slots.tolist())

    def end(self) -> None:
        row = self.rows.pop(self.random.randrange(len(self.rows)))
        self.cache.tree.unlock(row.node)
        self.cache.release(row.own)

    def step(self) -> None:
        move = self.random.random()
        if move < 0.3 or not self.rows:
            self.begin()
        elif move < 0.6:
            self.grow()
        elif move < 0.65:
            self.hold()
        elif move < 0.7:
            self.cache.tree.evict(self.random.randint(1, 10))
        elif move < 0.72:
            namespace, length = self.random.randrange(2), self.random.randint(1, 6)
            tokens = array("i", [self.random.randrange(3) for _ in range(length)])
            self.cache.tree.hit(self.cache.tree.match(namespace, tokens, length)[0])
        else:
            self.end()
        self.verify()

    def verify(self) -> None:
        self.cache.check(slot for row in self.rows for slot in row.own)
        for row in self.rows:
            path = [slot for step in row.node.path() for slot in step.slots]
            assert [self.holds[slot][1] for slot in path] == [tuple(row.tokens[: i + 1]) for i in range(len(path))]
            assert len(path) == len(row.tokens)
        locked = {id(step) for row in self.rows for step in row.node.path()}
        for _, node in self.cache.tree.walk():
            if not node.is_root:
                assert bool(node.locks) == (id(node) in locked)
                assert node.locks == sum(node in row.node.path() for row in self.rows)


@pytest.mark.parametrize(("seed", "capacity"), [(1, 40), (2, 90), (3, 200), (4, 24)])
def test_a_random_history_keeps_every_invariant(seed: int, capacity: int) -> None:
    history = History(seed, capacity)
    for _ in range(5000):
        history.step()
    while history.rows:
        history.end()
    history.verify()
    assert history.cache.available == capacity
    history.cache.tree.clear()
    assert history.cache.pool.free == capacity and history.cache.tree.nodes == 0
