"""How a runner that works ahead draws tokens: by the Triton kernels, without a wait, or by `sampler`, the reference."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch

from radixrt.runner import adjust
from radixrt.runner.sampler import Draw, sample


@dataclass(frozen=True)
class Masks:
    """Token masks of a step's lines. lines: int64[M] on the host; bitmask int32[M, words] on the device."""

    lines: np.ndarray
    bitmask: torch.Tensor


class Drawer(Protocol):
    """logits float32[K, V], which it may change; `arrays`: LINE_FIELDS on the device, at least K long; `draw`: the same
    on the host. Ids from `vocabulary` on are never drawn. Returns int64[K], -1 where a line has nothing to draw."""

    def __call__(
        self, logits: torch.Tensor, arrays: dict[str, torch.Tensor], draw: Draw, masks: Masks | None, vocabulary: int
    ) -> torch.Tensor: ...


def draw_plain(
    logits: torch.Tensor, arrays: dict[str, torch.Tensor], draw: Draw, masks: Masks | None, vocabulary: int
) -> torch.Tensor:
    """Any device; waits for it, where its rows have cuts."""
    adjust.forbid_from(logits, vocabulary)
    if masks is not None:
        adjust.apply_bitmask(logits, masks.lines, masks.bitmask.cpu().numpy())
    return sample(logits, draw)


def draw_triton(
    logits: torch.Tensor, arrays: dict[str, torch.Tensor], draw: Draw, masks: Masks | None, vocabulary: int
) -> torch.Tensor:
    """`kernels.triton.sample`: the same random numbers, so but for sums that round otherwise the same tokens."""
    from radixrt.kernels import triton

    lines = {name: array[: len(logits)] for name, array in arrays.items()}
    rules = triton.sampling.Rules(
        temperature=lines["temperature"],
        top_k=lines["top_k"],
        top_p=lines["top_p"],
        min_p=lines["min_p"],
        uniforms=lines["uniforms"],
        bitmask=None if masks is None else masks.bitmask,
        mask_row=None if masks is None else lines["mask_row"],
    )
    return triton.sample(logits, rules, vocabulary=vocabulary).tokens
