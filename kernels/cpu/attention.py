"""Tree attention with torch's flash operator for CPUs, which returns each query's log-sum-exp beside its output.

A key-value head's queries are folded into the query length: the operator then reads a key once for all of them, and the
shared span once for all rows. (`enable_gqa` in bfloat16 takes another path, 6 to 20 times slower.)
"""

from __future__ import annotations

import torch

from radixrt.kernels.cpu.pieces import Band, Batch, Pool, Square, Stack, cut
from radixrt.kernels.kv_lines import from_lines
from radixrt.kernels.layout import AttentionLayout

_flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default

Partial = tuple[torch.Tensor, torch.Tensor]
"""Output [n, KVH, G, D] over some keys, normalized over them, and their log-sum-exp float32[n, KVH, G]."""


def tree_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    layout: AttentionLayout,
    scale: float,
    sliding_window: int | None = None,
) -> torch.Tensor:
    dtype = q.dtype
    if keys.dtype != dtype:
        # Lines are converted as they are gathered, the new tokens' own too: those are what other steps will read.
        own = torch.from_numpy(layout.slots)
        k, v = (from_lines(pool[:, own], torch.float32).transpose(0, 1) for pool in (keys, values))
        q = q.float()
    tokens, heads, width = q.shape
    kv_heads, slots, _ = keys.shape
    pool = Pool(kv_heads, slots, q.dtype)
    pieces = layout.derive((pool, sliding_window), lambda: cut(layout, pool, sliding_window))
    q = q.reshape(tokens, kv_heads, heads // kv_heads, width)
    if len(pieces.own) == 1 and not pieces.shared:
        out, _ = _own(pieces.own[0], q, k, v, keys, values, scale)
        return out.reshape(tokens, heads, width).to(dtype)

    # Partial results are merged in float32: a token may have many.
    merged = q.new_empty(q.shape, dtype=torch.float32)
    total = q.new_empty(q.shape[:-1], dtype=torch.float32)
    for piece in pieces.own:
        out, lse = _own(piece, q, k, v, keys, values, scale)
        at = piece.tokens if isinstance(piece, Batch) else slice(piece.first, piece.end)
        merged[at] = out.float()
        total[at] = lse
    for stack in pieces.shared:
        out, lse = _stack(stack, q, keys, values, scale)
        at = slice(stack.first, stack.end)
        merged[at].lerp_(out.float(), torch.sigmoid(lse - total[at]).unsqueeze(-1))
        total[at] = torch.logaddexp(lse, total[at])
    return merged.to(dtype).view(tokens, heads, width)


def _own(
    piece: Stack | Square | Band | Batch,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    scale: float,
) -> Partial:
    match piece:
        case Batch():
            return _batch(piece, q, keys, values, scale)
        case Stack():
            return _stack(piece, q, keys, values, scale)
        case Square():
            at = slice(piece.first, piece.end)
            return _per_head(q[at], k[at].transpose(0, 1), v[at].transpose(0, 1), scale, None)
        case Band():
            return _per_head(
                q[piece.first : piece.end],
                from_lines(keys[:, piece.slots], q.dtype),
                from_lines(values[:, piece.slots], q.dtype),
                scale,
                piece.mask,
            )


def _stack(piece: Stack, q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scale: float) -> Partial:
    tokens, (_, kv_heads, group, width) = piece.end - piece.first, q.shape
    folded = q[piece.first : piece.end].transpose(0, 1).reshape(kv_heads, 1, tokens * group, width)
    gathered = (from_lines(pool[:, None, piece.slots], q.dtype) for pool in (keys, values))
    out, lse = _flash(folded, *gathered, scale=scale)
    return (
        out.view(kv_heads, tokens, group, width).transpose(0, 1),
        lse.view(kv_heads, tokens, group).transpose(0, 1),
    )


def _batch(piece: Batch, q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scale: float) -> Partial:
    _, kv_heads, group, width = q.shape
    lines = piece.size * kv_heads
    gathered = (
        from_lines(pool.view(-1, pool.shape[-1]).index_select(0, piece.index), q.dtype).view(lines, 1, -1, width)
        for pool in (keys, values)
    )
    out, lse = _flash(q[piece.tokens].reshape(lines, 1, group, width), *gathered, attn_mask=piece.mask, scale=scale)
    return out.view(piece.size, kv_heads, group, width), lse.view(piece.size, kv_heads, group)


def _per_head(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, mask: torch.Tensor | None) -> Partial:
    """Causal (no mask) or masked: q [n, KVH, G, D] over k, v [KVH, L, D], heads side by side: one mask fits all."""
    heads = q.permute(1, 2, 0, 3)
    shape = (*heads.shape[:2], *k.shape[1:])
    out, lse = _flash(
        heads, k[:, None].expand(shape), v[:, None].expand(shape), is_causal=mask is None, attn_mask=mask, scale=scale
    )
    return out.permute(2, 0, 1, 3), lse.permute(2, 0, 1)
