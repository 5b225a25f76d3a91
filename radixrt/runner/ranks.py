"""A model over several ranks, of which the scheduler knows one.

Rank 0 is a runner like any other; its model is a `RankedModel`, which tells the other ranks about each forward pass and
each product with the head before it takes part in it itself. What crosses to them is what a forward pass needs of a
plan: who reads what. Tokens and hidden states go from device to device, so rank 0 alone knows rows, samples and drafts.
The ranks are processes of one machine, their sockets in the engine's private directory.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import TypeAlias
from weakref import WeakKeyDictionary

import numpy as np
import torch
import zmq

from radixrt.checkpoint import ModelConfig
from radixrt.config import RunnerConfig
from radixrt.errors import ErrorInfo, StartupError
from radixrt.kernels.layout import AttentionLayout
from radixrt.messages import Array, Message
from radixrt.models.blocks import Decoder
from radixrt.models.parallel import split
from radixrt.runner.cells import Cell, PlannedLayout, Room
from radixrt.runner.group import DistributedGroup
from radixrt.transport import Link, open_socket

log = logging.getLogger(__name__)


class Loaded(Message, frozen=True, kw_only=True):
    """Rank -> rank 0: its part of the model is in memory."""

    rank: int
    kv_tokens: int
    """Slots that its pool can have."""


class CannotLoad(Message, frozen=True, kw_only=True):
    """Rank -> rank 0: why it cannot take part."""

    rank: int
    error: ErrorInfo


class Begin(Message, frozen=True, kw_only=True):
    """Rank 0 -> ranks: allocate a pool of so many slots and join the group."""

    kv_tokens: int


class Forward(Message, frozen=True, kw_only=True):
    """Rank 0 -> ranks: a forward pass; arrays as in StepPlan, tokens follow from device to device."""

    new_lens: Array
    slots: Array
    positions: Array
    private_lens: Array
    private_slots: Array
    spans: Array
    span_slots: Array
    parents: Array | None


class Recorded(Message, frozen=True, kw_only=True):
    """Rank 0 -> ranks: a forward pass that is recorded as graph `number`, or replayed where that has been done."""

    number: int
    room: Room
    data: Array  # uint8[size of the cell]: what rank 0 put into its own


class Save(Message, frozen=True, kw_only=True):
    """Rank 0 -> ranks: the chunks in these slots, each rank's part, are wanted for the tier."""

    slots: Array  # int32[n, C]


class Restore(Message, frozen=True, kw_only=True):
    """Rank 0 -> ranks: chunks for these slots follow from device to device."""

    slots: Array  # int32[n, C]


class Head(Message, frozen=True, kw_only=True):
    """Rank 0 -> ranks: logits of `count` hidden states, which follow from device to device."""

    count: int


ToRank: TypeAlias = Begin | Forward | Recorded | Head | Save | Restore
FromRank: TypeAlias = Loaded | CannotLoad


def address(config: RunnerConfig) -> str:
    return f"ipc://{config.ipc_dir}/ranks"


def rendezvous(config: RunnerConfig) -> str:
    return str(Path(config.ipc_dir) / "rendezvous")


class Ranks:
    """Rank 0's line to the others."""

    def __init__(self, config: RunnerConfig) -> None:
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context.instance()
        self._link: Link[FromRank, ToRank] = Link(
            open_socket(context, zmq.ROUTER, address(config), bind=True), FromRank
        )
        self._peers: dict[int, bytes] = {}
        self._wanted = config.tp - 1

    def gather(self) -> int:
        """Wait until all ranks have loaded; the least number of slots that any has room for. StartupError where one
        cannot take part. A rank that dies meanwhile ends the engine, so there is no time limit here."""
        slots = []
        while len(self._peers) < self._wanted:
            self._link.wait(None)
            for peer, message in self._link.receive():
                if isinstance(message, CannotLoad):
                    raise StartupError(f"rank {message.rank} cannot take part: {message.error.message}")
                self._peers[message.rank] = peer
                slots.append(message.kv_tokens)
        return min(slots)

    def tell(self, message: ToRank) -> None:
        for rank, peer in self._peers.items():
            if not self._link.send(message, peer):
                raise RuntimeError(f"rank {rank} cannot be reached")


class RankedModel:
    """A `CausalLM` whose other parts are elsewhere. Whatever fails in the middle of a pass ends the process: the ranks
    are out of step from then on."""

    def __init__(self, part: Decoder, whole: ModelConfig, group: DistributedGroup, tell: Callable[[ToRank], None]):
        self._part = part
        self._group = group
        self._tell = tell
        self._widths = [len(each.vocabulary) for each in split(whole, group.ranks)]
        self._numbers: WeakKeyDictionary[Cell, int] = WeakKeyDictionary()
        self._next = count()
        self._told = False
        self.config = whole
        self.dtype = part.dtype
        self.device = part.device

    def forward(
        self,
        tokens: torch.Tensor,
        positions: torch.Tensor,
        slots: torch.Tensor,
        kv: torch.Tensor,
        layout: AttentionLayout,
    ) -> torch.Tensor:
        """See `CausalLM.forward`; kv is rank 0's part of the pool."""
        try:
            if not self._told:
                self._tell(_described(layout))
            return self._part.forward(self._group.from_first(tokens), positions, slots, kv, layout)
        except Exception as error:
            raise out_of_step(error) from error

    @contextmanager
    def recorded(self, cell: Cell, host: np.ndarray) -> Iterator[None]:
        """See `passes.Tells`."""
        try:
            if cell not in self._numbers:
                self._numbers[cell] = next(self._next)
            self._tell(Recorded(number=self._numbers[cell], room=cell.room, data=host))
            self._told = True
            yield
        except Exception as error:
            raise out_of_step(error) from error
        finally:
            self._told = False

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """See `CausalLM.logits`."""
        try:
            self._tell(Head(count=len(hidden)))
            return self._group.gather(self._part.logits(self._group.from_first(hidden)), self._widths)
        except Exception as error:
            raise out_of_step(error) from error


def _described(layout: AttentionLayout | PlannedLayout) -> Forward:
    if isinstance(layout, PlannedLayout):
        if layout.layout is None:
            raise RuntimeError("a plan without its layout cannot be told to other ranks")
        layout = layout.layout
    return Forward(
        new_lens=np.diff(layout.starts),
        slots=layout.slots,
        positions=layout.positions,
        private_lens=np.diff(layout.private_starts),
        private_slots=layout.private_slots,
        spans=layout.spans,
        span_slots=layout.span_slots,
        parents=layout.parents,
    )


def out_of_step(error: Exception) -> SystemExit:
    log.error("a pass over several ranks failed; the engine must start again", exc_info=error)
    return SystemExit(1)
