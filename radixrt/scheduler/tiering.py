"""The tree's side of a tier: what is saved when it leaves the tree, and what comes back before it is computed again.

The scheduler knows keys and slots, the runner has the bytes: TierWork goes out in order with the plans, so that a slot
is copied before a later plan writes it, and TierDone says when a prefetch is in its slots. A waiting row is held back
while a prefetch for it is under way, but only as long as `RestoreRule` says; everybody else goes on.

A prefetch owns its slots and holds one lock on the path that it continues. All that a tier does may fail at any time;
then the tokens are computed, as they are without a tier.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

import numpy as np

from radixrt.cache import Ids, Node
from radixrt.messages import Namespace, TierDone, TierState, TierWork
from radixrt.scheduler.requests import Row, State
from radixrt.scheduler.rows import RowTable
from radixrt.scheduler.tier_rule import RestoreRule
from radixrt.scheduler.tier_saving import Saves, key_array, key_list, slot_array
from radixrt.tiers.keys import CHUNK, chunk_keys, owner_label

MOST_PREFETCHES = 8
"""Under way at once."""
TRIES = 2
"""Prefetches for one row between two admissions: what was evicted again before it got in is computed."""
SWEEP, SWEEP_BYTES = 64, 64 << 20
"""Chunks and bytes that are saved at once while nothing runs."""
PAUSE_S = 30.0
"""Nothing is swept for so long after the tier has refused a chunk: the disk is full, or broken."""
USED = 512
"""Keys of chunks that were used in the pool are told to the tier with other work, or when there are so many."""


@dataclass(eq=False)
class Prefetch:
    """Chunks on their way into the pool: tokens [start, start + len(slots)) of `row`, of which the tree has those up to
    `cached`, where `node` ends."""

    row: Row
    node: Node
    cached: int
    start: int
    tokens: Ids
    slots: list[int]
    keys: list[bytes]
    give_up: float
    """When those who wait stop waiting, clock reading."""
    waiting: list[Row] = field(default_factory=list)
    void: bool = False
    """The tree was cleared meanwhile: the slots are given back when they come."""


@dataclass(eq=False)
class Memory:
    """What is remembered of a waiting row."""

    keys: list[bytes] = field(default_factory=list)
    admitted: int = 0
    tries: int = 0
    seen: tuple[int, int] = (-1, -1)
    """(additions to the index, evictions) when nothing was to be had for it."""


@dataclass(eq=False)
class TierCounts:
    """Since start, in tokens where nothing else is said."""

    stored: int = 0
    refused: int = 0
    restored: int = 0
    prefetches: int = 0
    """Number of prefetches."""
    hits: int = 0
    """Of these, those that brought all they were asked for."""
    given_up: int = 0
    """Rows that stopped waiting for one."""
    errors: int = 0


class Tiering:
    """All of it; inert where `state` is None."""

    def __init__(self, rows: RowTable, state: TierState | None = None) -> None:
        self.rows = rows
        self.state = state
        self.rule = RestoreRule()
        self.counts = TierCounts()
        self.used_bytes = state.used_bytes if state is not None else 0
        self.index: set[bytes] = set(key_list(state.keys)) if state is not None else set()
        self.work: list[TierWork] = []
        """To be sent before the next plan, in order; the caller clears it."""
        self.prefetches: dict[int, Prefetch] = {}
        self.saving: dict[int, list[bytes]] = {}
        self._saved: set[bytes] = set()
        self._loading: dict[bytes, Prefetch] = {}
        self._memory: WeakKeyDictionary[Row, Memory] = WeakKeyDictionary()
        self._saves = Saves(self._wanted)
        self._used: list[bytes] = []
        self._number = self._settled = self._added = self._swept = 0
        self._paused_until = 0.0
        self._batch = max(1, min(SWEEP, SWEEP_BYTES // state.chunk_bytes)) if state is not None else 0
        if state is not None:
            rows.cache.tree.watchers.append(self._saves)
            rows.lent = self.slots_held

    # --- planning -------------------------------------------------------------------------------------------------

    def holds(self, row: Row, now: float) -> bool:
        """The waiting row should wait for a prefetch; one is begun where that is worth while. It is woken in the queue
        when there is nothing more to wait for."""
        if not self.index or not isinstance(row.request.namespace, Namespace):
            return False
        memory = self._memory.setdefault(row, Memory())
        if memory.admitted != row.admitted:
            memory.admitted, memory.tries = row.admitted, 0
        if memory.tries >= TRIES or memory.seen == self._changes():
            return False
        job = self._find(row, memory, now)
        if job is not None:
            job.waiting.append(row)
        return job is not None

    def arrived(self, rows: Sequence[Row], now: float) -> None:
        """New rows wait: what they need is fetched at once, not only when a step has room for them."""
        for row in rows:
            if not self.rows.full and self.holds(row, now):
                self.rows.waiting.park(row)

    def expire(self, now: float) -> None:
        """Rows whose prefetch takes longer than computing would have taken go on without it."""
        for job in self.prefetches.values():
            if job.waiting and now >= job.give_up:
                self.counts.given_up += len(job.waiting)
                for row in job.waiting:
                    self._memory[row].tries = TRIES
                self._wake(job)

    def pack(self) -> list[TierWork]:
        """What must be sent before the next plan; taken from here."""
        if self._saves.keys or len(self._used) >= USED:
            self._send()
        work, self.work = self.work, []
        return work

    def seconds_left(self, now: float) -> float | None:
        """Until the first row that waits gives up; None where none waits."""
        return min((max(job.give_up - now, 0.0) for job in self.prefetches.values() if job.waiting), default=None)

    # --- events ---------------------------------------------------------------------------------------------------

    def settled(self, step: int, tokens: int = 0, seconds: float = 0.0) -> None:
        """A step's result is known (failed ones, too: then without `tokens`)."""
        self._settled = step
        self.rule.computed(tokens, seconds)

    def done(self, message: TierDone, now: float) -> None:
        """What the runner says of one TierWork."""
        stored = key_list(message.stored)
        self._saved.difference_update(self.saving.pop(message.number, ()))
        self._added += len(stored)
        self.index.update(stored)
        self.index.difference_update(key_list(message.dropped))
        self.counts.stored += len(stored) * CHUNK
        self.counts.refused += message.refused * CHUNK
        if message.refused:
            self._paused_until = now + PAUSE_S
            self._swept = 0
        self.counts.errors += message.errors
        self.used_bytes = message.used_bytes
        job = self.prefetches.pop(message.number, None)
        if job is not None:
            self._take_in(job, message, now)

    def admitted(self, row: Row) -> None:
        """The row was admitted: the chunks that it found in the tree were used, its first one last of all."""
        memory = self._memory.get(row)
        if memory is not None:
            self._used.extend(reversed(memory.keys[: row.in_tree // CHUNK]))

    def sweep(self, now: float) -> bool:
        """Nothing runs: save some of what the tree holds and the tier does not. False when there is no more of it."""
        mark = self._mark()
        if self.state is None or self._swept == mark or now < self._paused_until:
            return False
        more = self._saves.sweep(self.rows.cache.tree, self._batch)
        if not more:
            self._swept = mark
        return bool(self._saves.keys)

    def behind(self, now: float) -> bool:
        """The tree holds something that a sweep might save, and no earlier one is still being stored."""
        return self.state is not None and self._swept != self._mark() and not self._saved and now >= self._paused_until

    def save_more(self, now: float) -> int | None:
        """Save all that the tree holds, a batch a call; called again at each TierDone. The number of the TierWork whose
        end says that all is safe; None where batches are being stored before."""
        if self._saved:
            return None
        if now >= self._paused_until:
            self._saves.sweep(self.rows.cache.tree, self._batch)
        if self._saves.keys:
            self._send()
            return None
        return self._send(sync=True)

    def void(self, owner: Namespace | None = None) -> None:
        """What the tree holds is to be forgotten, of everybody or of this owner: so is what is on its way."""
        label = b"" if owner is None else owner_label(owner)
        for job in self.prefetches.values():
            if not job.void and job.keys[0].startswith(label):
                job.void = True
                self._wake(job)
                self.rows.cache.tree.unlock(job.node)
                for key in job.keys:
                    self._loading.pop(key, None)
        self._saved.difference_update(self._saves.forget(label))

    def clear(self, owner: Namespace | None = None) -> None:
        """Forget what the tier holds: all of it, or what is this owner's under whatever salt."""
        if self.state is None:
            return
        self.void(owner)
        label = b"" if owner is None else owner_label(owner)
        gone = [key for key in (*self.index, *self._saved) if key.startswith(label)]
        self.index.difference_update(gone)
        self._used = [key for key in self._used if not key.startswith(label)]
        self._send(drop=gone)

    def slots_held(self) -> Iterator[int]:
        """Slots that prefetches own."""
        for job in self.prefetches.values():
            yield from job.slots

    # --- inside ---------------------------------------------------------------------------------------------------

    def _wanted(self, key: bytes) -> bool:
        if key in self.index or key in self._saved:
            return False
        self._saved.add(key)
        return True

    def _mark(self) -> int:
        """Changes whenever the tree has grown."""
        tree = self.rows.cache.tree
        return 1 + tree.tokens + tree.evicted

    def _changes(self) -> tuple[int, int]:
        """Before one of these changes, nothing new is to be had for a row."""
        return self._added, self.rows.cache.tree.evicted

    def _find(self, row: Row, memory: Memory, now: float) -> Prefetch | None:
        """The prefetch that the row should wait for: one under way, or one that is begun here; None where none pays."""
        tree, namespace = self.rows.cache.tree, row.request.namespace
        limit = row.match_limit
        cached = tree.probe(namespace, row.tokens, limit)
        first = cached // CHUNK
        if (first + 1) * CHUNK > limit:
            memory.seen = self._changes()
            return None
        if isinstance(namespace, Namespace):
            memory.keys = chunk_keys(namespace, row.tokens, memory.keys)
        under_way = self._loading.get(memory.keys[first])
        if under_way is not None:
            return under_way
        end = first
        while (end + 1) * CHUNK <= limit and memory.keys[end] in self.index and memory.keys[end] not in self._loading:
            end += 1
        gain = end * CHUNK - cached
        if end == first or not self.rule.pays(gain, now):
            memory.seen = self._changes()
            return None
        if len(self.prefetches) >= MOST_PREFETCHES or self.rows.computed_by_another(row, cached):
            return None
        memory.tries += 1
        return self._begin(row, memory.keys[first:end], cached, now)

    def _begin(self, row: Row, keys: list[bytes], cached: int, now: float) -> Prefetch | None:
        cache = self.rows.cache
        node, cached = cache.tree.match(row.request.namespace, row.tokens, cached)
        cache.tree.lock(node)
        start = cached // CHUNK * CHUNK
        # What runs must be able to go on meanwhile: one step's growth of everybody stays free.
        room = cache.available - self.rows.limits.growth * len(self.rows.running)
        keys = keys[: max(room // CHUNK, 0)]
        slots = cache.allocate(len(keys) * CHUNK) if keys else None
        if slots is None:
            cache.tree.unlock(node)
            return None
        if self._saves.keys:
            self._send()  # first, and apart: the prefetch must not wait until what it displaces is stored
        count = len(keys) * CHUNK
        tokens = row.tokens[start : start + count]
        give_up = now + self.rule.patience(count)
        job = Prefetch(row, node, cached, start, tokens, slots.tolist(), keys, give_up)
        self._loading.update(dict.fromkeys(keys, job))
        self.counts.prefetches += 1
        self.prefetches[self._send(job)] = job
        return job

    def _wake(self, job: Prefetch) -> None:
        for row in job.waiting:
            self.rows.waiting.wake(row)
        job.waiting.clear()

    def _take_in(self, job: Prefetch, message: TierDone, now: float) -> None:
        """Into the tree with what came; what did not is given back, and computed by whoever needs it."""
        cache = self.rows.cache
        for key in job.keys:
            if self._loading.get(key) is job:
                del self._loading[key]
        self._wake(job)
        loaded, spare = message.loaded * CHUNK, list(job.slots)
        if not job.void:
            skip, end = job.cached - job.start, job.node
            if loaded > skip:
                planned, cache.tree.epoch = cache.tree.epoch, cache.settled  # these tokens wait for no step
                end, known = cache.tree.extend(job.node, job.tokens[skip:loaded], job.slots[skip:loaded])
                cache.tree.epoch = planned
                cache.tree.touch(end)
                spare = job.slots[: skip + known] + job.slots[loaded:]
                gained = loaded - skip - known
                self.counts.restored += gained
                if job.row.request.started is None and job.row.state is State.WAITING:
                    job.row.request.restored_tokens += gained
            cache.tree.unlock(end)
            self.counts.hits += message.loaded == len(job.keys)
            self.rule.restored(loaded, message.load_s, now)
        cache.release(spare)

    def _send(self, job: Prefetch | None = None, *, drop: Sequence[bytes] = (), sync: bool = False) -> int:
        self._number += 1
        self.saving[self._number] = list(self._saves.keys)
        save_keys, save_slots = self._saves.take()
        used, self._used = self._used, []
        slots = np.array(job.slots if job is not None else [], dtype=np.int32)
        self.work.append(
            TierWork(
                number=self._number,
                settled=self._settled,
                save_keys=save_keys,
                save_slots=save_slots,
                load_keys=key_array(job.keys if job is not None else []),
                load_slots=slots.reshape(-1, CHUNK) if slots.size else slot_array([]),
                used_keys=key_array(used),
                drop_keys=key_array(list(drop)),
                sync=sync,
            )
        )
        return self._number
