"""What goes into a step: tokens of running rows first, then pieces of selects, then rows that start."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from radixrt.cache import PrefixCache
from radixrt.results import FinishReason
from radixrt.scheduler.batch import PlannedRow, branches_of
from radixrt.scheduler.drafts.drafter import Drafter
from radixrt.scheduler.drafts.guess import NOTHING
from radixrt.scheduler.embeds import SUM
from radixrt.scheduler.requests import Limits, Row
from radixrt.scheduler.rows import RowTable
from radixrt.scheduler.select import Selects
from radixrt.scheduler.specs import score_spec
from radixrt.scheduler.tiering import Tiering


@dataclass(eq=False)
class Planner:
    """Fills steps, within the budget of tokens and as far as there are slots; rows are admitted on the way."""

    rows: RowTable
    limits: Limits
    selects: Selects
    tiering: Tiering
    drafter: Drafter
    clock: Callable[[], float]
    finish: Callable[[Row, FinishReason], None]
    """Called for a row that samples nothing and whose prompt the tree already has: it ends where it began."""

    @property
    def cache(self) -> PrefixCache:
        return self.rows.cache

    def fill(self, step: int) -> tuple[dict[Row, PlannedRow], list[PlannedRow]]:
        """The rows of step `step`, and the pieces of selects in it."""
        planned: dict[Row, PlannedRow] = {}
        leftover: list[int] = []
        budget = self.limits.max_num_batched_tokens
        retractions = self.rows.retractions
        self.cache.begin_step(step)
        for row in list(self.rows.running):
            if budget and row.ready:
                budget -= self._plan_row(row, budget, planned, leftover)
        now = self.clock()
        crowded = bool(self.rows.waiting) and not self.rows.full
        pieces = self.selects.plan(step, budget, shared=crowded, leftover=leftover)
        budget -= sum(piece.slots.size for piece in pieces)
        open_to_new = budget and not self.rows.full and not self.selects.blocked
        for row in self.rows.waiting.candidates(now) if open_to_new else ():
            # After a retraction nobody new comes in: the pool is too small for those who run.
            if self.tiering.holds(row, now):
                self.rows.waiting.park(row)
            elif self.rows.retractions == retractions and self.rows.admit(row, now):
                self.tiering.admitted(row)
                if row.ready:
                    budget -= self._plan_row(row, budget, planned, leftover)
                else:
                    self.finish(row, "length")
            if not budget or self.rows.full or self.rows.retractions > retractions:
                break
        # Only now: a slot that was freed while planning must not be written twice by this step.
        self.cache.release(leftover)
        return planned, pieces

    def _plan_row(self, row: Row, budget: int, planned: dict[Row, PlannedRow], leftover: list[int]) -> int:
        """Put the row's next tokens into the step, `budget` at most; how many. 0 where there was no slot for any."""
        wanted = min(row.goal - row.planned, budget)
        slots = self.rows.slots_for(row, wanted, planned)
        count, start, rows = len(slots), row.planned, len(self.rows.running)
        if not count or row.node is None:
            return 0
        sample = start + count == row.total and row.left > 0
        known = row.tokens[start : start + count]
        guess = self.drafter.propose(row, budget - count, rows) if sample else NOTHING
        extra = self.rows.spare_slots(row, guess.size)
        guess = guess.cut(len(extra))
        item = PlannedRow(
            row=row,
            start=start,
            in_tree=row.in_tree,
            own=np.array(row.own, dtype=np.int32),
            tokens=[*known, *[-1] * (count - len(known)), *guess.chain],
            slots=np.concatenate([slots, np.array(extra[: len(guess.chain)], dtype=np.int32)]),
            sample=sample,
            drafts=guess.chain,
            score=score_spec(row, start, count),
            pool=row.request.pool if row.request.pool == SUM or start + count == row.goal else 0,
            guess=guess,
            propose=self.drafter.wanted(row, guess, rows) if sample else 0,
        )
        item.branches = branches_of(item, extra[len(guess.chain) :])
        if known:
            # In the tree at once: rows of this step and later ones may read what this step computes.
            row.node, duplicates = self.cache.tree.extend(
                row.node, known, slots[: len(known)].tolist(), row.request.priority
            )
            row.in_tree += len(known)
            leftover.extend(slots[:duplicates].tolist())
        row.own.extend([*slots[len(known) :].tolist(), *extra])
        row.planned += count + len(guess.chain)
        row.pending += sample
        row.drafting = bool(extra)
        planned[row] = item
        self.rows.waiting.charge(row, count)
        return count + len(extra)
