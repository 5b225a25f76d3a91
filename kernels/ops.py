"""The operations that every implementation offers. A module with these functions is an implementation.

T: new tokens of a step, H: query heads, KVH: key-value heads, D: length of a head, I: width of the MLP. All tensors of
a call have one dtype, float32 or bfloat16, unless it says otherwise; sums are in float32. The pool's keys and values
may be of another type than the rest: float32, bfloat16, float16 or int8, in lines as `kv_lines` describes them
(line = D, or D + 4 for int8). `write_kv` rounds to that type, and `tree_attention` reads what was rounded.
"""

from __future__ import annotations

from typing import Protocol

import torch

from radixrt.kernels.layout import AttentionLayout


class Kernels(Protocol):
    """Callers run them under `torch.inference_mode()`."""

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """x [..., N] / sqrt(mean(x^2) + eps) * weight [N] (arXiv 1910.07467)."""
        ...

    def add_rms_norm(
        self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(rms_norm(x + residual), x + residual), both [T, N]; `residual` may be overwritten with the sum."""
        ...

    def rope(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        """x [T, heads, D] rotated: element i of a head pairs with element i + D/2 (arXiv 2104.09864, 3.2.2).

        cos [T, 1, D] holds each angle's cosine twice; sin [T, 1, D] its sine negated, then its sine. Queries and keys
        of a token may come in one tensor: fewer, larger operations.
        """
        ...

    def write_kv(
        self, k: torch.Tensor, v: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, slots: torch.Tensor
    ) -> None:
        """Put k, v [T, KVH, D] into the pool's keys, values [KVH, slots, line] at `slots` int64[T]."""
        ...

    def silu_mul(self, gate_up: torch.Tensor) -> torch.Tensor:
        """silu(gate) * up: gate_up [T, 2 * I] -> [T, I] (arXiv 2002.05202)."""
        ...

    def tree_attention(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        layout: AttentionLayout,
        scale: float,
        sliding_window: int | None = None,
    ) -> torch.Tensor:
        """Attention of a ragged step over the prefix tree: q [T, H, D] -> [T, H, D].

        k, v [T, KVH, D] are the new tokens' own, already written to keys, values [KVH, slots, line] (contiguous) at
        the layout's slots. Query head h reads key-value head h // (H // KVH). With a window w, the token at position p
        reads positions above p - w only. Slots that the layout does not name are never read into the result.
        """
        ...
