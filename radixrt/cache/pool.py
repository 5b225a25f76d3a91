"""The slot pool: which KV slots are free, handed out in runs as long as possible."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from itertools import pairwise
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Slots: TypeAlias = NDArray[np.int32]


class SlotError(RuntimeError):
    """A slot was freed twice or an invariant of the cache does not hold: a fault of radixrt, never of a request."""


class SlotPool:
    """Free slots 0..capacity-1 as maximal runs [start, end), found by length (best fit) and by neighbour.

    A node whose slots are one run is read by attention as a slice, without a gather; so an allocation takes the
    smallest run that holds all of it, and only when none does is it pieced together from the longest ones.
    Costs: O(log runs) to find, a list insertion to keep the runs sorted.
    """

    def __init__(self, capacity: int) -> None:
        if capacity < 1:
            raise ValueError("a pool needs at least one slot")
        self.capacity = capacity
        self.free = capacity
        self._used = np.zeros(capacity, dtype=bool)
        self._end_of: dict[int, int] = {0: capacity}
        self._start_of: dict[int, int] = {capacity: 0}
        self._by_length: list[tuple[int, int]] = [(capacity, 0)]

    @property
    def used(self) -> int:
        return self.capacity - self.free

    def allocate(self, count: int, after: int | None = None) -> Slots | None:
        """`count` slots, int32[count], in ascending runs; None when fewer are free (nothing is taken then).

        With `after` the run that begins right behind that slot is used first, so that a growing row stays one run.
        """
        if count > self.free:
            return None
        parts: list[Slots] = []
        left = count
        if after is not None and left and after + 1 in self._end_of:
            left -= self._take(after + 1, left, parts)
        while left:
            i = bisect_left(self._by_length, (left, -1))
            _, start = self._by_length[i] if i < len(self._by_length) else self._by_length[-1]
            left -= self._take(start, left, parts)
        return parts[0] if len(parts) == 1 else np.concatenate(parts) if parts else np.empty(0, np.int32)

    def release(self, slots: Sequence[int] | Slots) -> None:
        """Give slots back, in any order. Raises SlotError when one of them is free already (nothing is changed)."""
        given = np.sort(np.asarray(slots, dtype=np.int32))
        if not given.size:
            return
        if given[0] < 0 or given[-1] >= self.capacity or not self._used[given].all() or (given[1:] == given[:-1]).any():
            raise SlotError("a slot was freed that is not in use")
        self._used[given] = False
        self.free += given.size
        breaks = np.flatnonzero(np.diff(given) != 1) + 1
        edges = [0, *breaks.tolist(), given.size]
        for a, b in pairwise(edges):
            self._give(int(given[a]), int(given[b - 1]) + 1)

    def check(self) -> None:
        """Prove that the runs are exactly the free slots, maximal, and indexed the same way everywhere."""
        free = np.ones(self.capacity, dtype=bool)
        for start, end in self._end_of.items():
            if self._start_of.get(end) != start or end in self._end_of or not 0 <= start < end <= self.capacity:
                raise SlotError(f"free run [{start}, {end}) is malformed or not maximal")
            free[start:end] = False
        if not np.array_equal(free, self._used):
            raise SlotError("the free runs differ from the slots in use")
        if sorted((end - start, start) for start, end in self._end_of.items()) != self._by_length:
            raise SlotError("the index by length differs from the free runs")
        if int((~self._used).sum()) != self.free or len(self._start_of) != len(self._end_of):
            raise SlotError("the count of free slots is wrong")

    @property
    def used_mask(self) -> NDArray[np.bool_]:
        """bool[capacity], True where a slot is in use (for checks; not a copy)."""
        return self._used

    def _take(self, start: int, count: int, parts: list[Slots]) -> int:
        end = self._end_of[start]
        taken = min(count, end - start)
        self._forget(start, end)
        if start + taken < end:
            self._remember(start + taken, end)
        parts.append(np.arange(start, start + taken, dtype=np.int32))
        self._used[start : start + taken] = True
        self.free -= taken
        return taken

    def _give(self, start: int, end: int) -> None:
        if end in self._end_of:
            following = self._end_of[end]
            self._forget(end, following)
            end = following
        if start in self._start_of:
            preceding = self._start_of[start]
            self._forget(preceding, start)
            start = preceding
        self._remember(start, end)

    def _remember(self, start: int, end: int) -> None:
        self._end_of[start] = end
        self._start_of[end] = start
        insort(self._by_length, (end - start, start))

    def _forget(self, start: int, end: int) -> None:
        del self._end_of[start]
        del self._start_of[end]
        del self._by_length[bisect_left(self._by_length, (end - start, start))]
