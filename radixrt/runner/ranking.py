"""The one order of tokens: more likely first, lower id first among equals; and its first k, without sorting all.

Logits that were computed in bfloat16 are often equal, so an order that leaves ties open would not be an order.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

CHUNK = 64
"""Tokens in a chunk. Maxima of chunks are made once a step; a greedy row then reads one chunk, a top-k row k chunks."""
_LOW = 0x7FFFFFFF


def chunked(logits: torch.Tensor) -> torch.Tensor:
    """float32[K, V] -> [K, ceil(V / CHUNK), CHUNK]: a view, or a copy with -inf behind where V does not divide."""
    rows, width = logits.shape
    if width % CHUNK:
        logits = F.pad(logits, (0, CHUNK - width % CHUNK), value=-torch.inf)
    return logits.view(rows, -1, CHUNK)


def first(chunks: torch.Tensor, maxima: torch.Tensor) -> torch.Tensor:
    """int64[K]: the first token of each row in the order. maxima: `chunks.amax(-1)`."""
    chunk = maxima.argmax(-1)  # argmax gives the first of equals
    inside = chunks[torch.arange(len(chunks), device=chunks.device), chunk].argmax(-1)
    return chunk * CHUNK + inside


def ordered_top(chunks: torch.Tensor, maxima: torch.Tensor, width: int) -> torch.Tensor:
    """int64[K, min(width, padded V)]: the first `width` token ids of each row, in order.

    They lie in the first `width` chunks, ordered by their maxima in the same way: each of those chunks holds a token
    that goes before any token of a chunk that is not among them.
    """
    rows, count, _ = chunks.shape
    inside = torch.arange(CHUNK, device=chunks.device)
    if count > width:
        best = _first_by_key(maxima, torch.arange(count, device=chunks.device), width)
        values = chunks.gather(1, best[:, :, None].expand(-1, -1, CHUNK)).view(rows, -1)
        ids = (best[:, :, None] * CHUNK + inside).view(rows, -1)
    else:
        values = chunks.reshape(rows, -1)
        ids = torch.arange(count * CHUNK, device=chunks.device)
    return _first_by_key(values, ids, min(width, values.shape[1]))


def _first_by_key(values: torch.Tensor, ids: torch.Tensor, width: int) -> torch.Tensor:
    """The `width` ids of each row whose values are largest, lower ids first among equals.

    Value and id are one int64 key, no two of them equal, so that any top-k gives the same answer: the value's order
    key above the complement of the id.
    """
    keys = (order_keys(values).to(torch.int64) << 32) | (_LOW - ids)
    return _LOW - (keys.topk(width).values & _LOW)


def order_keys(values: torch.Tensor) -> torch.Tensor:
    """int32 numbers that compare as the float32 `values` do: their bits, the lower ones turned over where negative."""
    bits = (values + 0.0).view(torch.int32)  # + 0.0: minus zero equals zero
    return bits ^ ((bits >> 31) & _LOW)
