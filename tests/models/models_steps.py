"""Runs a model's forward over a slot pool by hand, as the runner does for a scheduler."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch

from radixrt.kernels import AttentionLayout
from radixrt.models import CausalLM


@dataclass
class Row:
    """A sequence: the slots that hold its tokens so far, in order."""

    slots: list[int] = field(default_factory=list)


class Pool:
    """A KV pool whose slots are handed out in a random order and hold NaN until they are written."""

    def __init__(self, model: CausalLM, slots: int, seed: int = 0, kv: torch.dtype | None = None) -> None:
        """`kv`: its type, by default the model's own."""
        config = model.config
        self.model = model
        dtype = model.dtype if kv is None else kv
        # Of bytes, a scale whose bits are all set is NaN.
        line, nothing = (config.head_dim + 4, -1) if dtype == torch.int8 else (config.head_dim, float("nan"))
        self.kv = torch.full((config.num_layers, 2, config.num_kv_heads, slots, line), nothing, dtype=dtype)
        self.free = np.random.default_rng(seed).permutation(slots).tolist()

    def step(self, work: list[tuple[Row, list[int]]], shared: int = 0) -> list[torch.Tensor]:
        """Give each row its new tokens; returns float32 logits [n, vocab] of them, a row each.

        The first `shared` slots are the same in all rows, and are read as one shared span.
        """
        starts = [len(row.slots) for row, _ in work]
        new_slots = [[self.free.pop() for _ in tokens] for _, tokens in work]
        private = [np.array(row.slots[shared:], dtype=np.int32) for row, _ in work]
        layout = AttentionLayout(
            new_lens=np.array([len(tokens) for _, tokens in work]),
            slots=np.concatenate(new_slots),
            positions=np.concatenate([np.arange(s, s + len(t)) for s, (_, t) in zip(starts, work, strict=True)]),
            private_lens=np.array([len(p) for p in private]),
            private_slots=np.concatenate(private),
            spans=np.array([[0, shared, 0, len(work)]] if shared else [], dtype=np.int32).reshape(-1, 4),
            span_slots=np.array(work[0][0].slots[:shared], dtype=np.int32),
        )
        for (row, _), slots in zip(work, new_slots, strict=True):
            row.slots += slots
        tokens = torch.tensor([token for _, new in work for token in new])
        with torch.inference_mode():
            hidden = self.model.forward(
                tokens, torch.from_numpy(layout.positions), torch.from_numpy(layout.slots), self.kv, layout
            )
            return list(self.model.logits(hidden).split([len(new) for _, new in work]))

    def logits(self, tokens: list[int]) -> torch.Tensor:
        """float32[n, vocab] of a fresh row, in one step."""
        return self.step([(Row(), tokens)])[0]


def max_difference(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    assert ours.dtype == torch.float32 and ours.shape == theirs.shape
    return float((ours - theirs).abs().max())
