"""Who reads what, as the library takes it: segments of slots, worked out once a step without a loop over rows."""

from __future__ import annotations

import numpy as np

from radixrt.kernels.cpu.native.binding import Reads
from radixrt.kernels.layout import AttentionLayout

BLOCK = 64
"""attention.h, BLOCK."""


class StepReads:
    """`reads` points into the arrays beside it, which therefore must live as long."""

    def __init__(self, layout: AttentionLayout, window: int | None) -> None:
        self.slots, plain = segments(layout)
        trees, self.visible = visible(layout, window)
        self.segments = np.full((len(plain), plain.shape[1] + 1), -1, dtype=np.int64)
        self.segments[:, :-1] = plain
        self.segments[: layout.num_rows, -1] = trees
        self.positions = np.ascontiguousarray(layout.positions)
        self.reads = Reads(
            tokens=layout.num_tokens,
            segments_count=len(self.segments),
            window=window or 0,
            segments=self.segments.ctypes.data,
            slots=self.slots.ctypes.data,
            positions=self.positions.ctypes.data,
            visible=self.visible.ctypes.data,
            visible_words=self.visible.shape[1],
        )


def step_reads(layout: AttentionLayout, window: int | None) -> StepReads:
    """Of this step: made by the first layer that asks."""
    return layout.derive(("native", window), lambda: StepReads(layout, window))


def visible(layout: AttentionLayout, window: int | None) -> tuple[np.ndarray, np.ndarray]:
    """Who sees which new tokens where they are trees, as `Segment` in attention.h has it: (int64[R], where each row's
    words begin, or -1 where its tokens follow one another; uint64[n, words], a line for each token of the other rows).
    """
    rows = np.full(layout.num_rows, -1, dtype=np.int64)
    none = np.zeros((1, 1), dtype=np.uint64)
    if layout.parents is None:
        return rows, none
    starts, new = layout.starts[:-1], np.diff(layout.starts)
    within = np.arange(layout.num_tokens) - np.repeat(starts, new)
    trees = np.flatnonzero(np.logical_or.reduceat(layout.parents != within - 1, starts))
    if not len(trees):
        return rows, none
    lengths, private = new[trees], np.diff(layout.private_starts)[trees]
    first = np.cumsum(lengths) - lengths  # of each tree, in the tokens of all trees
    count = int(lengths.sum())
    token = np.arange(count) - np.repeat(first, lengths) + np.repeat(starts[trees], lengths)
    parents, own = layout.parents[token], within[token]
    root = np.repeat(first, lengths)  # of each token's tree
    before = np.repeat(private % BLOCK, lengths)  # slots of the first word that come before the new ones
    words = int((private % BLOCK + lengths).max() + BLOCK - 1) // BLOCK
    # The set of a token's ancestors, by doubling the distance: line `count` is the empty set.
    seen = np.zeros((count + 1, BLOCK * words), dtype=bool)
    seen[np.arange(count), before + own] = True
    jump = np.append(np.where(parents < 0, count, root + parents), count)
    while (jump[:-1] < count).any():
        seen |= seen[jump]
        jump = jump[jump]
    seen = seen[:-1]
    if window is not None:
        # Depths may skip places, so a new token's position is not that of its place.
        place = np.arange(BLOCK * words) - before[:, None]
        inside = (place >= 0) & (place < np.repeat(lengths, lengths)[:, None])
        key = np.where(inside, root[:, None] + place, 0)
        positions = layout.positions[token]
        seen &= ~inside | (positions[key] > positions[:, None] - window)
    seen |= np.arange(BLOCK * words) < before[:, None]
    rows[trees] = first * words
    return rows, np.packbits(seen, axis=1, bitorder="little").view("<u8").astype(np.uint64)


def segments(layout: AttentionLayout) -> tuple[np.ndarray, np.ndarray]:
    """(int32 slots of all segments, int64[n, 6]: `Segment` in attention.h without its tree).

    A row's private slots and its new ones are one segment (a new token's key is in the pool when attention runs); a
    shared span is one for the tokens of all its rows.
    """
    starts, private_starts = layout.starts, layout.private_starts
    new, private = np.diff(starts), np.diff(private_starts)
    own = np.empty(len(layout.private_slots) + len(layout.slots), np.int32)
    own[np.arange(len(layout.private_slots)) + np.repeat(starts[:-1], private)] = layout.private_slots
    own[np.arange(len(layout.slots)) + np.repeat(private_starts[1:], new)] = layout.slots
    first_positions = layout.positions[starts[:-1]] - private
    rows = np.stack(
        [starts[:-1] + private_starts[:-1], private + new, starts[:-1], starts[1:], private, first_positions], axis=1
    )
    if not len(layout.spans):
        return own, rows
    spans = layout.spans[layout.spans[:, 2] < layout.spans[:, 3]]
    at, length, first, end = spans.T
    # Position of a span's first slot, seen from its first row: before it lie the spans of that row that come earlier.
    covers = (first[None, :] <= first[:, None]) & (first[:, None] < end[None, :])
    after = (covers * np.triu(np.ones_like(covers)) * length[None, :]).sum(axis=1)  # its own and what follows
    shared = np.stack(
        [at + len(own), length, starts[first], starts[end], length, first_positions[first] - after], axis=1
    )
    return np.concatenate([own, layout.span_slots.astype(np.int32)]), np.concatenate([rows, shared])
