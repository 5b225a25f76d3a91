"""A StepPlan, checked and laid out: nothing that contradicts itself, or what the runner knows, gets to the model."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from radixrt.messages import StepPlan
from radixrt.runner.rows import FRESH, LOST, PlanError, Rows
from radixrt.runner.verify import Standing, standing


@dataclass(frozen=True)
class Limits:
    """What ids of a plan must stay below."""

    vocab_size: int
    kv_tokens: int
    context_length: int


@dataclass(frozen=True)
class Layout:
    """What follows from a plan. R: rows, T: new tokens, K: sampled lines, P: tokens to be filled in."""

    rows: np.ndarray  # int64[R] row ids
    ends: np.ndarray  # int64[R] index behind each row's new tokens
    sampled: np.ndarray  # int64[K] row index of each line that is sampled: 1 + drafts lines a sampled row
    at: np.ndarray  # int64[K] index of the new token whose logits the line samples
    filled: np.ndarray  # int64[P] indexes of tokens that are -1
    filled_rows: np.ndarray  # int64[P] the row ids whose last token goes there
    lost: np.ndarray  # bool[R] rows planned on a token that does not exist: they run, and sample nothing
    masked: np.ndarray  # int64[M'] indexes into `sampled`: the lines of the masked rows
    standing: Standing | None  # on which guesses each line stands; None where there are none

    def starts_of(self, index: int) -> int:
        """Index of the first new token of row `index`."""
        return int(self.ends[index - 1]) if index else 0


def lay_out(plan: StepPlan, rows: Rows, limits: Limits) -> Layout:
    """Check `plan` and work out its layout. PlanError, naming the field, where something does not fit.

    A few dozen numpy calls, about 0.1 ms: nothing here is done row by row.
    """
    for name in ("rows", "new_lens", "tokens", "positions", "slots", "private_lens", "private_slots", "span_slots",
                 "drafts", "masked"):  # fmt: skip
        _check(getattr(plan, name).ndim == 1, name, "must have one dimension")
        _check(getattr(plan, name).dtype.kind in "iu", name, "must hold integers")
    count, tokens = len(plan.rows), len(plan.tokens)
    _check(count > 0, "rows", "is empty")
    for name, length in (("new_lens", count), ("private_lens", count), ("sample", count), ("drafts", count),
                         ("positions", tokens), ("slots", tokens)):  # fmt: skip
        _check(getattr(plan, name).shape == (length,), name, f"must have length {length}")

    ids = plan.rows.astype(np.int64)
    named = ids[ids != -1]
    _within(named, 0, len(rows.is_open), "rows")
    _check(rows.is_open[named].all(), "rows", "names a row that is not open")
    main = np.ones(count, bool)
    main[_check_branches(plan, ids)] = False
    _distinct(ids[main & (ids != -1)], "rows")
    _check((plan.sample[ids == -1] == 0).all(), "sample", "asks for a token of a row without an id")
    lens = plan.new_lens.astype(np.int64)
    _check((lens >= 1).all() and int(lens.sum()) == tokens, "new_lens", "does not add up to the tokens")
    _within(plan.tokens, -1, limits.vocab_size, "tokens")
    _within(plan.positions, 0, limits.context_length, "positions")
    _within(plan.slots, 0, limits.kv_tokens, "slots")
    _distinct(plan.slots, "slots")
    private = plan.private_lens.astype(np.int64)
    _check((private >= 0).all() and int(private.sum()) == len(plan.private_slots), "private_lens", "does not add up")
    _within(plan.private_slots, 0, limits.kv_tokens, "private_slots")
    _within(plan.span_slots, 0, limits.kv_tokens, "span_slots")
    _check_spans(plan, count)
    _check_scores(plan, lens, limits)
    if plan.pool is not None:
        _check(plan.pool.shape == (count,), "pool", f"must have length {count}")
        _within(plan.pool, 0, 3, "pool")

    ends = lens.cumsum()
    drafts = plan.drafts.astype(np.int64)
    _check((drafts >= 0).all() and (drafts < lens).all(), "drafts", "must be fewer than the row's new tokens")
    lines = np.where(plan.sample != 0, drafts + 1, 0)
    _check((lines[drafts > 0] > 0).all(), "drafts", "belong to a row that is not sampled")
    first = lines.cumsum() - lines
    sampled = np.repeat(np.arange(count), lines)
    at = ends[sampled] - lines[sampled] + _counted(lines)
    _within(plan.masked, 0, count, "masked")
    _distinct(plan.masked, "masked")
    _check((lines[plan.masked] > 0).all(), "masked", "names a row that is not sampled")
    masked_lines = lines[plan.masked]
    masked = np.repeat(first[plan.masked], masked_lines) + _counted(masked_lines)

    filled = np.flatnonzero(plan.tokens == -1)
    filled_index = np.repeat(np.arange(count), lens)[filled]
    _distinct(filled_index, "tokens")
    _check(main[filled_index].all(), "tokens", "asks for the last token on a branch")
    filled_rows = ids[filled_index]
    _check((filled_rows >= 0).all(), "tokens", "asks for the last token of a row without an id")
    state = rows.state[filled_rows]
    _check((state != FRESH).all(), "tokens", "asks for the last token of a row that has not sampled any")
    lost = np.zeros(count, bool)
    lost[filled_index[state == LOST]] = True
    return Layout(
        rows=ids,
        ends=ends,
        sampled=sampled,
        at=at,
        filled=filled,
        filled_rows=filled_rows,
        lost=lost,
        masked=masked,
        standing=standing(plan, sampled, first, at),
    )


def _counted(lengths: np.ndarray) -> np.ndarray:
    """int64[sum]: 0, 1, .. n - 1 for each n of `lengths`, one after the other."""
    counted: np.ndarray = np.arange(int(lengths.sum())) - np.repeat(lengths.cumsum() - lengths, lengths)
    return counted


def _check_spans(plan: StepPlan, count: int) -> None:
    _check(plan.spans.ndim == 2 and plan.spans.shape[1] == 4, "spans", "must have four columns")
    offset, length, first, end = plan.spans.astype(np.int64).T
    inside = (offset >= 0) & (length >= 0) & (offset + length <= len(plan.span_slots))
    _check(inside.all(), "spans", "reach outside span_slots")
    _check(((first >= 0) & (first < end) & (end <= count)).all(), "spans", "have a row range that is empty or outside")


def _check_branches(plan: StepPlan, ids: np.ndarray) -> np.ndarray:
    """int64[B]: the entries that are branches."""
    if plan.branches is None or not plan.branches.size:
        return np.zeros(0, np.int64)
    _check(plan.branches.ndim == 2 and plan.branches.shape[1] == 3, "branches", "must have three columns")
    _within(plan.branches[:, :2], 0, len(ids), "branches")
    branches: np.ndarray = plan.branches.astype(np.int64)
    entries, mains, forks = branches.T
    _distinct(entries, "branches")
    _check((ids[entries] == ids[mains]).all(), "branches", "branch off another row")
    _check(not np.isin(mains, entries).any(), "branches", "branch off a branch")
    _check(((forks >= 0) & (forks < plan.drafts[mains])).all(), "branches", "fork where there is no guess")
    entry: np.ndarray = entries
    whole = (plan.sample[entries] != 0) & (plan.drafts[entries] == plan.new_lens[entries] - 1)
    _check(whole.all(), "branches", "must be sampled behind each of their tokens")
    return entry


def _check_scores(plan: StepPlan, lens: np.ndarray, limits: Limits) -> None:
    for spec in plan.scores:
        _check(0 <= spec.row_index < len(lens), "scores", "name a row that is not there")
        _check(spec.targets.ndim == 1 and spec.targets.dtype.kind in "iu", "scores", "must have targets")
        at = np.arange(len(spec.targets)) if spec.at is None else spec.at
        _check(at.shape == spec.targets.shape and at.dtype.kind in "iu", "scores", "must have a place for each target")
        fits = at.size > 0 and spec.first >= 0 and at.min() >= 0 and spec.first + at.max() < lens[spec.row_index]
        _check(fits, "scores", "reach outside the row's new tokens")
        _within(spec.targets, 0, limits.vocab_size, "scores")
        _check(0 <= spec.top <= limits.vocab_size, "scores", "ask for more tokens than there are")


def _within(array: np.ndarray, low: int, high: int, name: str) -> None:
    if array.size and (int(array.min()) < low or int(array.max()) >= high):
        raise PlanError(f"{name} holds a number that is not in {low}..{high - 1}")


def _distinct(array: np.ndarray, name: str) -> None:
    if array.size > 1 and (np.diff(np.sort(array)) == 0).any():
        raise PlanError(f"{name} holds a number twice")


def _check(ok: bool | np.bool_, name: str, rule: str) -> None:
    if not ok:
        raise PlanError(f"{name} {rule}")
