"""`benchmarks/tree.py` measures a tree that is as full as it says, and leaves it sound."""

from __future__ import annotations

import pytest

from benchmarks.tree import Forest, measure, row


@pytest.mark.parametrize("eviction", ["lru", "cost"])
def test_a_forest_stays_full_and_sound(eviction: str) -> None:
    forest = Forest(4_000, 100, eviction)
    assert forest.cache.tree.tokens >= 4_000 and len(forest.paths) >= 70
    taken = measure(forest, 40)
    assert all(len(seconds) == 40 for name, seconds in taken.items() if name != "check") and len(taken["check"]) == 20
    assert forest.cache.tree.tokens > 3_500 and forest.cache.tree.evicted > 0
    assert forest.cache.available == forest.cache.capacity, "nothing stays locked"
    forest.cache.check()


def test_paths_are_shared() -> None:
    figures = row(3_000, 100, "lru", 3)
    nodes, tokens = figures["nodes"], figures["tokens"]
    assert isinstance(nodes, int) and isinstance(tokens, int) and 50 <= nodes <= 80 and tokens >= 3_000
