"""How a step's attention is cut into few large products: worked out once a step, followed by every layer.

Every new token has exactly one *own* piece, which holds at least the token itself; the *shared* pieces add what it
reads besides. Partial results over disjoint keys merge exactly by their log-sum-exp (arXiv 2501.01005, section 2.2).

A decode row's own key is in the pool when attention runs (all writes of a layer come before its reads), so it counts as
one more private slot, and often makes one run with them: a run of slots is read in place, as a slice. What is not a
long run is gathered; short decode rows are gathered together, padded to a common length, in buckets of similar length.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias

import numpy as np
import torch

from radixrt.kernels.layout import AttentionLayout

LONG_RUN = 256
"""Slots from which a run is worth a product of its own (about 50 us a layer) instead of being copied into a batch."""
BUCKET_COST = 512
"""Padded slots that may be wasted before a bucket is split: what one more batched product costs, in slots."""

Slots: TypeAlias = slice | torch.Tensor
"""Where keys lie: a run of the pool, or int64[L]."""


@dataclass(frozen=True)
class Stack:
    """New tokens first..end all read the same slots, all of them."""

    first: int
    end: int
    slots: Slots


@dataclass(frozen=True)
class Square:
    """New tokens first..end are one row's; each reads those up to itself."""

    first: int
    end: int


@dataclass(frozen=True)
class Band:
    """New tokens first..end are one row's; token i reads slot j where mask[i, j] is 0 (elsewhere it is -inf)."""

    first: int
    end: int
    slots: Slots
    mask: torch.Tensor


@dataclass(frozen=True)
class Batch:
    """B decode tokens, each with its own L slots, padded.

    `index` int64[B * KVH * L] points into keys flattened to [KVH * slots, D]; `mask` [B * KVH, 1, 1, L] is 0, or -inf
    where padded (None: nothing is).
    """

    tokens: slice | torch.Tensor
    size: int
    index: torch.Tensor
    mask: torch.Tensor | None


@dataclass(frozen=True)
class Pool:
    """The shape of what is read, and the type masks must have."""

    kv_heads: int
    slots: int
    dtype: torch.dtype


@dataclass(frozen=True)
class Pieces:
    own: Sequence[Stack | Square | Band | Batch]
    shared: Sequence[Stack]


def cut(layout: AttentionLayout, pool: Pool, window: int | None) -> Pieces:
    """The pieces of a step."""
    if layout.parents is not None or (window is not None and _hides(layout, window)):
        return _cut_masked(layout, pool, window)
    own: list[Stack | Square | Band | Batch] = []
    shared: list[Stack] = []
    starts = layout.starts.tolist()
    decode: list[tuple[int, np.ndarray]] = []
    for row, (first, end) in enumerate(pairwise(starts)):
        private = layout.private(row)
        if end - first == 1:
            decode.append((first, np.append(private, layout.slots[first])))
            continue
        own.append(Square(first, end))
        shared += [Stack(first, end, slots) for slots in _parts(private)]
    for at, count, first_row, end_row in layout.spans.tolist():
        if first_row < end_row:
            parts = _parts(layout.span_slots[at : at + count])
            shared += [Stack(starts[first_row], starts[end_row], slots) for slots in parts]
    _cut_decode(decode, pool, own, shared)
    return Pieces(own, shared)


def _hides(layout: AttentionLayout, window: int) -> bool:
    """Whether the window keeps any token from something that it would read otherwise."""
    # Positions start at 0, so a row's last position is at least the number of positions before it.
    return bool((layout.positions[layout.starts[1:] - 1] >= window).any())


def _cut_masked(layout: AttentionLayout, pool: Pool, window: int | None) -> Pieces:
    """A row at a time: what a window leaves of a long shared span is short, and differs from row to row. Rows whose new
    tokens are trees come this way too."""
    own: list[Stack | Square | Band | Batch] = []
    shared: list[Stack] = []
    decode: list[tuple[int, np.ndarray]] = []
    for row in range(layout.num_rows):
        first, end = int(layout.starts[row]), int(layout.starts[row + 1])
        context = layout.context(row)
        if window is not None:
            context = context[max(0, len(context) - window + 1) :]
        slots = np.concatenate([context, layout.new_slots(row)])
        if end - first == 1:
            decode.append((first, slots))
            continue
        query = layout.positions[first:end]
        key = np.concatenate([np.arange(query[0] - len(context), query[0]), query])
        hidden = np.concatenate([np.zeros((end - first, len(context)), dtype=bool), ~layout.sees(row)], axis=1)
        if window is not None:
            hidden |= key[None, :] <= query[:, None] - window
        mask = torch.zeros(end - first, len(slots), dtype=pool.dtype)
        mask.masked_fill_(torch.from_numpy(hidden), float("-inf"))
        own.append(Band(first, end, _as_slots(slots), mask))
    _cut_decode(decode, pool, own, shared)
    return Pieces(own, shared)


def _cut_decode(
    rows: list[tuple[int, np.ndarray]], pool: Pool, own: list[Stack | Square | Band | Batch], shared: list[Stack]
) -> None:
    """Decode tokens with their slots (own slot last): long runs are read in place, the rest goes into batches."""
    batch: list[tuple[int, np.ndarray]] = []
    for token, slots in rows:
        runs, rest = _runs(slots)
        if len(rest):
            batch.append((token, rest))
        else:
            own.append(Stack(token, token + 1, runs.pop()))
        shared += [Stack(token, token + 1, run) for run in runs]
    batch.sort(key=lambda item: -len(item[1]))
    while batch:
        longest = len(batch[0][1])
        waste = 0
        size = 0
        for _, slots in batch:
            waste += longest - len(slots)
            if waste > BUCKET_COST:
                break
            size += 1
        bucket, batch = batch[:size], batch[size:]
        token, slots = bucket[0]
        alone = _as_slots(slots) if size == 1 else None
        own.append(Stack(token, token + 1, alone) if isinstance(alone, slice) else _batch(bucket, pool))


def _batch(rows: list[tuple[int, np.ndarray]], pool: Pool) -> Batch:
    rows = sorted(rows, key=lambda item: item[0])
    lens = np.array([len(slots) for _, slots in rows])
    longest = int(lens.max())
    padded = np.empty((len(rows), longest), dtype=np.int64)
    for line, (_, slots) in zip(padded, rows, strict=True):
        line[: len(slots)] = slots
        line[len(slots) :] = slots[-1]  # any slot that holds numbers: a weight of 0 times NaN would be NaN
    heads = np.arange(pool.kv_heads)[None, :, None] * pool.slots
    mask = None
    if (lens < longest).any():
        hidden = torch.from_numpy(np.arange(longest)[None, :] >= lens[:, None])
        mask = torch.zeros(len(rows), longest, dtype=pool.dtype).masked_fill_(hidden, float("-inf"))
        mask = mask.repeat_interleave(pool.kv_heads, dim=0)[:, None, None, :]
    tokens = np.array([token for token, _ in rows])
    return Batch(_as_slots(tokens), len(rows), torch.from_numpy((heads + padded[:, None, :]).reshape(-1)), mask)


def _parts(slots: np.ndarray) -> list[Slots]:
    """The slots as long runs and one gathered rest; nothing for no slots."""
    runs, rest = _runs(slots)
    return [*runs, _as_slots(rest)] if len(rest) else list(runs)


def _runs(slots: np.ndarray) -> tuple[list[slice], np.ndarray]:
    """(long runs, all other slots)."""
    if len(slots) < LONG_RUN:
        return [], slots
    bounds = [0, *(np.flatnonzero(np.diff(slots) != 1) + 1).tolist(), len(slots)]
    runs, rest = [], []
    for at, end in pairwise(bounds):
        if end - at >= LONG_RUN:
            runs.append(slice(int(slots[at]), int(slots[at]) + end - at))
        else:
            rest.append(slots[at:end])
    return runs, np.concatenate(rest) if rest else slots[:0]


def _as_slots(slots: np.ndarray) -> Slots:
    """A slice where the slots are one rising run."""
    first, last = int(slots[0]), int(slots[-1])
    if last - first == len(slots) - 1 and bool((np.diff(slots) == 1).all()):
        return slice(first, last + 1)
    return torch.from_numpy(slots)
