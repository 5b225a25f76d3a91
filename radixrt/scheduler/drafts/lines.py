"""Masks for guesses, and which of a step's lines count."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate

import numpy as np

from radixrt.errors import RadixrtError
from radixrt.grammar import Bitmask, GrammarDeadEnd, MaskFiller, Matcher, TokenRefused
from radixrt.grammar.tables import bit
from radixrt.messages import StepResult
from radixrt.scheduler.batch import PlannedRow
from radixrt.scheduler.requests import Row

FREE, ONE_LEFT = -1, -2
"""In `PlannedRow.forced`: no token is forced; only one is possible."""


def fill_lines(
    matcher: Matcher, drafts: Sequence[int], bitmask: Bitmask, first: int, before: Sequence[int] = ()
) -> None:
    """Masks of a row and its guesses: line `first` for what comes behind `before`, each further one behind one more
    guess. A guess that the constraint does not take cannot be sampled either: what stands behind it never counts.
    """
    bitmask[first : first + 1 + len(drafts)] = -1
    taken = 0
    try:
        for line, token in enumerate((*before, *drafts), first - len(before)):
            if line >= first:
                _fill_behind(matcher, bitmask, line, guessed=taken > 0)
            matcher.accept(token)
            taken += 1
        _fill_behind(matcher, bitmask, first + len(drafts), guessed=taken > 0)
    except TokenRefused:
        return
    finally:
        matcher.rollback(taken)


def _fill_behind(matcher: Matcher, bitmask: Bitmask, line: int, *, guessed: bool) -> None:
    try:
        matcher.fill(bitmask, line)
    except GrammarDeadEnd:
        if not guessed:
            raise
        bitmask[line] = 0  # a dead end behind a guess is one only if the guess holds


def _forced(run: list[int], path: list[int], bitmask: Bitmask) -> list[int]:
    """For each line of a row, the last of which stands behind all of `path`: the token that the constraint forces
    there, in one spelling of the only text that may follow (`run`), or as the only one left (ONE_LEFT); else FREE."""
    one_left = (np.bitwise_count(bitmask.view(np.uint32)).sum(axis=1, dtype=np.int64) == 1).tolist()
    forced = []
    for behind, alone in enumerate(one_left, len(path) + 1 - len(one_left)):
        follows = behind < len(run) and run[:behind] == path[:behind]
        forced.append(ONE_LEFT if alone else run[behind] if follows else FREE)
    return forced


def fill_masks(
    masked: Sequence[PlannedRow], rows: Sequence[PlannedRow], words: int, filler: MaskFiller
) -> tuple[Bitmask, list[tuple[Row, RadixrtError]]]:
    """The masks of a step's `masked` entries (of its `rows`), int32[lines, words], and the rows whose constraint failed
    over it: theirs are without effect. Fills in `forced`."""
    firsts = list(accumulate((1 + len(item.drafts) for item in masked), initial=0))
    bitmask = np.full((firsts[-1], words), -1, dtype=np.int32)
    chains = {item.row: item.drafts for item in rows if item.branches}
    jobs: dict[Row, list[Callable[[], None]]] = {}
    for item, first in zip(masked, firsts, strict=False):
        row = item.row
        if item.foretold >= 0:
            bitmask[first] = bit(item.foretold, 32 * words)  # what the runner samples next stands on it
            continue
        before = [*chains[row][: item.fork], item.tokens[0]] if item.fork >= 0 else []
        if isinstance(row, Row) and row.matcher is not None:
            lines = bitmask[first : first + 1 + len(item.drafts)]
            jobs.setdefault(row, []).append(partial(_fill_item, row.matcher, item, lines, before))
    failed: list[tuple[Row, RadixrtError]] = []
    # A row's branches share its matcher: they follow one another in one job.
    for row, error in zip(jobs, filler.run([partial(_each, parts) for parts in jobs.values()]), strict=True):
        if error is not None:
            failed.append((row, error))
            for item, first in zip(masked, firsts, strict=False):
                if item.row is row:
                    bitmask[first : first + 1 + len(item.drafts)] = -1
                    item.forced = []
    return bitmask, failed


def _fill_item(matcher: Matcher, item: PlannedRow, lines: Bitmask, before: list[int]) -> None:
    run = matcher.forced()
    fill_lines(matcher, item.drafts, lines, 0, before)
    item.forced = _forced(run, [*before, *item.drafts], lines)


def _each(jobs: Sequence[Callable[[], None]]) -> None:
    for job in jobs:
        job()


@dataclass(frozen=True)
class Counted:
    """A line of a step that counts for its row, and the slot that holds its token, if it was guessed."""

    line: int
    slot: int | None
    forced: bool = False
    """Its token is the one that the constraint forces."""


def counted_lines(rows: Sequence[PlannedRow], result: StepResult) -> dict[PlannedRow, list[Counted]]:
    """For each sampled row (not for its branches) the lines that count, in order: what is sampled goes on along the
    guesses for as long as they hold it."""
    lines = [1 + len(item.drafts) if item.sample else 0 for item in rows]
    first = dict(zip(rows, accumulate(lines, initial=0), strict=False))
    tokens = result.tokens.tolist()
    known = [one for item, n in zip(rows, lines, strict=True) for one in (item.forced or [FREE] * n)]
    forced = [one in (token, ONE_LEFT) for one, token in zip(known, tokens, strict=True)]
    return {
        item: [replace(one, forced=forced[one.line]) if forced[one.line] else one for one in _path(item, tokens, first)]
        for item in rows
        if item.sample and item.fork < 0
    }


def _path(item: PlannedRow, sampled: list[int], first: dict[PlannedRow, int]) -> list[Counted]:
    counted: list[Counted] = []
    chain = item.slots.tolist()[item.slots.size - len(item.drafts) :]
    held = _follow(item.drafts, chain, sampled, first[item], counted)
    line = first[item] + held
    for branch in item.branches:
        if branch.fork == held and branch.tokens[0] == sampled[line]:
            slots = branch.slots.tolist()
            counted.append(Counted(line, slots[0]))
            line = first[branch] + _follow(branch.drafts, slots[1:], sampled, first[branch], counted)
            break
    counted.append(Counted(line, None))
    return counted


def _follow(drafts: list[int], slots: list[int], sampled: list[int], line: int, counted: list[Counted]) -> int:
    """Add the lines from `line` on that sampled the guess that comes next; how many."""
    held = 0
    while held < len(drafts) and sampled[line + held] == drafts[held]:
        counted.append(Counted(line + held, slots[held]))
        held += 1
    return held
