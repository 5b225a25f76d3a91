"""Where a step's input lies on the device, and the recorded forward passes of decode steps that replay on it.

A decode step (one new token a row) is small work that many launches make slow, so it is recorded as a CUDA graph. A
graph reads where it read when it was recorded: a `Cell` is that place, padded to a few sizes. What a step leaves of a
cell is tokens that read nothing, write to a slot that nobody has, and are not looked at.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from radixrt.checkpoint import ModelConfig
from radixrt.kernels.layout import AttentionLayout, Derived
from radixrt.runner.device import Graph
from radixrt.runner.staging import Block

SIZES = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256)
"""Rows that graphs are recorded for; larger steps have enough work in each launch."""
MOST_CELLS = 48
"""Recorded graphs that are kept: each holds some megabytes of the device."""
LEAST_SLOTS, LEAST_ITEMS = 2048, 32
STEP_FIELDS = {"tokens": "i4", "source": "i4", "positions": "i4", "slots": "i4"}
LINE_FIELDS = {
    "at": "i4", "rows": "i4", "lost": "i4", "mask_row": "i4", "top_k": "i4",
    "temperature": "f4", "min_p": "f4", "top_p": "f8", "uniforms": "f8",
}  # fmt: skip


class Planner:
    """Cuts a step's attention for the Triton kernels, which read what it gives from a cell."""

    def __init__(self, part: ModelConfig, window: int | None, device: torch.device, dtype: torch.dtype) -> None:
        """`part`: the model as this rank has it; dtype: of its queries."""
        from radixrt.kernels.triton.attention import widest_tile
        from radixrt.kernels.triton.graphs import PlanBuffers, plan_sizes
        from radixrt.kernels.triton.plan import make_plan

        self._make, self._buffers, self._sizes = make_plan, PlanBuffers, plan_sizes
        self._group, self._kv_heads = part.num_heads // part.num_kv_heads, part.num_kv_heads
        self._window = window
        self._device = device
        self._widest = widest_tile(part.head_dim, dtype)

    def plan(self, layout: AttentionLayout) -> Any:
        """The plan of a step, in numpy (`kernels.triton.plan.Host`)."""
        return self._make(
            layout, group=self._group, kv_heads=self._kv_heads, window=self._window, device=self._device,
            widest=self._widest,
        )  # fmt: skip

    def size(self, room: Room) -> int:
        return sum(self._sizes(**room.plan).values())

    def buffers(self, room: Room, flat: torch.Tensor) -> Any:
        return self._buffers(**room.plan, device=self._device, flat=flat)


@dataclass(frozen=True)
class Room:
    """How much a cell holds."""

    tokens: int
    lines: int
    slots: int = 0
    items: tuple[tuple[int, int], ...] = ()
    parts: int = 0

    @property
    def plan(self) -> dict[str, Any]:
        return {"tokens": self.tokens, "slots": self.slots, "items": dict(self.items), "parts": self.parts}

    def holds(self, other: Room) -> bool:
        ours = dict(self.items)
        return (
            self.tokens >= other.tokens
            and self.lines >= other.lines
            and self.slots >= other.slots
            and self.parts >= other.parts
            and all(ours.get(height, 0) >= count for height, count in other.items)
        )


def room_of(tokens: int, lines: int, plan: Any | None) -> Room:
    """What a step needs, no more."""
    if plan is None:
        return Room(tokens, lines)
    items = tuple((height, len(array)) for height, array in plan.items.items())
    return Room(tokens, lines, len(plan.index), items, plan.parts)


def padded(room: Room) -> Room | None:
    """The room of a graph for such steps, with some to grow into; None for a step that is too large for one."""
    tokens = next((size for size in SIZES if size >= room.tokens), None)
    if tokens is None:
        return None
    items = tuple((height, _grown(count, LEAST_ITEMS)) for height, count in room.items)
    parts = _grown(room.parts, LEAST_ITEMS) if room.parts else 0
    return Room(tokens, tokens, _grown(room.slots, LEAST_SLOTS), items, parts)


def _grown(count: int, least: int) -> int:
    return max(least, 1 << (2 * count - 1).bit_length() - 1) if count else least


class PlannedLayout:
    """In place of an `AttentionLayout`, for operations that ask it for nothing but the plan."""

    parents = None

    def __init__(self, plan: Any, layout: AttentionLayout | None = None) -> None:
        """`layout`: what the plan was made of."""
        self._plan = plan
        self.layout = layout

    def derive(self, key: object, build: Callable[[], Derived]) -> Derived:
        plan: Derived = self._plan
        return plan


class Cell:
    """A step's arrays on the device, and the graph that reads them."""

    def __init__(self, room: Room, device: torch.device, planner: Planner | None, *, kept: bool = False) -> None:
        """`kept`: for more than one step, so that a graph is worth while."""
        fields = {name: (kind, room.tokens) for name, kind in STEP_FIELDS.items()}
        fields |= {name: (kind, room.lines) for name, kind in LINE_FIELDS.items()}
        if planner is not None:
            fields["plan"] = ("i4", planner.size(room))
        self.room = room
        self.kept = kept
        self.block = Block(fields)
        self.data = torch.zeros(self.block.size, dtype=torch.uint8, device=device)
        self.arrays = self.block.views(self.data)
        self.buffers = None if planner is None else planner.buffers(room, self.arrays["plan"])
        self.graph: Graph | None = None
        self.hidden: torch.Tensor | None = None
        """[room.tokens, hidden], where a graph makes them."""
        self.gone: torch.Tensor | None = None
        """bool[room.tokens]: the token was to be what its row sampled last, and that does not exist."""

    def fill(self, host: np.ndarray, arrays: dict[str, np.ndarray], plan: Any | None, scratch: int) -> None:
        self.block.fill(host, arrays, {"source": -1, "slots": scratch, "mask_row": -1, "lost": -1})
        if self.buffers is not None:
            self.buffers.write(plan, self.block.place("plan", host))

    def load(self, staged: torch.Tensor) -> None:
        """Called in the device's turn: its arrays are what `staged`, memory of the host, holds then."""
        self.data.copy_(staged, non_blocking=True)

    def tokens(self, last: torch.Tensor) -> torch.Tensor:
        """int64[room.tokens]: the step's tokens, those that rows have only just sampled read from `last`."""
        source = self.arrays["source"].long()
        found = last[source.clamp(min=0)]
        self.gone = (source >= 0) & (found < 0)
        return torch.where(source >= 0, found, self.arrays["tokens"].long()).clamp_(min=0)


class Cells:
    """Graphs' cells, the one used longest ago forgotten first."""

    def __init__(self, device: torch.device, planner: Planner) -> None:
        self._device = device
        self._planner = planner
        self._kept: OrderedDict[Room, Cell] = OrderedDict()
        self.hits = 0

    def get(self, room: Room) -> Cell | None:
        """A cell for a step that needs `room`, with a graph or for one; None where such steps get none."""
        wanted = padded(room)
        if wanted is None:
            return None
        for kept in self._kept:
            # Not one that is much larger: what it has too many of is launched all the same.
            if kept.tokens == wanted.tokens and kept.holds(room) and kept.slots <= 4 * wanted.slots:
                self._kept.move_to_end(kept)
                self.hits += 1
                return self._kept[kept]
        cell = self._kept[wanted] = Cell(wanted, self._device, self._planner, kept=True)
        if len(self._kept) > MOST_CELLS:
            self._kept.popitem(last=False)
        return cell
