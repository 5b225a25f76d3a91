"""Who reads what, as the library takes it: segments of slots, worked out once a step without a loop over rows."""

from __future__ import annotations

import numpy as np

from radixrt.kernels.cpu.native.binding import Reads
from radixrt.kernels.layout import AttentionLayout


class StepReads:
    """`reads` points into the arrays beside it, which therefore must live as long."""

    def __init__(self, layout: AttentionLayout, window: int | None) -> None:
        self.slots, self.segments = segments(layout)
        self.positions = np.ascontiguousarray(layout.positions)
        self.reads = Reads(
            tokens=layout.num_tokens,
            segments_count=len(self.segments),
            window=window or 0,
            segments=self.segments.ctypes.data,
            slots=self.slots.ctypes.data,
            positions=self.positions.ctypes.data,
        )


def step_reads(layout: AttentionLayout, window: int | None) -> StepReads:
    """Of this step: made by the first layer that asks."""
    if layout.parents is not None:
        raise ValueError("the compiled kernels read new tokens in causal order only")
    return layout.derive(("native", window), lambda: StepReads(layout, window))


def segments(layout: AttentionLayout) -> tuple[np.ndarray, np.ndarray]:
    """(int32 slots of all segments, int64[n, 6] as `Segment` in attention.h).

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
