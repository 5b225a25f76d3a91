"""From the rows of a step to its StepPlan: depth-first order, shared spans, flat arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec
import numpy as np
from numpy.typing import NDArray

from radixrt.cache import Node, Slots
from radixrt.messages import RowOpen, ScoreSpec, StepPlan
from radixrt.scheduler.drafts.guess import NOTHING, Guess
from radixrt.scheduler.requests import Row

if TYPE_CHECKING:
    from radixrt.scheduler.select import Piece

_NONE = np.empty(0, dtype=np.int32)


@dataclass(eq=False)
class PlannedRow:
    """A row's part of a step: new tokens at [start, start + len(slots)).

    [0 ........... in_tree) [in_tree ... start) [start ... start + len(slots))
     path of the row's node  `own` slots         `slots`, written in this step
    """

    row: Row | Piece
    start: int
    in_tree: int
    own: Slots
    tokens: list[int]
    """Token ids; -1 for one whose id is not known yet."""
    slots: Slots
    sample: bool
    drafts: list[int] = field(default_factory=list)
    """Guesses at the end of `tokens`: what the row may sample next."""
    score: ScoreSpec | None = None
    pool: int = 0
    """As in StepPlan."""
    forced: list[int] = field(default_factory=list)
    """For each line that is sampled, the token its constraint forces (`drafts/lines.py`); filled with the masks."""
    guess: Guess = NOTHING
    """Where `drafts` come from."""
    foretold: int = -1
    """The token that it samples, where that was certain before it came: the row has it already."""
    propose: int = 0
    """How many tokens the draft model shall guess behind what the row samples."""
    branches: list[PlannedRow] = field(default_factory=list)
    """Other continuations, each with one more line than it has `drafts`: what is sampled behind each of its tokens."""
    fork: int = -1
    """Of a branch: how many tokens of the chain come before it."""
    context: list[tuple[Node, int]] = field(default_factory=list)
    """Nodes of the path and how many tokens of each belong to it; filled when the plan is built, since planning other
    rows of the step may still split nodes."""


@dataclass(eq=False)
class Step:
    """A step under way: its rows in plan order."""

    rows: list[PlannedRow]
    plan: StepPlan
    masks_sent: bool


@dataclass(eq=False)
class _Layout:
    """Collects rows in depth-first order and the spans they share."""

    order: list[PlannedRow] = field(default_factory=list)
    private: list[list[Slots]] = field(default_factory=list)
    spans: list[tuple[int, int, int, int]] = field(default_factory=list)
    span_slots: list[Slots] = field(default_factory=list)
    span_length: int = 0
    share_from: int = 256
    """A chain of nodes becomes a shared span when reading it once spares at least this many token reads."""

    def add_span(self, slots: list[Slots], rows: int) -> None:
        length = sum(part.size for part in slots)
        first = len(self.order)
        self.spans.append((self.span_length, length, first, first + rows))
        self.span_slots.extend(slots)
        self.span_length += length


def build_plan(
    step: int,
    planned: Sequence[PlannedRow],
    opens: list[RowOpen],
    closes: list[int],
    masked: set[Row],
    share_from: int = 256,
) -> tuple[StepPlan, list[PlannedRow]]:
    """The plan and its rows in plan order. `masked`: rows whose sample needs a token mask; `share_from`: token reads
    that a shared span must spare."""
    items = [*planned, *(branch for item in planned for branch in item.branches)]
    for item in items:
        item.context = _context(item)
    layout = _Layout(share_from=share_from)
    _visit(items, 0, layout)
    order = layout.order
    places = {item: index for index, item in enumerate(order)} if len(items) > len(planned) else {}
    scores: list[ScoreSpec] = []
    for index, item in enumerate(order):
        if item.score is not None:
            scores.append(msgspec.structs.replace(item.score, row_index=index))
    private = [_join(parts) for parts in layout.private]
    plan = StepPlan(
        step=step,
        opens=opens,
        closes=closes,
        rows=_ints([item.row.id for item in order]),
        new_lens=_ints([item.slots.size for item in order]),
        tokens=_ints([token for item in order for token in item.tokens]),
        positions=_join([np.arange(item.start, item.start + item.slots.size, dtype=np.int32) for item in order]),
        slots=_join([item.slots for item in order]),
        private_lens=_ints([part.size for part in private]),
        private_slots=_join(private),
        spans=_ints([number for span in layout.spans for number in span]).reshape(-1, 4),
        span_slots=_join(layout.span_slots),
        sample=np.array([item.sample for item in order], dtype=np.uint8),
        drafts=_ints([len(item.drafts) for item in order]),
        masked=_ints([i for i, item in enumerate(order) if item.sample and item.row in masked]),
        scores=scores,
        pool=_pool(order),
        branches=_ints(
            [n for item in planned for one in item.branches for n in (places[one], places[item], one.fork)]
        ).reshape(-1, 3),
        propose=_ints([item.propose for item in order]),
    )
    return plan, order


def _pool(order: Sequence[PlannedRow]) -> NDArray[np.uint8] | None:
    return np.array([item.pool for item in order], dtype=np.uint8) if any(item.pool for item in order) else None


def branches_of(item: PlannedRow, slots: Sequence[int]) -> list[PlannedRow]:
    """A row's branches as rows of the step: they read the chain up to their fork and write `slots`, one a token."""
    chain, first, rows = item.slots[item.slots.size - len(item.drafts) :], item.start + item.slots.size, []
    first -= len(item.drafts)
    for branch in item.guess.branches:
        rows.append(
            PlannedRow(
                row=item.row,
                start=first + branch.fork,
                in_tree=first,
                own=chain[: branch.fork],
                tokens=branch.tokens,
                slots=np.array(slots[: len(branch.tokens)], dtype=np.int32),
                sample=True,
                drafts=branch.tokens[1:],
                fork=branch.fork,
            )
        )
        slots = slots[len(branch.tokens) :]
    return rows


def _context(item: PlannedRow) -> list[tuple[Node, int]]:
    """The row's path cut to its first `in_tree` tokens (its node may have grown past them in this very step)."""
    node, left = item.row.node, item.in_tree
    context = []
    for step in node.path() if node is not None else ():
        taken = min(len(step), left)
        if not taken:
            break
        context.append((step, taken))
        left -= taken
    return context


def _visit(rows: list[PlannedRow], depth: int, layout: _Layout) -> None:
    """Lay out `rows`, which share the first `depth` nodes of their contexts (already given out above)."""
    chain: list[Slots] = []
    while True:
        enders = [item for item in rows if not _whole(item, depth)]
        groups: dict[int, list[PlannedRow]] = {}
        for item in rows:
            if _whole(item, depth):
                groups.setdefault(id(item.context[depth][0]), []).append(item)
        if enders or len(groups) != 1:
            break
        chain.append(rows[0].context[depth][0].slot_array())
        depth += 1
    kept: list[Slots] = []
    if chain:
        if (len(rows) - 1) * sum(part.size for part in chain) >= layout.share_from:
            layout.add_span(chain, len(rows))
        else:
            kept = chain
    first = len(layout.order)
    for item in enders:
        rest = [node.slot_array(taken) for node, taken in item.context[depth:]]
        layout.order.append(item)
        layout.private.append([*rest, item.own])
    for group in groups.values():
        _visit(group, depth, layout)
    if kept:
        for parts in layout.private[first:]:
            parts[:0] = kept


def _whole(item: PlannedRow, depth: int) -> bool:
    """The row reads all of the node at this depth, so it may share it."""
    return depth < len(item.context) and item.context[depth][1] == len(item.context[depth][0])


def _ints(values: list[int]) -> NDArray[np.int32]:
    return np.array(values, dtype=np.int32)


def _join(parts: Sequence[Slots]) -> Slots:
    return np.concatenate(parts) if parts else _NONE
