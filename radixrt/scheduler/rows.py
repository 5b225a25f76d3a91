"""Who waits, who runs, and what a running row holds: the moves of the state table with their slots and locks."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np

from radixrt.cache import PrefixCache, Slots, explain
from radixrt.messages import RowOpen
from radixrt.scheduler.policies import PolicyOptions
from radixrt.scheduler.policies.common import common_prefix
from radixrt.scheduler.requests import Limits, Row, State
from radixrt.scheduler.specs import row_open
from radixrt.scheduler.stats import Sum
from radixrt.scheduler.waiting import WaitingQueue


@dataclass(eq=False)
class RowTable:
    """Waiting and running rows. `opens` and `closes` are what the runner must be told with the next step."""

    cache: PrefixCache
    limits: Limits
    policy: PolicyOptions = field(default_factory=PolicyOptions)
    waiting: WaitingQueue = field(init=False)
    running: list[Row] = field(default_factory=list)
    """In order of admission."""
    opens: list[RowOpen] = field(default_factory=list)
    closes: list[int] = field(default_factory=list)
    retractions: int = 0
    on_admit: Callable[[Row], None] = lambda row: None
    """Told of each row that starts, or starts again."""
    relieve: Callable[[], bool] = lambda: False
    """Asked when slots are short: gives up locks of what does not run; whether there were any."""
    lent: Callable[[], Iterable[int]] = tuple
    """Slots that neither the tree nor a row owns: those of prefetches."""
    locked: Sum = field(default_factory=Sum)
    """Seconds that rows held their paths."""
    _free_ids: list[int] = field(default_factory=list)
    _admissions: int = 0

    def __post_init__(self) -> None:
        self._free_ids = list(range(self.limits.max_num_seqs - 1, -1, -1))
        self.waiting = WaitingQueue(self.policy, self)

    @property
    def full(self) -> bool:
        return not self._free_ids

    def cached(self, row: Row) -> int:
        """How many of a row's tokens the tree has that the row may use."""
        return self.cache.tree.probe(row.request.namespace, row.tokens, row.match_limit)

    @property
    def tight(self) -> bool:
        """The next step's new tokens would evict others."""
        return self.cache.pool.free < self.limits.max_num_batched_tokens

    def reach(self, row: Row) -> int:
        """How many of a row's tokens the tree has, or will have once those who compute their prompts now are done."""
        reach = self.cached(row)
        for other in self._prefilling(row):
            if reach < len(other.tokens) and other.tokens[: reach + 1] == row.tokens[: reach + 1]:
                reach = max(reach, common_prefix(other.tokens, row.tokens, row.match_limit))
        return reach

    def admit(self, row: Row, now: float) -> bool:
        """Start a waiting row on the longest prefix that the tree has; False: it must wait a little longer."""
        tree, request = self.cache.tree, row.request
        leader = self.computed_by_another(row, self.cached(row))
        if leader is not None:
            self.waiting.park(row, leader)
            return False
        node, length = tree.match(request.namespace, row.tokens, row.match_limit)
        tree.lock(node)
        # One step's growth of everybody else stays free, so that an admission does not lead to a retraction at once.
        wanted = row.goal - length + len(self.running) + 1
        if self.running and wanted > self.cache.available and not (self.relieve() and wanted <= self.cache.available):
            tree.unlock(node)
            return False
        self.waiting.admitted(row)
        self.running.append(row)
        row.move(State.RUNNING)
        row.node, row.in_tree, row.planned = node, length, length
        self._admissions += 1
        row.admitted = self._admissions
        if request.started is None:
            request.started = now
            request.cached_tokens = length
            tree.hit(node, request.priority)
            self.cache.count_hits(node, request.restored_tokens)
            if request.sampling.return_cache_report and length < row.match_limit:
                request.miss = explain(node, row.tokens, length)
        else:
            tree.touch(node)
        row.locked_at = now
        row.id = self._free_ids.pop()
        self.opens.append(row_open(row, self.limits))
        self.on_admit(row)
        return True

    def computed_by_another(self, row: Row, cached: int) -> Row | None:
        """The running row that is about to compute the token that comes after this row's cached prefix."""
        if cached >= row.match_limit:
            return None
        for other in self._prefilling(row):
            if other.planned <= cached < len(other.tokens) and other.tokens[: cached + 1] == row.tokens[: cached + 1]:
                return other
        return None

    def _prefilling(self, row: Row) -> Iterator[Row]:
        """Rows of the same namespace that compute their prompts."""
        namespace = row.request.namespace
        return (other for other in self.running if other.prefilling and other.request.namespace == namespace)

    def slots_for(self, row: Row, count: int, busy: Collection[Row]) -> Slots:
        """Slots for the row's next `count` tokens; fewer, down to none, under pressure that retraction cannot ease.

        Younger rows make room for older ones, so the oldest always goes on; `busy` rows are in this step already.
        """
        after = row.last_slot
        if count <= self.limits.growth:
            if len(row.reserve) < count:
                last = row.reserve[0] if row.reserve else after
                ahead = self.cache.allocate(min(self.limits.growth, row.room - len(row.reserve)), last)
                row.reserve[:0] = [] if ahead is None else ahead[::-1].tolist()
            if len(row.reserve) >= count:
                return np.array([row.reserve.pop() for _ in range(count)], dtype=np.int32)
        while True:
            slots = self.cache.allocate(count, after)
            if slots is not None:
                return slots
            if self._drop_reserves() or self.relieve():
                continue
            victims = [other for other in self.running if other not in busy and other is not row]
            if victims and victims[-1].admitted > row.admitted:
                self.retract(victims[-1])
            elif self.cache.available:
                count = min(count, self.cache.available)
            elif len(self.running) == 1 and self.cache.pins.give_way(count):
                continue  # alone, and everything else is given up: nobody waits for a pin for ever
            else:
                self.retract(row)
                return np.empty(0, dtype=np.int32)

    def spare_slots(self, row: Row, count: int) -> list[int]:
        """At most `count` slots for guesses: those that the row holds ahead, and what is to be had at nobody's cost."""
        missing = count - len(row.reserve)
        if missing > 0 and self.cache.available - missing > len(self.running):
            last = row.reserve[0] if row.reserve else row.last_slot
            ahead = self.cache.allocate(missing, last)
            row.reserve[:0] = [] if ahead is None else ahead[::-1].tolist()
        return [row.reserve.pop() for _ in range(min(count, len(row.reserve)))]

    def settle_guesses(self, row: Row) -> None:
        """The row's guesses are over: slots of those that did not hold are its next ones."""
        row.drafting = False
        row.reserve.extend(reversed(row.own))
        row.own = []
        row.planned = row.in_tree

    def _drop_reserves(self) -> bool:
        """Take back the slots that rows hold ahead of their need."""
        held = [row for row in self.running if row.reserve]
        for row in held:
            self.cache.release(row.reserve)
            row.reserve = []
        return bool(held)

    def retract(self, row: Row) -> None:
        """Send a running row back to the queue; what it computed stays in the tree, evictable, and its tokens stay."""
        self.stop(row)
        row.move(State.WAITING)
        self.waiting.append(row)
        self.retractions += 1

    def end(self, row: Row) -> None:
        """Move a row out for good."""
        if row.state is State.RUNNING:
            self.stop(row)
        elif row in self.waiting:
            self.waiting.remove(row)
        row.move(State.FINISHED)
        row.matcher = None

    def check(self) -> None:
        """Prove that every slot has exactly one owner; SlotError otherwise."""
        self.cache.check([*self.lent(), *(slot for row in self.running for slot in row.slots_held())])

    def stop(self, row: Row) -> None:
        """Give back everything a running row holds; its computed tokens stay in the tree.

        Steps under way may still write its own slots: they do so before any later step that is given them.
        """
        if row.node is not None:
            self.cache.tree.unlock(row.node)
            self.locked.add(self.cache.clock() - row.locked_at)
        self.cache.release([*row.own, *row.reserve])
        row.node, row.own, row.reserve = None, [], []
        row.in_tree = row.planned = 0
        row.drafting = False
        self.running.remove(row)
        opened = [spec for spec in self.opens if spec.row == row.id]
        if opened:
            self.opens.remove(opened[0])
        else:
            self.closes.append(row.id)
        self._free_ids.append(row.id)
        row.id = -1
