"""The slot pool against a plain set of free slots."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from radixrt.cache import SlotError, SlotPool


def test_an_allocation_takes_the_smallest_run_that_holds_it() -> None:
    pool = SlotPool(100)
    everything = pool.allocate(100)
    assert everything is not None and everything.tolist() == list(range(100))
    pool.release(range(10, 20))
    pool.release(range(40, 45))
    pool.release(range(70, 100))
    assert pool.allocate(5).tolist() == list(range(40, 45))
    assert pool.allocate(9).tolist() == list(range(10, 19))
    assert sorted(pool.allocate(31).tolist()) == [19, *range(70, 100)]


def test_a_growing_row_stays_one_run() -> None:
    pool = SlotPool(32)
    first = pool.allocate(4)
    pool.allocate(4, after=None)
    pool.release([4, 5])
    assert pool.allocate(3, after=int(first[-1])).tolist()[:2] == [4, 5]


def test_too_much_takes_nothing() -> None:
    pool = SlotPool(4)
    assert pool.allocate(5) is None
    assert pool.free == 4


@pytest.mark.parametrize("slots", [[0], [5, 5], [-1], [99]])
def test_a_slot_that_is_not_in_use_cannot_be_freed(slots: list[int]) -> None:
    pool = SlotPool(10)
    pool.allocate(10)
    pool.release([0])
    with pytest.raises(SlotError):
        pool.release(slots)
    pool.check()
    assert pool.free == 1


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 12), st.integers(0, 2**16)), max_size=60))
def test_random_histories_against_a_set(history: list[tuple[bool, int, int]]) -> None:
    pool, free, held = SlotPool(48), set(range(48)), []
    for take, count, pick in history:
        if take:
            after = pick % 50 - 1 if pick % 3 else None
            got = pool.allocate(count, after)
            assert (got is None) == (count > len(free))
            if got is not None:
                assert len(set(got.tolist())) == count and set(got.tolist()) <= free
                free -= set(got.tolist())
                held.extend(got.tolist())
        elif held:
            rng = np.random.default_rng(pick)
            chosen = rng.permutation(held)[:count].tolist()
            pool.release(chosen)
            free |= set(chosen)
            held = [slot for slot in held if slot not in set(chosen)]
        pool.check()
        assert pool.free == len(free) and set(np.flatnonzero(pool.used_mask).tolist()) == set(held)
