"""Slots of the pool moved as whole tokens, all layers in one launch: to and from a staging buffer, or within the pool.

A copy of a tier then is one contiguous transfer between the staging buffer and pinned memory, on a stream of its own.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from radixrt.kernels.triton.common import blocks, tile
from radixrt.kernels.triton.fp8 import as_bits


@triton.jit
def _move(
    source, target, source_slots, target_slots, count, source_plane, target_plane, D: tl.constexpr,
    READ_INDEXED: tl.constexpr, WRITE_INDEXED: tl.constexpr, SLOTS: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """A program: SLOTS slots of one plane (a layer's keys or values of one head); planes are [slots, D], contiguous."""
    n = tl.program_id(0).to(tl.int64) * SLOTS + tl.arange(0, SLOTS)
    plane = tl.program_id(1).to(tl.int64)
    d = tl.arange(0, BLOCK_D)
    live = n < count
    mask = live[:, None] & (d < D)[None, :]
    read = n
    write = n
    if READ_INDEXED:
        read = tl.load(source_slots + n, mask=live, other=0).to(tl.int64)
    if WRITE_INDEXED:
        write = tl.load(target_slots + n, mask=live, other=0).to(tl.int64)
    value = tl.load(source + plane * source_plane + (read * D)[:, None] + d[None, :], mask=mask, other=0)
    tl.store(target + plane * target_plane + (write * D)[:, None] + d[None, :], value, mask=mask)


def gather_kv(pool: torch.Tensor, slots: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
    """pool [layers, 2, KVH, slots, D] at slots int[n] -> [layers, 2, KVH, n, D], into `out` where given."""
    shape = (*pool.shape[:3], len(slots), pool.shape[4])
    if out is None:
        out = torch.empty(shape, dtype=pool.dtype, device=pool.device)
    if out.shape != shape or out.dtype != pool.dtype:
        raise ValueError(f"the buffer must be {list(shape)} of {pool.dtype}")
    _launch(pool, out, slots, None)
    return out


def scatter_kv(staged: torch.Tensor, slots: torch.Tensor, pool: torch.Tensor) -> None:
    """What `gather_kv` gave, back into the pool at slots int[n], all different."""
    if staged.shape != (*pool.shape[:3], len(slots), pool.shape[4]) or staged.dtype != pool.dtype:
        raise ValueError("the staged tokens do not fit the pool and the slots")
    _launch(staged, pool, None, slots)


def copy_kv(pool: torch.Tensor, source: torch.Tensor, target: torch.Tensor) -> None:
    """Within the pool: slots source int[n] to target int[n]; no slot may be both, and no target occur twice."""
    if source.shape != target.shape:
        raise ValueError("as many slots must be written as are read")
    _launch(pool, pool, source, target)


def _launch(
    source: torch.Tensor, target: torch.Tensor, source_slots: torch.Tensor | None, target_slots: torch.Tensor | None
) -> None:
    if not (source.is_contiguous() and target.is_contiguous()):
        raise ValueError("the pool and the staging buffer must be contiguous")
    indexed = source_slots if source_slots is not None else target_slots
    count = 0 if indexed is None else len(indexed)
    planes, width = source.shape[0] * source.shape[1] * source.shape[2], source.shape[4]
    if not count or not planes:
        return
    together = min(16, tile(count))
    _move[(blocks(count, together), planes)](
        as_bits(source), as_bits(target), indexed if source_slots is None else source_slots,
        indexed if target_slots is None else target_slots, count, source.stride(2), target.stride(2),
        D=width, READ_INDEXED=source_slots is not None, WRITE_INDEXED=target_slots is not None,
        SLOTS=together, BLOCK_D=tile(width), num_warps=4,
    )  # fmt: skip
