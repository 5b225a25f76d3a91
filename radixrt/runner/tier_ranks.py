"""A tier's chunks where the pool lies on several ranks: the chunks of a model of one rank, put together on rank 0.

A chunk is [layers, 2, kv_heads, C, head_dim] of the whole model, so what several ranks saved one rank can load, and the
other way round. Heads that several ranks hold are saved by the first of them.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from radixrt.checkpoint import ModelConfig
from radixrt.models.parallel import Group, split
from radixrt.runner.ranks import Restore, Save, ToRank


class RankChunks:
    """A rank's part of chunks. A line is a layer's keys or values of a chunk: the bytes of its heads."""

    def __init__(self, whole: ModelConfig, group: Group) -> None:
        self._group = group
        parts = split(whole, group.ranks)
        self._heads = whole.num_kv_heads
        self._own = parts[group.rank].kv_heads
        self._given = [
            len(part.kv_heads) if part.rank == 0 or part.kv_heads.start >= parts[part.rank - 1].kv_heads.stop else 0
            for part in parts
        ]
        """How many heads each rank gives to the whole."""

    def lines(self, kv: torch.Tensor, slots: np.ndarray) -> torch.Tensor:
        """uint8[n * layers * 2, bytes of the rank's heads] of the pool's slots int32[n, C], on the pool's device."""
        layers, two, heads, _, width = kv.shape
        count, length = slots.shape
        found = kv.index_select(3, _index(slots, kv)).view(layers, two, heads, count, length, width)
        return found.permute(3, 0, 1, 2, 4, 5).reshape(count * layers * two, -1).view(torch.uint8)

    def put(self, kv: torch.Tensor, slots: np.ndarray, lines: torch.Tensor) -> None:
        """The rank's `lines` of chunks into the pool's slots int32[n, C]."""
        layers, two, heads, _, width = kv.shape
        count, length = slots.shape
        parts = lines.contiguous().view(kv.dtype).view(count, layers, two, heads, length, width)
        flat = parts.permute(1, 2, 3, 0, 4, 5).reshape(layers, two, heads, count * length, width)
        kv.index_copy_(3, _index(slots, kv), flat)

    def collect(self, lines: torch.Tensor) -> torch.Tensor:
        """All ranks call it with their lines; rank 0 gets those of all heads."""
        each = lines.shape[1] // max(len(self._own), 1)
        widths = [given * each for given in self._given]
        return self._group.gather(lines[:, : widths[self._group.rank]], widths)

    def spread(self, whole: torch.Tensor | None, slots: np.ndarray, kv: torch.Tensor) -> torch.Tensor:
        """All ranks call it, rank 0 with the lines of all heads, on its device: the rank's lines."""
        each = slots.shape[1] * kv.shape[4] * kv.itemsize
        if whole is None:
            size = (len(slots) * kv.shape[0] * 2, self._heads * each)
            whole = torch.empty(size, dtype=torch.uint8, device=kv.device)
        return self._group.from_first(whole)[:, self._own.start * each : self._own.stop * each]


class RankedMover:
    """A `tier.Mover` for rank 0. On a GPU the copies wait for the device."""

    def __init__(self, kv: torch.Tensor, chunks: RankChunks, tell: Callable[[ToRank], None]) -> None:
        """kv: rank 0's part of the pool."""
        self._kv = kv
        self._chunks = chunks
        self._tell = tell

    def out(self, slots: np.ndarray) -> tuple[np.ndarray, Callable[[], None] | None]:
        self._tell(Save(slots=slots))
        whole = self._chunks.collect(self._chunks.lines(self._kv, slots))
        return whole.cpu().numpy().reshape(len(slots), -1), None

    def bring(self, chunks: list[bytearray]) -> torch.Tensor:
        return torch.from_numpy(np.concatenate([np.frombuffer(chunk, np.uint8) for chunk in chunks]))

    def into(self, slots: np.ndarray, brought: torch.Tensor) -> None:
        self._tell(Restore(slots=slots))
        lines = brought.view(len(slots) * self._kv.shape[0] * 2, -1).to(self._kv.device)
        self._chunks.put(self._kv, slots, self._chunks.spread(lines, slots, self._kv))


def _index(slots: np.ndarray, kv: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(slots.reshape(-1).astype(np.int64)).to(kv.device)
