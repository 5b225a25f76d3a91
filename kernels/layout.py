"""Who reads what in one ragged step: the arrays of `messages.StepPlan`, checked, and what follows from them.

An implementation works out from it, once a step, how it will read (`derive`); layers only follow.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, TypeVar

import numpy as np
import torch

from radixrt.messages import StepPlan

Derived = TypeVar("Derived")


class AttentionLayout:
    """What each new token of a step reads (see StepPlan). R: rows, T: new tokens, S: shared spans. Arrays are int64.

    Attributes:
        starts: [R + 1] row r's new tokens are starts[r] .. starts[r + 1].
        slots: [T] where each new token's key and value are written.
        positions: [T] place of each new token in its sequence.
        private_starts: [R + 1] row r's private slots are private_slots[private_starts[r] : private_starts[r + 1]].
        spans: [S, 4] offset into span_slots, length, first row, end row.
        parents: [T] or None. Where a row's new tokens are a tree (drafts, options): the index, among the row's new
            tokens, of the one that each continues, -1 where it continues what the row reads; a token sees its ancestors
            and itself. None: each continues the one before it.
        device: where index tensors belong.
    """

    def __init__(
        self,
        *,
        new_lens: np.ndarray,
        slots: np.ndarray,
        positions: np.ndarray,
        private_lens: np.ndarray,
        private_slots: np.ndarray,
        spans: np.ndarray,
        span_slots: np.ndarray,
        parents: np.ndarray | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        """Arrays as in StepPlan, of any integer type. ValueError where their lengths contradict each other."""
        self.starts = _starts(new_lens)
        self.slots = slots.astype(np.int64)
        self.positions = positions.astype(np.int64)
        self.private_starts = _starts(private_lens)
        self.private_slots = private_slots.astype(np.int64)
        self.spans = spans.astype(np.int64).reshape(-1, 4)
        self.span_slots = span_slots.astype(np.int64)
        self.parents = None if parents is None else parents.astype(np.int64)
        self.device = torch.device(device)
        self._derived: dict[Hashable, Any] = {}
        self._check()

    @classmethod
    def from_plan(cls, plan: StepPlan, device: torch.device | str = "cpu") -> AttentionLayout:
        return cls(
            new_lens=plan.new_lens,
            slots=plan.slots,
            positions=plan.positions,
            private_lens=plan.private_lens,
            private_slots=plan.private_slots,
            spans=plan.spans,
            span_slots=plan.span_slots,
            device=device,
        )

    @property
    def num_rows(self) -> int:
        return len(self.starts) - 1

    @property
    def num_tokens(self) -> int:
        return len(self.slots)

    def private(self, row: int) -> np.ndarray:
        """Private slots of a row, in path order."""
        return self.private_slots[self.private_starts[row] : self.private_starts[row + 1]]

    def new_slots(self, row: int) -> np.ndarray:
        return self.slots[self.starts[row] : self.starts[row + 1]]

    def context(self, row: int) -> np.ndarray:
        """Slots of all that a row reads before its own new tokens, in path order: its spans, then its private slots."""
        spans = [self.span_slots[at : at + n] for at, n, first, end in self.spans.tolist() if first <= row < end]
        return np.concatenate([*spans, self.private(row)])

    def sees(self, row: int) -> np.ndarray:
        """bool[n, n]: whether the row's new token i reads its new token j."""
        first, end = int(self.starts[row]), int(self.starts[row + 1])
        if self.parents is None:
            return np.tri(end - first, dtype=bool)
        seen = np.eye(end - first, dtype=bool)
        for token, parent in enumerate(self.parents[first:end].tolist()):
            if parent >= 0:
                seen[token] |= seen[parent]
        return seen

    def ancestors(self) -> np.ndarray | None:
        """int32[T, words] where new tokens are trees: bit j % 32 of word j // 32 says that a token reads its row's new
        token j."""
        if self.parents is None:
            return None
        words = -(-int(np.diff(self.starts).max(initial=1)) // 32)
        seen = np.zeros((self.num_tokens, 32 * words), dtype=bool)
        for row in range(self.num_rows):
            first, end = int(self.starts[row]), int(self.starts[row + 1])
            seen[first:end, : end - first] = self.sees(row)
        packed: np.ndarray = np.packbits(seen, axis=1, bitorder="little").view("<i4")
        return packed

    def derive(self, key: Hashable, build: Callable[[], Derived]) -> Derived:
        """What `build()` makes of this layout: built at the first call with `key`, kept for the step's other layers."""
        if key not in self._derived:
            self._derived[key] = build()
        derived: Derived = self._derived[key]
        return derived

    def _check(self) -> None:
        tokens, rows = self.num_tokens, self.num_rows
        if self.starts[-1] != tokens or len(self.positions) != tokens or len(self.private_starts) != rows + 1:
            raise ValueError("the step's rows and tokens do not add up")
        if (np.diff(self.starts) < 1).any() or (np.diff(self.private_starts) < 0).any():
            raise ValueError("a row of the step has no new token, or a negative length")
        if self.private_starts[-1] != len(self.private_slots):
            raise ValueError("the step's private slots do not add up")
        if self.parents is not None:
            if len(self.parents) != tokens:
                raise ValueError("the step's tokens and their parents do not add up")
            within = np.arange(tokens) - np.repeat(self.starts[:-1], np.diff(self.starts))
            if (self.parents < -1).any() or (self.parents >= within).any():
                raise ValueError("a new token of the step has a parent that does not come before it in its row")
        at, n, first, end = self.spans.T
        if (
            (at < 0).any() or (n < 0).any() or (at + n > len(self.span_slots)).any()
            or (first < 0).any() or (end > rows).any() or (first > end).any()
        ):  # fmt: skip
            raise ValueError("a shared span of the step reaches outside its slots or rows")


def _starts(lens: np.ndarray) -> np.ndarray:
    starts = np.zeros(len(lens) + 1, dtype=np.int64)
    np.cumsum(lens, out=starts[1:])
    return starts
