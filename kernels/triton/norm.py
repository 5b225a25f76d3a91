"""RMS norm (arXiv 1910.07467), alone or together with the addition to the residual that comes before it."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from radixrt.kernels.triton.common import blocks, by_rows, narrow, tile

_TILE = 2048
"""Elements a program handles, where rows are short enough for several to fit."""


@triton.jit
def _norm(
    x, residual, weight, out, rows, heads, stride_x, stride_x_head, stride_residual, eps,
    N: tl.constexpr, ADD: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """A program: ROWS rows of N elements, whole, in registers. `out` is contiguous."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, BLOCK)
    inside = (row < rows)[:, None] & (column < N)[None, :]
    at = (row // heads * stride_x + row % heads * stride_x_head)[:, None] + column[None, :]
    value = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
    if ADD:
        into = residual + row[:, None] * stride_residual + column[None, :]
        total = value + tl.load(into, mask=inside, other=0.0).to(tl.float32)
        rounded = narrow(total, residual.dtype.element_ty)
        tl.store(into, rounded, mask=inside)
        value = rounded.to(tl.float32)
    scale = tl.rsqrt(tl.sum(value * value, 1) / N + eps)
    factor = tl.load(weight + column, mask=column < N, other=0.0).to(tl.float32)
    normed = value * scale[:, None] * factor[None, :]
    tl.store(out + row[:, None] * N + column[None, :], narrow(normed, out.dtype.element_ty), mask=inside)


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """x [..., N] -> [..., N] contiguous; x may be a slice of heads, as [T, heads, N] with any strides but the last.

    Sums in float32. One program takes as many rows as fill a tile of 2048.
    """
    wide = by_rows(x)
    view = wide if wide.dim() == 3 else wide.reshape(-1, 1, wide.shape[-1])
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    _launch(view, None, weight, out, eps)
    return out


def add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """x, residual [T, N] -> (rms_norm(x + residual), residual), where residual now holds the sum, rounded once.

    The norm is that of the rounded sum, as in the reference. One read of each and one write of each.
    """
    total = by_rows(residual)
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    _launch(by_rows(x).unsqueeze(1), total, weight, out, eps)
    return out, total


def _launch(
    x: torch.Tensor, residual: torch.Tensor | None, weight: torch.Tensor, out: torch.Tensor, eps: float
) -> None:
    """x [T, heads, N]."""
    tokens, heads, width = x.shape
    rows = tokens * heads
    if not rows:
        return
    block = tile(width)
    together = max(1, min(tile(rows), _TILE // block))
    into = out if residual is None else residual
    _norm[(blocks(rows, together),)](
        x, into, weight, out, rows, heads, x.stride(0), x.stride(1), into.stride(0), eps,
        N=width, ADD=residual is not None, ROWS=together, BLOCK=block,
        num_warps=min(16, max(1, block * together // 512)),
    )  # fmt: skip
