"""What every architecture offers to the runner."""

from __future__ import annotations

from typing import Protocol

import torch

from radixrt.checkpoint import ModelConfig
from radixrt.kernels.layout import AttentionLayout


class CausalLM(Protocol):
    """A decoder with its weights, ready to run; all calls are to be made under `torch.inference_mode()`."""

    config: ModelConfig
    dtype: torch.dtype
    device: torch.device

    def forward(
        self,
        tokens: torch.Tensor,
        positions: torch.Tensor,
        slots: torch.Tensor,
        kv: torch.Tensor,
        layout: AttentionLayout,
    ) -> torch.Tensor:
        """One step: writes the new tokens' keys and values into `kv` and returns their last hidden states.

        tokens, positions, slots: int64[T]; kv: [layers, 2, kv_heads, slots, line] of the model's dtype, or of
        another type that `kernels.kv_lines` describes where the kernels are not Triton's.
        Returns [T, hidden] after the final norm, in the model's dtype.
        """
        ...

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """hidden [K, hidden] -> float32[K, vocab]."""
        ...
