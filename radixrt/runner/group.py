"""The ranks of one model as torch.distributed knows them: NCCL between GPUs, gloo between CPU processes."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

TIMEOUT = timedelta(minutes=5)
"""How long a rank waits in an operation that it has begun for the others to begin it: a rank that died ends the
engine long before that."""


class DistributedGroup:
    """A `models.parallel.Group` over the default process group, which `join` makes."""

    def __init__(self, rank: int, ranks: int, device: torch.device) -> None:
        self.rank = rank
        self.ranks = ranks
        self._device = device

    def join(self, rendezvous: str) -> None:
        """Meet the other ranks, who call this with the same file (of this machine, private to the user)."""
        if self._device.type == "cpu":
            _keep_gloo_local()
        options: dict[str, Any] = {"device_id": self._device} if self._device.type == "cuda" else {}
        dist.init_process_group(
            "nccl" if self._device.type == "cuda" else "gloo",
            init_method=f"file://{rendezvous}",
            rank=self.rank,
            world_size=self.ranks,
            timeout=TIMEOUT,
            **options,
        )

    def sum(self, x: torch.Tensor) -> torch.Tensor:
        dist.all_reduce(x)
        return x

    def from_first(self, x: torch.Tensor) -> torch.Tensor:
        x = x.contiguous()
        dist.broadcast(x, src=0)
        return x

    def gather(self, x: torch.Tensor, widths: Sequence[int]) -> torch.Tensor:
        # A gather wants equal shapes: the narrower parts are padded, and what was added is cut off again.
        padded = torch.nn.functional.pad(x, (0, max(widths) - x.shape[1])).contiguous()
        parts = [torch.empty_like(padded) for _ in range(self.ranks)] if self.rank == 0 else None
        dist.gather(padded, parts, dst=0)
        if parts is None:
            return x
        return torch.cat([part[:, :width] for part, width in zip(parts, widths, strict=True)], dim=1)


def _keep_gloo_local() -> None:
    """gloo listens where the host's name points to unless told otherwise: nobody outside has any business here."""
    loopback = {name for _, name in socket.if_nameindex()} & {"lo", "lo0"}
    if loopback:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", loopback.pop())
