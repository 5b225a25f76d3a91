"""How a step's attention is cut into work items, once a step, in numpy; kernels follow lists and decide nothing.

A step's queries are packed into tiles: the G query heads of one key-value head, for as many neighbouring tokens as fit.
Rows below a shared span are neighbours, so a tile reads the span once for all of them. Keys are cut along the context
into chunks, so that few rows still give every multiprocessor work (Flash-Decoding: Dao et al., 2023). An item is a tile
and a chunk; where a token has several items, their partial results are merged by log-sum-exp (arXiv 2501.01005, 2.2).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch

from radixrt.kernels.layout import AttentionLayout
from radixrt.kernels.triton.common import multiprocessors, tile

FIELDS = 9
"""Numbers of an item: first token, tokens, first token of its row, offset into the slot index, first and end
key relative to that, keys before the row's own new tokens, position of key 0, first partial result (-1: none,
the output is written)."""
EVERYTHING = 1 << 30
"""Keys before the row's own in a segment that has none of these: every query sees every key."""
FOLD = 64
"""Shared spans below this many slots join each row's private part: a merge costs more than reading them again."""
PROGRAMS = 4
"""Programs a multiprocessor should get before chunks grow."""
SHORTEST_CHUNK = 256
NARROW, MIDDLE, WIDE = 16, 64, 128
"""Query lines of a tile: 16 is the least that tensor cores take."""


@dataclass(frozen=True)
class Segment:
    """Tokens first..end read index[at + start .. at + stop]; of new tokens they read those up to themselves.

    `own`: key at which the row's new tokens begin, the first of them being token `row_first`; EVERYTHING where there
    are none. `position`: of key 0 in the sequence.
    """

    first: int
    end: int
    row_first: int
    at: int
    start: int
    stop: int
    own: int
    position: int


@dataclass(frozen=True)
class AttentionPlan:
    """W items of each tile height, and what is to be merged; arrays on the device, int32.

    Attributes:
        index: [N] pool slots, which items point into.
        items: tile height -> [W, FIELDS].
        positions: [T].
        ancestors: [T, words] bit n % 32 of word n // 32: the token sees new token n of its row; None: causal order.
        parts: how many partial results there are.
        merged: [M] tokens whose output is merged.
        merge_starts: [M + 1] token merged[m]'s partial results are merge_parts[merge_starts[m] : merge_starts[m + 1]].
        merge_parts: [sum].
    """

    index: torch.Tensor
    items: dict[int, torch.Tensor]
    positions: torch.Tensor
    ancestors: torch.Tensor | None
    parts: int
    merged: torch.Tensor
    merge_starts: torch.Tensor
    merge_parts: torch.Tensor


@dataclass(frozen=True)
class Host:
    """An `AttentionPlan` as numpy arrays, before it goes to the device."""

    index: np.ndarray
    items: dict[int, np.ndarray]
    positions: np.ndarray
    ancestors: np.ndarray | None
    parts: int
    merged: np.ndarray
    merge_starts: np.ndarray
    merge_parts: np.ndarray

    def to(self, device: torch.device) -> AttentionPlan:
        """One upload for all arrays, which does not wait for the device."""
        arrays = [self.index, self.positions, self.merged, self.merge_starts, self.merge_parts, *self.items.values()]
        if self.ancestors is not None:
            arrays.append(self.ancestors)
        flat = torch.from_numpy(np.concatenate([array.reshape(-1).astype(np.int32, copy=False) for array in arrays]))
        if device.type == "cuda":
            flat = flat.pin_memory().to(device, non_blocking=True)
        views: Iterator[torch.Tensor] = iter(flat.split([array.size for array in arrays]))
        index, positions, merged, merge_starts, merge_parts = (next(views) for _ in range(5))
        items = {height: next(views).view(-1, FIELDS) for height in self.items}
        ancestors = None if self.ancestors is None else next(views).view(self.ancestors.shape)
        return AttentionPlan(index, items, positions, ancestors, self.parts, merged, merge_starts, merge_parts)


def make_plan(
    layout: AttentionLayout,
    *,
    group: int,
    kv_heads: int,
    window: int | None,
    sharing: bool = True,
    device: torch.device | None = None,
    chunk: int | None = None,
    widest: int = WIDE,
) -> Host:
    """The items of a step for `group` query heads a key-value head.

    `sharing` false: every row reads all of its context by itself. `chunk`: keys of an item at most, where results must
    not depend on what else is in the step; by default it follows from how much there is to read. `widest`: query lines
    of a tile at most.
    """
    index, pieces = segments(layout, window, sharing)
    tiles = [tiled for segment in pieces for tiled in _tiles(segment, group, layout, window, widest)]
    if chunk is None:
        work = sum(part.stop - part.start for _, part in tiles) * kv_heads
        target = PROGRAMS * multiprocessors(layout.device if device is None else device)
        chunk = max(SHORTEST_CHUNK, tile(-(-work // target)))
    heights, rows = [], []
    for height, part in tiles:
        for start in range(part.start, part.stop, chunk):
            heights.append(height)
            stop = min(start + chunk, part.stop)
            rows.append(
                (part.first, part.end - part.first, part.row_first, part.at, start, stop, part.own, part.position)
            )
    table = np.array(rows, dtype=np.int32).reshape(-1, FIELDS - 1)
    parts, merge = _merges(table, layout.num_tokens)
    table = np.concatenate([table, parts[:, None]], axis=1).astype(np.int32)
    which = np.array(heights)
    return Host(
        index=index,
        items={height: np.ascontiguousarray(table[which == height]) for height in sorted(set(heights))},
        positions=layout.positions,
        ancestors=layout.ancestors(),
        parts=int(table[:, 1][parts >= 0].sum()),
        merged=merge[0],
        merge_starts=merge[1],
        merge_parts=merge[2],
    )


def segments(layout: AttentionLayout, window: int | None, sharing: bool) -> tuple[np.ndarray, list[Segment]]:
    """The slot index, and who reads which part of it."""
    starts, spans = layout.starts.tolist(), layout.spans.tolist()
    shared = [span for span in spans if sharing and _is_shared(span, window)]
    kept = {id(span) for span in shared}
    pieces = [layout.span_slots]
    at = len(layout.span_slots)
    segments = []
    before = _before(layout) if window is not None else None
    for span in shared:
        offset, count, first_row, end_row = span
        for first, end, position in _alike(span, spans, before, first_row, end_row):
            tokens = (starts[first], starts[end])
            segments.append(Segment(*tokens, tokens[0], offset, 0, count, EVERYTHING, position))
    for row in range(layout.num_rows):
        own = [
            layout.span_slots[span[0] : span[0] + span[1]]
            for span in spans
            if span[2] <= row < span[3] and id(span) not in kept
        ]
        own += [layout.private(row), layout.new_slots(row)]
        new = starts[row + 1] - starts[row]
        count = sum(map(len, own))
        position = int(layout.positions[starts[row]]) - (count - new)
        segments.append(Segment(starts[row], starts[row + 1], starts[row], at, 0, count, count - new, position))
        pieces += own
        at += count
    return np.concatenate(pieces), segments


def _is_shared(span: list[int], window: int | None) -> bool:
    _, count, first, end = span
    if window is not None:  # a row's own part must begin where its last span ends
        return count > 0 and end > first
    return count >= FOLD and end - first > 1


def _before(layout: AttentionLayout) -> np.ndarray:
    """int64[R]: the position of the first slot that each row reads."""
    lengths = np.diff(layout.private_starts)
    for _, count, first, end in layout.spans.tolist():
        lengths[first:end] += count
    before: np.ndarray = layout.positions[layout.starts[:-1]] - lengths
    return before


def _alike(
    span: list[int], spans: list[list[int]], before: np.ndarray | None, first: int, end: int
) -> Iterator[tuple[int, int, int]]:
    """(first row, end row, position of the span's first slot): neighbours for which that is the same."""
    if before is None:
        yield first, end, 0
        return
    positions = before[first:end].copy()
    for other in spans:
        if other is span:
            break
        low, high = max(other[2], first), min(other[3], end)
        if low < high:
            positions[low - first : high - first] += other[1]
    bounds = [0, *(np.flatnonzero(np.diff(positions)) + 1).tolist(), end - first]
    for low, high in pairwise(bounds):
        yield first + low, first + high, int(positions[low])


def _tiles(
    segment: Segment, group: int, layout: AttentionLayout, window: int | None, widest: int
) -> Iterator[tuple[int, Segment]]:
    """(tile height, what one tile of the segment's queries reads): nothing that no query of the tile may see."""
    lines = (segment.end - segment.first) * group
    height = next((height for height in (NARROW, MIDDLE) if lines <= height), WIDE)
    height = max(min(height, widest), tile(group))
    together = height // group
    for first in range(segment.first, segment.end, together):
        end = min(first + together, segment.end)
        start, stop = segment.start, segment.stop
        if layout.parents is None and segment.own != EVERYTHING:
            stop = min(stop, segment.own + end - segment.row_first)
        if window is not None:
            lowest = int(layout.positions[first:end].min()) - window + 1 - segment.position
            # Of new tokens in a tree, the place in the segment is not the place in the sequence.
            start = max(start, lowest if layout.parents is None else min(lowest, segment.own))
        if start < stop:
            yield height, Segment(first, end, segment.row_first, segment.at, start, stop, segment.own, segment.position)


def _merges(table: np.ndarray, tokens: int) -> tuple[np.ndarray, tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """(int[W] each item's first partial result or -1, (tokens to merge, their starts, their partial results))."""
    first, count = table[:, 0].astype(np.int64), table[:, 1].astype(np.int64)
    item = np.repeat(np.arange(len(table)), count)
    token = np.arange(len(item)) - np.repeat(count.cumsum() - count, count) + first[item]
    several = np.bincount(token, minlength=tokens) > 1
    partial = np.zeros(len(table), bool)
    np.logical_or.at(partial, item, several[token])
    size = np.where(partial, count, 0)
    base = size.cumsum() - size
    token = token[partial[item]]
    order = np.argsort(token, kind="stable")
    merged, counts = np.unique(token, return_counts=True)
    starts = np.concatenate([[0], counts.cumsum()])
    return np.where(partial, base, -1), (merged, starts, order)
