"""The one attention kernel: a tile of queries over a chunk of keys that lie anywhere in the pool."""

from __future__ import annotations

import triton
import triton.language as tl

from radixrt.kernels.triton.common import dot, narrow, tanh
from radixrt.kernels.triton.fp8 import UNIT, decode

_LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def walk(
    q, keys, values, k_scale, v_scale, index, items, positions, ancestors, out, part_out, part_lse,
    scale, soft_cap, window, words, q_token, q_head, pool_head, pool_slot,
    H: tl.constexpr, G: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr, FIELDS: tl.constexpr,
    FP8: tl.constexpr, SOFT_CAP: tl.constexpr, WINDOW: tl.constexpr, TREE: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """A program: item program_id(0) for key-value head program_id(1); online softmax (arXiv 2307.08691, section 3).

    Line m of the tile is query head m % G of token m // G. Keys are read [BLOCK_D, BLOCK_N] and values
    [BLOCK_N, BLOCK_D] by slot; scores and sums are float32, weights have the queries' dtype in the second product.
    An item of no tokens does nothing: it pads a captured graph.
    """
    item = items + tl.program_id(0).to(tl.int64) * FIELDS
    kv_head = tl.program_id(1).to(tl.int64)
    count = tl.load(item + 1)
    if count == 0:
        return
    first = tl.load(item)
    row_first = tl.load(item + 2)
    slots = index + tl.load(item + 3)
    start = tl.load(item + 4)
    stop = tl.load(item + 5)
    own = tl.load(item + 6)
    origin = tl.load(item + 7)
    part = tl.load(item + 8)

    line = tl.arange(0, BLOCK_M)
    nth = line // G
    head = (kv_head * G + line % G).to(tl.int64)
    live = nth < count
    token = (first + nth).to(tl.int64)
    d = tl.arange(0, BLOCK_D)
    in_head = d < D
    mask_q = live[:, None] & in_head[None, :]
    tile_q = tl.load(q + (token * q_token + head * q_head)[:, None] + d[None, :], mask=mask_q, other=0.0)
    if WINDOW:
        lowest = tl.load(positions + token, mask=live, other=0) - window

    factor = scale
    out_scale = 1.0
    if FP8:
        factor = scale * tl.load(k_scale + kv_head) * UNIT
        out_scale = tl.load(v_scale + kv_head) * UNIT
    best = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    head_keys = keys + kv_head * pool_head
    head_values = values + kv_head * pool_head
    for at in range(start, stop, BLOCK_N):
        n = at + tl.arange(0, BLOCK_N)
        in_chunk = n < stop
        slot = tl.load(slots + n, mask=in_chunk, other=0).to(tl.int64) * pool_slot
        tile_k = tl.load(head_keys + slot[None, :] + d[:, None], mask=in_chunk[None, :] & in_head[:, None], other=0)
        if FP8:
            tile_k = decode(tile_k)
        scores = dot(tile_q, tile_k.to(tile_q.dtype), tl.zeros([BLOCK_M, BLOCK_N], tl.float32)) * factor
        if SOFT_CAP:
            scores = soft_cap * tanh(scores / soft_cap)
        nth_new = n - own
        if TREE:
            word = tl.load(
                ancestors + (token * words)[:, None] + (nth_new >> 5)[None, :],
                mask=live[:, None] & ((nth_new >= 0) & in_chunk)[None, :], other=0,
            )  # fmt: skip
            seen = (nth_new < 0)[None, :] | (((word >> (nth_new & 31)[None, :]) & 1) != 0)
        else:
            seen = nth_new[None, :] <= (token - row_first)[:, None]
        seen = seen & in_chunk[None, :] & live[:, None]
        if WINDOW:
            place = origin + n
            if TREE:
                is_new = (nth_new >= 0) & in_chunk
                place = tl.where(is_new, tl.load(positions + row_first + nth_new, mask=is_new, other=0), place)
            seen = seen & (place[None, :] > lowest[:, None])
        scores = tl.where(seen, scores * _LOG2E, float("-inf"))
        better = tl.maximum(best, tl.max(scores, 1))
        anchor = tl.where(better == float("-inf"), 0.0, better)  # nothing seen yet: no -inf minus -inf
        weight = tl.exp2(scores - anchor[:, None])
        shrink = tl.exp2(best - anchor)
        total = total * shrink + tl.sum(weight, 1)
        tile_v = tl.load(head_values + slot[:, None] + d[None, :], mask=in_chunk[:, None] & in_head[None, :], other=0)
        if FP8:
            tile_v = decode(tile_v)
        acc = dot(narrow(weight, tile_q.dtype), tile_v.to(tile_q.dtype), acc * shrink[:, None])
        best = better

    result = acc * (out_scale / tl.where(total == 0, 1.0, total))[:, None]
    if part < 0:
        tl.store(
            out + (token * H * D + head * D)[:, None] + d[None, :], narrow(result, out.dtype.element_ty), mask=mask_q
        )
    else:
        place = (part + nth).to(tl.int64) * H + head
        tl.store(part_out + (place * D)[:, None] + d[None, :], result, mask=mask_q)
        lse = tl.where(total == 0, float("-inf"), best + tl.log2(tl.where(total == 0, 1.0, total)))
        tl.store(part_lse + place, lse, mask=live)


@triton.jit
def merge(
    part_out, part_lse, merged, merge_starts, merge_parts, out,
    H: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr, HEADS: tl.constexpr,
):  # fmt: skip
    """A program: HEADS heads of one token; its partial results [parts, H, D], base-2 log-sum-exps [parts, H] -> out."""
    m = tl.program_id(0)
    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    d = tl.arange(0, BLOCK_D)
    live = head < H
    mask = live[:, None] & (d < D)[None, :]
    start = tl.load(merge_starts + m)
    stop = tl.load(merge_starts + m + 1)
    best = tl.full([HEADS], float("-inf"), tl.float32)
    total = tl.zeros([HEADS], tl.float32)
    acc = tl.zeros([HEADS, BLOCK_D], tl.float32)
    for i in range(start, stop):
        place = tl.load(merge_parts + i).to(tl.int64) * H + head
        lse = tl.load(part_lse + place, mask=live, other=float("-inf"))
        partial = tl.load(part_out + (place * D)[:, None] + d[None, :], mask=mask, other=0.0)
        better = tl.maximum(best, lse)
        anchor = tl.where(better == float("-inf"), 0.0, better)
        weight = tl.exp2(lse - anchor)
        shrink = tl.exp2(best - anchor)
        total = total * shrink + weight
        acc = acc * shrink[:, None] + partial * weight[:, None]
        best = better
    if start < stop:
        token = tl.load(merged + m).to(tl.int64)
        result = acc / tl.where(total == 0, 1.0, total)[:, None]
        tl.store(out + (token * H + head)[:, None] * D + d[None, :], narrow(result, out.dtype.element_ty), mask=mask)
