"""Which sampled lines count: what a row samples goes on along its guesses for as long as they are what it sampled.

Each line has its own logits (under its own mask and penalties) and its own random number, which depends on seed and
position alone. So the token of a line that counts is the one that the row would have sampled there one token a step:
guesses are proposed by rules that look at the past alone, the test "the sampled token is the guess" decides only how
far one step goes, and the sequence of tokens (not just its distribution) is the one without guesses. It is speculative
sampling (arXiv 2211.17192) with a coupling that needs no rejected residual: for a proposal that is one certain token,
both accept it with the probability that the model gives it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from radixrt.messages import StepPlan


@dataclass(frozen=True)
class Standing:
    """What each sampled line stands on. K: lines of the step."""

    parent: np.ndarray  # int64[K] the line that must have sampled `via`; -1: the line always counts
    via: np.ndarray  # int64[K] the guess behind which the line is
    order: np.ndarray  # int64[K] lines, each behind its parent

    def counting(self, tokens: np.ndarray) -> np.ndarray:
        """bool[K]: lines that count, given what each sampled (int32[K])."""
        counts: np.ndarray = self.parent < 0
        for line in self.order.tolist():
            parent = self.parent[line]
            if parent >= 0:
                counts[line] = counts[parent] and tokens[parent] == self.via[line]
        return counts

    def last(self, counts: np.ndarray) -> np.ndarray:
        """int64[n]: of the counting lines those that no counting line stands on, one a row."""
        final = counts.copy()
        final[self.parent[counts & (self.parent >= 0)]] = False
        lines: np.ndarray = np.flatnonzero(final)
        return lines

    def guessed(self, line: int) -> list[int]:
        """The guesses that the line stands on, in order."""
        tokens: list[int] = []
        while self.parent[line] >= 0:
            tokens.append(int(self.via[line]))
            line = int(self.parent[line])
        return tokens[::-1]


def standing(plan: StepPlan, sampled: np.ndarray, first: np.ndarray, at: np.ndarray) -> Standing | None:
    """None where the step has no guesses. `sampled`, `at`: as in Layout; `first`: int64[R] each entry's first line."""
    branches = plan.branches if plan.branches is not None else np.zeros((0, 3), np.int32)
    if not plan.drafts.any() and not len(branches):
        return None
    lines = np.arange(len(sampled))
    parent = np.where(lines == first[sampled], -1, lines - 1)
    entries, mains, forks = branches.astype(np.int64).T
    parent[first[entries]] = first[mains] + forks
    via = np.where(parent >= 0, plan.tokens[at].astype(np.int64), -1)
    return Standing(parent=parent, via=via, order=np.argsort(plan.positions[at], kind="stable"))
