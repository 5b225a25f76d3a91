"""Rotary positions (arXiv 2104.09864, section 3.2.2) and cache writes: apart, or in one pass over all projections."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from radixrt.kernels.triton.common import blocks, by_rows, narrow, tile
from radixrt.kernels.triton.fp8 import as_bits, encode

_TOKENS = 16
"""Tokens of a program in a long step; a short one takes one each, so that all multiprocessors have work."""
_LONG = 256


@triton.jit
def _rope(
    x, cos, sin, out, heads, stride_token, stride_head, stride_angle,
    D: tl.constexpr, HEADS: tl.constexpr, HALF: tl.constexpr,
):  # fmt: skip
    """A program: HEADS heads of one token, both halves of each."""
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    at = tl.arange(0, HALF)
    inside = at < D // 2
    both = (head < heads)[:, None] & inside[None, :]
    angle = token * stride_angle + at
    read = x + token * stride_token + (head * stride_head)[:, None] + at[None, :]
    first = tl.load(read, mask=both, other=0.0).to(tl.float32)
    second = tl.load(read + D // 2, mask=both, other=0.0).to(tl.float32)
    cos_1 = tl.load(cos + angle, mask=inside, other=0.0).to(tl.float32)[None, :]
    cos_2 = tl.load(cos + angle + D // 2, mask=inside, other=0.0).to(tl.float32)[None, :]
    sin_1 = tl.load(sin + angle, mask=inside, other=0.0).to(tl.float32)[None, :]
    sin_2 = tl.load(sin + angle + D // 2, mask=inside, other=0.0).to(tl.float32)[None, :]
    write = out + token * heads * D + (head * D)[:, None] + at[None, :]
    tl.store(write, narrow(first * cos_1 + second * sin_1, out.dtype.element_ty), mask=both)
    tl.store(write + D // 2, narrow(second * cos_2 + first * sin_2, out.dtype.element_ty), mask=both)


@triton.jit
def _put(pool, first, second, slot, head, stride_head, stride_slot, scale, mask, D, at, FP8: tl.constexpr):
    """Store halves [TOKENS, HALF] of one head at slots [TOKENS]; with FP8 as x / scale in e4m3."""
    write = pool + head * stride_head + (slot * stride_slot)[:, None] + at[None, :]
    if FP8:
        tl.store(write, encode(first / scale), mask=mask)
        tl.store(write + D // 2, encode(second / scale), mask=mask)
    else:
        tl.store(write, narrow(first, pool.dtype.element_ty), mask=mask)
        tl.store(write + D // 2, narrow(second, pool.dtype.element_ty), mask=mask)


@triton.jit
def _rope_write(
    qkv, cos, sin, keys, values, slots, q_norm, k_norm, k_scale, v_scale, tokens, eps,
    stride_token, stride_head, stride_angle, pool_head, pool_slot,
    H: tl.constexpr, KVH: tl.constexpr, D: tl.constexpr, NORM: tl.constexpr, FP8: tl.constexpr,
    TOKENS: tl.constexpr, HALF: tl.constexpr,
):  # fmt: skip
    """A program: one head (of queries, keys or values) of TOKENS tokens."""
    token = tl.program_id(0).to(tl.int64) * TOKENS + tl.arange(0, TOKENS)
    head = tl.program_id(1).to(tl.int64)
    at = tl.arange(0, HALF)
    inside = at < D // 2
    mask = (token < tokens)[:, None] & inside[None, :]
    place = qkv + (token * stride_token)[:, None] + head * stride_head + at[None, :]
    first = tl.load(place, mask=mask, other=0.0).to(tl.float32)
    second = tl.load(place + D // 2, mask=mask, other=0.0).to(tl.float32)
    slot = tl.load(slots + token, mask=token < tokens, other=0).to(tl.int64)
    if head >= H + KVH:
        kv_head = head - (H + KVH)
        scale = 1.0
        if FP8:
            scale = tl.load(v_scale + kv_head)
        _put(values, first, second, slot, kv_head, pool_head, pool_slot, scale, mask, D, at, FP8)
    else:
        if NORM:
            factor = tl.rsqrt((tl.sum(first * first, 1) + tl.sum(second * second, 1)) / D + eps)[:, None]
            weight = q_norm
            if head >= H:
                weight = k_norm
            first *= factor * tl.load(weight + at, mask=inside, other=0.0).to(tl.float32)[None, :]
            second *= factor * tl.load(weight + D // 2 + at, mask=inside, other=0.0).to(tl.float32)[None, :]
        angle = (token * stride_angle)[:, None] + at[None, :]
        cos_1 = tl.load(cos + angle, mask=mask, other=0.0).to(tl.float32)
        cos_2 = tl.load(cos + angle + D // 2, mask=mask, other=0.0).to(tl.float32)
        sin_1 = tl.load(sin + angle, mask=mask, other=0.0).to(tl.float32)
        sin_2 = tl.load(sin + angle + D // 2, mask=mask, other=0.0).to(tl.float32)
        turned_1 = first * cos_1 + second * sin_1
        turned_2 = second * cos_2 + first * sin_2
        tl.store(place, narrow(turned_1, qkv.dtype.element_ty), mask=mask)
        tl.store(place + D // 2, narrow(turned_2, qkv.dtype.element_ty), mask=mask)
        if head >= H:
            scale = 1.0
            if FP8:
                scale = tl.load(k_scale + head - H)
            _put(keys, turned_1, turned_2, slot, head - H, pool_head, pool_slot, scale, mask, D, at, FP8)


@triton.jit
def _write(
    k, v, keys, values, slots, k_scale, v_scale, tokens, k_token, k_head, v_token, v_head, pool_head, pool_slot,
    D: tl.constexpr, FP8: tl.constexpr, TOKENS: tl.constexpr, HALF: tl.constexpr,
):  # fmt: skip
    """A program: one head of TOKENS tokens, keys and values."""
    token = tl.program_id(0).to(tl.int64) * TOKENS + tl.arange(0, TOKENS)
    head = tl.program_id(1).to(tl.int64)
    at = tl.arange(0, HALF)
    mask = (token < tokens)[:, None] & (at < D // 2)[None, :]
    slot = tl.load(slots + token, mask=token < tokens, other=0).to(tl.int64)
    read_k = k + (token * k_token)[:, None] + head * k_head + at[None, :]
    read_v = v + (token * v_token)[:, None] + head * v_head + at[None, :]
    scale_k = 1.0
    scale_v = 1.0
    if FP8:
        scale_k = tl.load(k_scale + head)
        scale_v = tl.load(v_scale + head)
    first = tl.load(read_k, mask=mask, other=0.0).to(tl.float32)
    second = tl.load(read_k + D // 2, mask=mask, other=0.0).to(tl.float32)
    _put(keys, first, second, slot, head, pool_head, pool_slot, scale_k, mask, D, at, FP8)
    first = tl.load(read_v, mask=mask, other=0.0).to(tl.float32)
    second = tl.load(read_v + D // 2, mask=mask, other=0.0).to(tl.float32)
    _put(values, first, second, slot, head, pool_head, pool_slot, scale_v, mask, D, at, FP8)


def rope(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """x [T, heads, D] with any strides but the last -> rotated, contiguous; cos, sin [T, 1, D]. See `ops.Kernels`."""
    x = by_rows(x)
    cos, sin = _angles(cos, sin)
    tokens, heads, width = x.shape
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if out.numel():
        together = min(8, tile(heads))
        _rope[(tokens, blocks(heads, together))](
            x, cos, sin, out, heads, x.stride(0), x.stride(1), cos.stride(0),
            D=width, HEADS=together, HALF=tile(width // 2), num_warps=2,
        )  # fmt: skip
    return out


def write_kv(
    k: torch.Tensor,
    v: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    slots: torch.Tensor,
    k_scale: torch.Tensor | None = None,
    v_scale: torch.Tensor | None = None,
) -> None:
    """k, v [T, KVH, D] into keys, values [KVH, slots, D] at slots int64[T] (int32 does too).

    A pool of float8_e4m3fn stores x / scale, with k_scale, v_scale float32[KVH].
    """
    k, v = by_rows(k), by_rows(v)
    k_scale, v_scale, fp8 = pool_scales(keys, k_scale, v_scale)
    tokens, heads, width = k.shape
    if not k.numel():
        return
    together = _TOKENS if tokens >= _LONG else 1
    _write[(blocks(tokens, together), heads)](
        k, v, as_bits(keys), as_bits(values), slots, k_scale, v_scale, tokens,
        k.stride(0), k.stride(1), v.stride(0), v.stride(1), keys.stride(0), keys.stride(1),
        D=width, FP8=fp8, TOKENS=together, HALF=tile(width // 2), num_warps=2,
    )  # fmt: skip


def rope_write(
    qkv: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    slots: torch.Tensor,
    *,
    q_norm: torch.Tensor | None = None,
    k_norm: torch.Tensor | None = None,
    eps: float = 0.0,
    k_scale: torch.Tensor | None = None,
    v_scale: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """A layer's projections qkv [T, H + 2 * KVH, D] -> (q [T, H, D], k, v [T, KVH, D]), views of qkv.

    Heads of q and k are normed where q_norm, k_norm [D] are given (Qwen3), rotated by cos, sin [T, 1, D] *in place*,
    and k and v written into keys, values [KVH, slots, D] at slots int64[T]; float32 within. One launch where the pieces
    of `ops.Kernels` need five. An e4m3 pool takes scales as in `write_kv`. keys and values have the same strides.
    """
    kv_heads = keys.shape[0]
    tokens, total, width = qkv.shape
    heads = total - 2 * kv_heads
    if qkv.stride(-1) != 1:
        raise ValueError("the heads of qkv must be contiguous: they are rotated in place")
    if keys.stride() != values.stride():
        raise ValueError("keys and values must be laid out alike")
    if (q_norm is None) != (k_norm is None):
        raise ValueError("queries and keys are both normed, or neither")
    cos, sin = _angles(cos, sin)
    k_scale, v_scale, fp8 = pool_scales(keys, k_scale, v_scale)
    if tokens:
        together = _TOKENS if tokens >= _LONG else 1
        _rope_write[(blocks(tokens, together), total)](
            qkv, cos, sin, as_bits(keys), as_bits(values), slots,
            cos if q_norm is None else q_norm, cos if k_norm is None else k_norm, k_scale, v_scale, tokens, eps,
            qkv.stride(0), qkv.stride(1), cos.stride(0), keys.stride(0), keys.stride(1),
            H=heads, KVH=kv_heads, D=width, NORM=q_norm is not None, FP8=fp8,
            TOKENS=together, HALF=tile(width // 2), num_warps=2,
        )  # fmt: skip
    return qkv[:, :heads], qkv[:, heads : heads + kv_heads], qkv[:, heads + kv_heads :]


def pool_scales(
    keys: torch.Tensor, k_scale: torch.Tensor | None, v_scale: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor, bool]:
    """(k_scale, v_scale, whether the pool is e4m3); any tensor stands for the scales of a pool that has none.

    ValueError where an e4m3 pool lacks scales, or another has some.
    """
    fp8 = keys.dtype == torch.float8_e4m3fn
    if fp8 != (k_scale is not None and v_scale is not None):
        raise ValueError("a float8_e4m3fn pool needs k_scale and v_scale, and no other pool takes them")
    if k_scale is None or v_scale is None:
        return keys, keys, False
    return k_scale, v_scale, True


def _angles(cos: torch.Tensor, sin: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    cos, sin = by_rows(cos), by_rows(sin)
    return (cos, sin) if cos.stride(0) == sin.stride(0) else (cos.contiguous(), sin.contiguous())
