"""Lines of the key-value pool: one head's key or value of one token.

A pool is a tensor [layers, 2, KVH, slots, line]: keys at index 0 of the second dimension, values at index 1. float32,
bfloat16 and float16 pools hold numbers, line = D, the length of a head. An int8 pool has line = D + 4: D signed bytes
q, then one float32 scale in the machine's byte order. They mean x = scale * q, with scale = max|x| / 127 over the head
of that token; keys and values have scales of their own. A head that is all zeros (or below 2^-126) has scale 0; one
that holds NaN or infinity has scale NaN, so that it reads as NaN.
"""

from __future__ import annotations

import torch

SCALE_BYTES = 4
_SMALLEST = 2.0**-126


def line_length(dtype: torch.dtype, width: int) -> int:
    """Elements of a line in a pool of `dtype`, for heads of `width`."""
    return width + SCALE_BYTES if dtype == torch.int8 else width


def to_lines(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """x [..., D] as lines [..., line_length(dtype, D)] of a pool of `dtype`."""
    if dtype != torch.int8:
        return x.to(dtype)
    x = x.float()
    scale = x.abs().amax(-1, keepdim=True) / 127
    scale = torch.where(scale < _SMALLEST, 0, torch.where(scale.isfinite(), scale, torch.nan))
    q = torch.where(scale > 0, x / scale, 0).round().to(torch.int8)
    return torch.cat([q, scale.contiguous().view(torch.int8)], dim=-1)


def from_lines(lines: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """What lines [..., line] of a pool mean, [..., D] of `dtype`: the same tensor where that is their own type."""
    if lines.dtype != torch.int8:
        return lines.to(dtype)
    scale = lines[..., -SCALE_BYTES:].contiguous().view(torch.float32)
    return (lines[..., :-SCALE_BYTES].float() * scale).to(dtype)
