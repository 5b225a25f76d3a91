"""Forward passes on a device that works ahead: a step's arrays in one upload, and passes of short rows recorded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, cast

import numpy as np
import torch

from radixrt.kernels.layout import AttentionLayout
from radixrt.runner.cells import Cell, Cells, PlannedLayout, Planner, room_of
from radixrt.runner.device import Device
from radixrt.runner.staging import Staging, block_of
from radixrt.runner.step import Model

SHORT_ROW = 16
"""New tokens of a row, at most, in a step that is recorded: decode, guesses and options; prompts are of any length, so
the next one would hardly find a graph that fits."""


class Tells(Protocol):
    """A model of which other ranks hold parts (`ranks.RankedModel`)."""

    def recorded(self, cell: Cell, host: np.ndarray) -> Any:
        """Within it the pass on `cell`, which holds `host`, is made, recorded where it is not yet, and replayed: the
        ranks do the same."""
        ...


@dataclass(frozen=True, eq=False)
class Pass:
    """One pass: where its arrays lie, and who reads what."""

    cell: Cell
    layout: AttentionLayout
    plan: Any | None
    """Of its attention, in numpy; None where the kernels make none."""
    host: np.ndarray
    """What was uploaded, if other ranks are to be told."""

    @property
    def attention(self) -> Any:
        buffers = self.cell.buffers
        return self.layout if buffers is None else PlannedLayout(buffers.plan, self.layout)


class Passes:
    """The passes of one model over one pool, the last slot of which takes what nobody reads."""

    def __init__(self, device: Device, model: Model, kv: torch.Tensor, planner: Planner | None) -> None:
        """`planner`: where the model's attention is Triton's; without one nothing is recorded."""
        self._device = device
        self._model = model
        self._kv = kv
        self._scratch = kv.shape[3] - 1
        self._planner = planner
        self._ranks = cast(Tells, model) if hasattr(model, "recorded") else None
        self._staging = Staging(device)
        self.cells = None if planner is None else Cells(device.device, planner)

    def upload(self, layout: AttentionLayout, lines: int, arrays: dict[str, np.ndarray]) -> Pass:
        """Begin a pass with `lines` sampled lines; arrays: those of `cells.STEP_FIELDS` and `LINE_FIELDS`."""
        plan = None if self._planner is None else self._planner.plan(layout)
        room = room_of(layout.num_tokens, lines, plan)
        short = self.cells is not None and int(np.diff(layout.starts).max()) <= SHORT_ROW
        cell = self.cells.get(room) if self.cells is not None and short else None
        if cell is None:
            cell = Cell(room, self._device.device, self._planner)
        staged = self._staging.take(cell.block.size)
        cell.fill(staged.numpy(), arrays, plan, self._scratch)
        told = staged.numpy().copy() if self._ranks is not None and cell.kept else np.zeros(0, np.uint8)
        self._device.run(lambda: cell.load(staged))
        self._staging.sent(self._device.event())
        return Pass(cell, layout, plan, told)

    def on_device(self, arrays: dict[str, np.ndarray]) -> dict[str, torch.Tensor]:
        """Upload beside the work that is under way."""
        block = block_of(arrays)
        staged = self._staging.take(block.size)
        block.fill(staged.numpy(), arrays)
        data = self._device.upload(staged)
        self._staging.sent(self._device.copied())
        return block.views(data)

    def hidden(self, made: Pass, last: torch.Tensor) -> torch.Tensor:
        """Called in the device's turn: [cell's tokens, hidden], rows' last tokens read from `last` int64[rows]."""
        cell = made.cell
        if not cell.kept:
            return self._forward(made, last)
        if self._ranks is None:
            return self._recorded(made, last)
        with self._ranks.recorded(cell, made.host):
            return self._recorded(made, last)

    def _recorded(self, made: Pass, last: torch.Tensor) -> torch.Tensor:
        cell = made.cell

        def whole() -> None:
            cell.hidden = self._forward(made, last)

        return replay(self._device, cell, whole)

    def _forward(self, made: Pass, last: torch.Tensor) -> torch.Tensor:
        cell = made.cell
        tokens = cell.tokens(last)
        positions, slots = cell.arrays["positions"].long(), cell.arrays["slots"].long()
        return self._model.forward(tokens, positions, slots, self._kv, made.attention)


def replay(device: Device, cell: Cell, whole: Any) -> torch.Tensor:
    """Replay `whole`, which puts its result into `cell.hidden`; recorded first, if it is not yet."""
    if cell.graph is None:
        whole()  # makes what is made once: compiled kernels, their best tiles
        cell.graph = device.record(whole)
    cell.graph.replay()
    if cell.hidden is None:
        raise RuntimeError("a recorded pass gave no hidden states")
    return cell.hidden
