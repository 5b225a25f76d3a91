"""Attention over the pool: one kernel, three ways to cut a step."""

from __future__ import annotations

from collections.abc import Callable

import torch

from radixrt.kernels.layout import AttentionLayout
from radixrt.kernels.triton import tuning
from radixrt.kernels.triton.common import blocks, by_rows, tile
from radixrt.kernels.triton.fp8 import as_bits
from radixrt.kernels.triton.plan import FIELDS, WIDE, AttentionPlan, make_plan
from radixrt.kernels.triton.rotary import pool_scales
from radixrt.kernels.triton.walk import merge, walk

WIDTHS = (64, 80, 96, 128, 256)
"""Lengths of a head that models have; others up to 256 work too, in a tile of the next power of two."""


def tree_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    layout: AttentionLayout,
    scale: float,
    sliding_window: int | None = None,
    *,
    soft_cap: float | None = None,
    k_scale: torch.Tensor | None = None,
    v_scale: torch.Tensor | None = None,
) -> torch.Tensor:
    """Attention of a ragged step over the prefix tree: q [T, H, D] -> [T, H, D] contiguous. See `ops.Kernels`.

    float32, float16 or bfloat16, D up to 256; keys, values [KVH, slots, D] of that dtype, or e4m3 with k_scale, v_scale
    float32[KVH]. A shared span is read once for each tile of up to 128 query lines below it. k and v are not read: the
    pool holds the new tokens already. `soft_cap` c makes a score s into c * tanh(s / c) (Gemma 2, arXiv 2408.00118).
    """
    return _attend(q, keys, values, layout, scale, sliding_window, soft_cap, k_scale, v_scale, sharing=True)


def decode_attention(
    q: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    layout: AttentionLayout,
    scale: float,
    sliding_window: int | None = None,
    *,
    soft_cap: float | None = None,
    k_scale: torch.Tensor | None = None,
    v_scale: torch.Tensor | None = None,
) -> torch.Tensor:
    """One new token a row, q [R, H, D], each row reading its whole context by itself, split along it (Flash-Decoding).

    Tiles are G query heads of a key-value head (padded to 16 lines) by 64 keys or so; otherwise as `tree_attention`.
    """
    if layout.num_tokens != layout.num_rows:
        raise ValueError("a decode step has one new token a row: use extend_attention or tree_attention")
    return _attend(q, keys, values, layout, scale, sliding_window, soft_cap, k_scale, v_scale, sharing=False)


def extend_attention(
    q: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    layout: AttentionLayout,
    scale: float,
    sliding_window: int | None = None,
    *,
    soft_cap: float | None = None,
    k_scale: torch.Tensor | None = None,
    v_scale: torch.Tensor | None = None,
) -> torch.Tensor:
    """Ragged rows of new tokens after a cached prefix of any length, causal among themselves; nothing is shared.

    Prefix and new part are one list of slots to a tile of up to 128 query lines; otherwise as `tree_attention`.
    """
    return _attend(q, keys, values, layout, scale, sliding_window, soft_cap, k_scale, v_scale, sharing=False)


def _attend(
    q: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    layout: AttentionLayout,
    scale: float,
    window: int | None,
    soft_cap: float | None,
    k_scale: torch.Tensor | None,
    v_scale: torch.Tensor | None,
    *,
    sharing: bool,
) -> torch.Tensor:
    kv_heads, group = keys.shape[0], q.shape[1] // keys.shape[0]
    widest = widest_tile(q.shape[2], q.dtype)
    plan = layout.derive(
        ("triton", kv_heads, group, window, sharing, widest, q.device),
        lambda: make_plan(
            layout, group=group, kv_heads=kv_heads, window=window, sharing=sharing, device=q.device, widest=widest
        ).to(q.device),
    )
    return attend(
        q, keys, values, plan, scale, window=window, soft_cap=soft_cap, k_scale=k_scale, v_scale=v_scale
    )  # fmt: skip


def attend(
    q: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    plan: AttentionPlan,
    scale: float,
    *,
    window: int | None = None,
    soft_cap: float | None = None,
    k_scale: torch.Tensor | None = None,
    v_scale: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """What the functions above do once they have a plan, whose arrays may be the static ones of a CUDA graph.

    `window` must be the one that the plan was made for. `out` [T, H, D], contiguous, is written where given; tokens
    that no item names are left as they are.
    """
    q = by_rows(q)
    _, heads, width = q.shape
    kv_heads = keys.shape[0]
    if heads % kv_heads or width != keys.shape[2] or width > 256:
        raise ValueError(f"{heads} heads of {width} do not fit a pool of {kv_heads} heads of {keys.shape[2]}")
    if keys.stride() != values.stride() or keys.stride(2) != 1:
        raise ValueError("keys and values must be laid out alike, their heads contiguous")
    k_scale, v_scale, fp8 = pool_scales(keys, k_scale, v_scale)
    keys, values = as_bits(keys), as_bits(values)
    if out is None:
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    part_out = torch.empty(plan.parts, heads, width, dtype=torch.float32, device=q.device)
    part_lse = torch.empty(plan.parts, heads, dtype=torch.float32, device=q.device)
    ancestors = plan.positions if plan.ancestors is None else plan.ancestors
    block_d = tile(width, 16)
    for height, items in plan.items.items():

        def launch(config: tuning.Config, items: torch.Tensor = items, height: int = height) -> None:
            walk[(len(items), kv_heads)](
                q, keys, values, k_scale, v_scale, plan.index, items, plan.positions, ancestors, out, part_out,
                part_lse, scale, 0.0 if soft_cap is None else soft_cap, window or 0,
                0 if plan.ancestors is None else plan.ancestors.shape[1],
                q.stride(0), q.stride(1), keys.stride(0), keys.stride(1),
                H=heads, G=heads // kv_heads, D=width, BLOCK_D=block_d, FIELDS=FIELDS, FP8=fp8,
                SOFT_CAP=soft_cap is not None, WINDOW=window is not None, TREE=plan.ancestors is not None,
                BLOCK_M=height, BLOCK_N=config.size("keys"), num_warps=config.num_warps, num_stages=config.num_stages,
            )  # fmt: skip

        _tuned(f"{height}x{block_d} {q.dtype} {keys.dtype}", height, block_d, q.dtype, launch)
    if len(plan.merged):
        together = min(4, tile(heads))
        merge[(len(plan.merged), blocks(heads, together))](
            part_out, part_lse, plan.merged, plan.merge_starts, plan.merge_parts, out,
            H=heads, D=width, BLOCK_D=block_d, HEADS=together, num_warps=2,
        )  # fmt: skip
    return out


def widest_tile(width: int, dtype: torch.dtype) -> int:
    """Query lines of a tile, so that they and a block of keys fit into 64 KiB (AMD's; others have more)."""
    return max(16, min(WIDE, WIDE * 256 // (tile(width, 16) * dtype.itemsize)))


def _tuned(key: str, height: int, block_d: int, dtype: torch.dtype, launch: Callable[[tuning.Config], None]) -> None:
    """Run with the best of a few key blocks; a float32 tile or a wide head leaves room for small ones only."""
    if dtype == torch.float32 or block_d >= 256:
        configs = [tuning.Config({"keys": 16}, 4, 1), tuning.Config({"keys": 32}, 4, 1)]
    elif height <= 16:
        configs = [
            tuning.Config({"keys": 32}, 4, 2),
            tuning.Config({"keys": 64}, 4, 3),
            tuning.Config({"keys": 128}, 4, 2),
            tuning.Config({"keys": 32}, 2, 4),
        ]
    else:
        warps = 8 if height >= 128 else 4
        configs = [
            tuning.Config({"keys": 32}, warps, 1),
            tuning.Config({"keys": 64}, warps, 2),
            tuning.Config({"keys": 64}, warps, 3),
            tuning.Config({"keys": 128}, 8, 2),
        ]
    tuning.run("attention", key, configs, launch)
