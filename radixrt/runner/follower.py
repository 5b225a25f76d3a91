"""A rank but the first: it loads its part of the model, and then does what rank 0 says (`ranks.py`)."""

from __future__ import annotations

import logging
from collections import OrderedDict
from typing import Any

import torch
import zmq

from radixrt.config import RunnerConfig
from radixrt.errors import RadixrtError, StartupError
from radixrt.garbage import spare_what_stays
from radixrt.kernels.layout import AttentionLayout
from radixrt.models.blocks import Decoder
from radixrt.models.parallel import Group, split
from radixrt.runner.backend import planner_of
from radixrt.runner.cells import MOST_CELLS, Cell, PlannedLayout, Planner
from radixrt.runner.device import CudaDevice, Device
from radixrt.runner.load import load_part
from radixrt.runner.passes import replay
from radixrt.runner.pool import allocate_pool
from radixrt.runner.ranks import (
    Begin,
    CannotLoad,
    Forward,
    FromRank,
    Head,
    Loaded,
    Recorded,
    Restore,
    Save,
    ToRank,
    address,
    rendezvous,
)
from radixrt.runner.staging import Staging
from radixrt.runner.tier_ranks import RankChunks
from radixrt.transport import Link, open_socket

log = logging.getLogger(__name__)


def follow(config: RunnerConfig) -> int:
    """The life of a rank but the first: load, say so, then do what rank 0 says. The lifeline ends it."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context.instance()
    link: Link[ToRank, FromRank] = Link(open_socket(context, zmq.DEALER, address(config), bind=False), ToRank)
    try:
        part = load_part(config, lambda stage, fraction: None)
    except Exception as error:
        log.log(logging.DEBUG if isinstance(error, RadixrtError) else logging.ERROR, "cannot load", exc_info=True)
        told = error if isinstance(error, RadixrtError) else StartupError(f"{type(error).__name__}; its log says more")
        link.send(CannotLoad(rank=config.rank, error=told.info()))
        link.wait(None)  # rank 0 says why the engine cannot start; whoever dies first would be all that is heard of
        return 1
    if part.group is None:
        raise StartupError("a rank of one follows nobody")
    link.send(Loaded(rank=config.rank, kv_tokens=part.kv_tokens))
    model = part.model
    device = CudaDevice(model.device) if model.device.type == "cuda" else None
    widths = [len(each.vocabulary) for each in split(part.checkpoint.config, config.tp)]
    chunks = RankChunks(part.checkpoint.config, part.group)
    follower = Follower(model, part.group, widths, chunks, device, planner_of(model) if device is not None else None)
    spare_what_stays()
    with torch.inference_mode():
        while True:
            link.wait(None)
            for _, message in link.receive():
                if isinstance(message, Begin):
                    follower.kv = allocate_pool(part.shape, message.kv_tokens, part.model.device)
                    part.group.join(rendezvous(config))
                else:
                    follower.take(message)


class Follower:
    """A rank's answers to rank 0."""

    def __init__(
        self,
        part: Decoder,
        group: Group,
        widths: list[int],
        chunks: RankChunks,
        device: Device | None = None,
        planner: Planner | None = None,
    ) -> None:
        """`widths`: tokens of each rank's head; `device`, `planner`: for passes that are recorded."""
        self._part = part
        self._group = group
        self._widths = widths
        self._chunks = chunks
        self._device = device
        self._planner = planner
        self._staging = Staging(device) if device is not None else None
        self._cells: OrderedDict[int, tuple[Cell, torch.Tensor]] = OrderedDict()
        self.kv = torch.empty(0)

    def take(self, message: Forward | Recorded | Head | Save | Restore) -> None:
        match message:
            case Head():
                self._head(message.count)
            case Recorded():
                self._recorded(message)
            case Save():
                self._chunks.collect(self._chunks.lines(self.kv, message.slots))
            case Restore():
                self._chunks.put(self.kv, message.slots, self._chunks.spread(None, message.slots, self.kv))
            case Forward():
                self._forward(message)

    def _head(self, count: int) -> None:
        part = self._part
        hidden = torch.empty(count, part.config.hidden_size, dtype=part.dtype, device=part.device)
        self._group.gather(part.logits(self._group.from_first(hidden)), self._widths)

    def _forward(self, message: Forward) -> None:
        device = self._part.device
        layout = AttentionLayout(**{name: getattr(message, name) for name in Forward.__struct_fields__}, device=device)
        tokens = self._group.from_first(torch.empty(layout.num_tokens, dtype=torch.int64, device=device))
        positions, slots = (torch.from_numpy(array).to(device) for array in (layout.positions, layout.slots))
        self._part.forward(tokens, positions, slots, self.kv, layout)

    def _recorded(self, message: Recorded) -> None:
        """The same operations in the same order as rank 0: each has as many sums and broadcasts as its own."""
        device, staging = self._device, self._staging
        if device is None or staging is None or self._planner is None:
            raise RuntimeError("rank 0 records its passes, and this rank cannot")
        if message.number in self._cells:
            self._cells.move_to_end(message.number)
        else:
            made = Cell(message.room, device.device, self._planner, kept=True)
            self._cells[message.number] = (
                made,
                torch.zeros(message.room.tokens, dtype=torch.int64, device=device.device),
            )
            if len(self._cells) > MOST_CELLS:
                self._cells.popitem(last=False)
        cell, tokens = self._cells[message.number]
        staged = staging.take(cell.block.size)
        staged.numpy()[:] = message.data
        device.run(lambda: cell.load(staged))
        staging.sent(device.event())
        layout: Any = PlannedLayout(None if cell.buffers is None else cell.buffers.plan)

        def whole() -> None:
            positions, slots = cell.arrays["positions"].long(), cell.arrays["slots"].long()
            cell.hidden = self._part.forward(self._group.from_first(tokens), positions, slots, self.kv, layout)

        def played() -> None:
            replay(device, cell, whole)  # rank 0 has the same hidden states

        device.run(played)
