"""Chunks between a device's pool and the host, on a device that does everything late."""

from __future__ import annotations

import numpy as np
import torch

from radixrt.kernels.triton import gather_kv, scatter_kv
from radixrt.runner.tier import copy_in, copy_out
from radixrt.runner.tier_device import DeviceMover

from .late_device import LateDevice

SLOTS = np.array([[3, 4, 9, 1], [0, 17, 16, 12]], np.int32)


def pool() -> torch.Tensor:
    return torch.randn(2, 2, 2, 20, 8, generator=torch.Generator().manual_seed(0)).to(torch.bfloat16)


def test_chunks_leave_as_they_were_and_as_a_cpu_has_them() -> None:
    kv, device = pool(), LateDevice()
    expected = copy_out(kv, SLOTS)
    found, ready = DeviceMover(device, kv, gather_kv, scatter_kv).out(SLOTS)
    device.run(lambda: (kv.zero_(), None)[1])  # a later plan writes the slots
    assert not (found == expected).all()  # not copied yet
    ready()
    assert (found == expected).all()


def test_chunks_arrive_before_the_steps_that_come_later() -> None:
    kv, device = pool(), LateDevice()
    chunks = [bytearray(line) for line in copy_out(kv, SLOTS)]
    target, plain = torch.zeros_like(kv), torch.zeros_like(kv)
    mover = DeviceMover(device, target, gather_kv, scatter_kv)
    mover.into(SLOTS, mover.bring(chunks))
    seen: list[torch.Tensor] = []
    device.run(lambda: seen.append(target.clone()))
    copy_in(plain, SLOTS, chunks)
    device.event().wait()
    assert torch.equal(seen[0], plain) and plain.any()
