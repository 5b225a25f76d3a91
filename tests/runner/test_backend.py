"""What --device and --attention become, and what they cannot."""

from __future__ import annotations

import pytest
import torch

from radixrt.errors import StartupError
from radixrt.kernels import torch as plain
from radixrt.kernels import triton
from radixrt.runner.backend import choose_device, choose_kernels
from radixrt.runner.pool import PoolShape, pool_tokens

CPU = torch.device("cpu")


def gpus(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)


def test_each_rank_gets_a_gpu_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus(monkeypatch, 2)
    assert [choose_device("auto", rank) for rank in (0, 1)] == [torch.device("cuda", 0), torch.device("cuda", 1)]
    assert choose_device("cpu", 0) == CPU
    with pytest.raises(StartupError, match="rank 2 has no GPU"):
        choose_device("cuda", 2)


def test_without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus(monkeypatch, 0)
    assert choose_device("auto", 0) == CPU
    with pytest.raises(StartupError, match="--device cpu"):
        choose_device("cuda", 0)


def test_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    assert choose_kernels("auto", CPU) is None
    assert choose_kernels("torch", CPU) is plain
    assert choose_kernels("triton", CPU) is triton
    monkeypatch.delenv("TRITON_INTERPRET")
    with pytest.raises(StartupError, match="need a GPU"):
        choose_kernels("triton", CPU)


def test_a_pool_in_memory_of_its_own_takes_what_is_free() -> None:
    shape = PoolShape(layers=32, kv_heads=8, head_dim=128, dtype=torch.bfloat16)
    free = 120 << 30
    tokens = pool_tokens(shape, wanted=None, context_length=8192, free_bytes=free, own=True)
    assert tokens == int(free * 0.88) // (2 * 32 * 8 * 128 * 2) > 16 * 8192
