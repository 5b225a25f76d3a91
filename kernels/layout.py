"""What every layer's attention in one step needs to know about the batch, worked out once a step."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from radixrt.messages import StepPlan


@dataclass(frozen=True)
class AttentionLayout:
    """Where the keys lie that each new token of a ragged step reads."""

    new_lens: np.ndarray  # int64[R]

    @classmethod
    def from_plan(cls, plan: StepPlan, device: torch.device | str = "cpu") -> AttentionLayout:
        """The layout of `plan` (see its docstring for who reads what)."""
        raise NotImplementedError

    @classmethod
    def build(
        cls,
        *,
        new_lens: np.ndarray,
        slots: np.ndarray,
        positions: np.ndarray,
        private_lens: np.ndarray,
        private_slots: np.ndarray,
        spans: np.ndarray,
        span_slots: np.ndarray,
        device: torch.device | str = "cpu",
    ) -> AttentionLayout:
        """The same from the arrays themselves, shaped as in `StepPlan`."""
        raise NotImplementedError
