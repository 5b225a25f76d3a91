"""The runner's side of a tier: bytes out of the pool and back, in order with steps, whatever the tier does."""

from __future__ import annotations

import errno
import os
import select

import numpy as np
import pytest
import torch

from radixrt.checkpoint import open_checkpoint
from radixrt.config import RunnerConfig
from radixrt.errors import StartupError
from radixrt.messages import TierDone, TierWork
from radixrt.runner import tier as room
from radixrt.runner.pool import PoolShape
from radixrt.runner.tier import GROUP, TierWorker, copy_in, copy_out
from radixrt.runner.tier_open import open_tier
from radixrt.tiers import CHUNK, KEY_BYTES, HostTier, TierError

SLOTS = 40 * CHUNK


def pool(dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """[2 layers, 2, 3 heads, SLOTS, 4], every number another one (as far as the type can tell)."""
    return torch.arange(2 * 2 * 3 * SLOTS * 4, dtype=torch.float32).view(2, 2, 3, SLOTS, 4).to(dtype)


def keys(*names: int) -> np.ndarray:
    return np.array([[name] * KEY_BYTES for name in names], np.uint8).reshape(-1, KEY_BYTES)


def places(*starts: int) -> np.ndarray:
    return np.array([np.arange(start, start + CHUNK) for start in starts], np.int32).reshape(-1, CHUNK)


def work(
    number: int, save: dict[int, int] | None = None, load: dict[int, int] | None = None, **more: object
) -> TierWork:
    """`save` and `load`: first slot by key."""
    save, load = save or {}, load or {}
    fields = {
        "number": number, "settled": 0, "save_keys": keys(*save), "save_slots": places(*save.values()),
        "load_keys": keys(*load), "load_slots": places(*load.values()), "used_keys": keys(), "drop_keys": keys(),
        **more,
    }  # fmt: skip
    return TierWork(**fields)  # type: ignore[arg-type]


class Bench:
    def __init__(self, kv: torch.Tensor | None = None, chunks: int = 100) -> None:
        self.kv = pool() if kv is None else kv
        self.chunk = 2 * 2 * 3 * CHUNK * 4 * self.kv.itemsize
        self.tier = HostTier(self.chunk, chunks * self.chunk)
        self.worker = TierWorker(self.tier, self.kv)
        self.turns = 0

    def answer(self) -> TierDone:
        """What the next order comes to."""
        got: list[TierDone] = []
        while not got:
            assert select.select([self.worker.wake], [], [], 30)[0], "the tier does not answer"
            while self.worker.advance(got.append):
                self.turns += 1
        (done,) = got
        return done


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_chunks_are_the_slots_they_came_from(dtype):
    kv = pool(dtype)
    scattered = 64 + np.random.default_rng(0).permutation(SLOTS - 64)[: 3 * CHUNK].astype(np.int32).reshape(3, CHUNK)
    slots = np.concatenate([places(32), scattered])
    chunks = copy_out(kv, slots)
    reference = [kv[:, :, :, one].contiguous().view(torch.uint8).numpy().tobytes() for one in slots.astype(np.int64)]
    assert [chunk.tobytes() for chunk in chunks] == reference
    other = torch.zeros_like(kv)
    copy_in(other, slots[::-1], [bytearray(chunk) for chunk in chunks])
    for source, target in zip(slots.astype(np.int64), slots[::-1].astype(np.int64), strict=True):
        assert torch.equal(other[:, :, :, target], kv[:, :, :, source])
    untouched = np.setdiff1d(np.arange(SLOTS), slots.reshape(-1))
    assert not other[:, :, :, untouched].any()


def test_what_was_saved_is_loaded_though_its_slots_were_written_since():
    bench = Bench()
    before = bench.kv[:, :, :, 64:96].clone()
    bench.worker.take(work(1, save={1: 64, 2: 80}))
    bench.kv[:, :, :, 64:96] = -1.0  # a later step
    done = bench.answer()
    assert (done.number, done.refused, done.errors) == (1, 0, 0) and np.array_equal(done.stored, keys(1, 2))
    assert done.used_bytes == 2 * bench.chunk
    bench.worker.take(work(2, load={1: 160, 2: 192}))
    assert torch.equal(bench.kv, pool().index_fill(3, torch.arange(64, 96), -1.0)), "nothing is copied between turns"
    done = bench.answer()
    assert done.loaded == 2 and done.load_s > 0
    assert torch.equal(bench.kv[:, :, :, 160:176], before[:, :, :, :16])
    assert torch.equal(bench.kv[:, :, :, 192:208], before[:, :, :, 16:])


def test_a_chunk_that_is_missing_ends_the_load_there():
    bench = Bench()
    bench.worker.take(work(1, save={1: 0, 3: 32}))
    bench.answer()
    bench.worker.take(work(2, load={1: 320, 2: 336, 3: 352}))
    done = bench.answer()
    assert (done.loaded, done.errors) == (1, 1) and np.array_equal(done.dropped, keys(2))


def test_a_long_load_is_copied_a_group_a_turn():
    bench = Bench()
    count = 2 * GROUP + 1
    assert count <= 100
    bench.worker.take(work(1, save={n: n % 20 * CHUNK for n in range(count)}))
    bench.answer()
    bench.turns = 0
    bench.worker.take(work(2, load={n: (20 + n % 20) * CHUNK for n in range(count)}))
    assert bench.answer().loaded == count and bench.turns == 3


def test_nothing_that_a_failed_step_wrote_is_saved():
    bench = Bench()
    bench.worker.failed(7)
    bench.worker.take(work(1, save={1: 0}, settled=6))
    done = bench.answer()
    assert done.refused == 1 and not done.stored.size and not bench.tier.keys()
    bench.worker.take(work(2, save={1: 0}, settled=7))
    assert np.array_equal(bench.answer().stored, keys(1))


def test_what_is_dropped_for_others_is_told_and_what_is_flushed_too():
    bench = Bench(chunks=2)
    bench.worker.take(work(1, save={1: 0, 2: 16, 3: 32}))
    done = bench.answer()
    assert np.array_equal(done.stored, keys(1, 2, 3)) and np.array_equal(done.dropped, keys(1))
    bench.worker.take(work(2, used_keys=keys(2)))
    bench.answer()
    bench.worker.take(work(3, save={4: 48}))
    assert np.array_equal(bench.answer().dropped, keys(3))
    bench.worker.take(work(4, drop_keys=keys(2, 4, 9), sync=True))
    assert np.array_equal(np.sort(bench.answer().dropped[:, 0]), [2, 4]) and not bench.tier.keys()


def test_no_step_waits_for_a_slow_disk(monkeypatch):
    bench = Bench()
    monkeypatch.setattr(room, "MOST_STAGED", bench.chunk)
    bench.worker.take(work(1, save={1: 0, 2: 16}))
    assert bench.answer().refused == 2
    bench.worker.take(work(2, save={1: 0}))
    assert bench.answer().refused == 0


@pytest.mark.parametrize("error", [TierError("the disk is full"), ZeroDivisionError("a fault of ours")])
def test_whatever_a_tier_raises_every_order_is_answered(monkeypatch, caplog, error):
    bench = Bench()

    def broken(key: bytes, payload: memoryview) -> None:
        raise error

    monkeypatch.setattr(bench.tier, "put", broken)
    bench.worker.take(work(1, save={1: 0}))
    done = bench.answer()
    assert (done.errors == 1 and not done.stored.size and "tier" in caplog.text) or "disk is full" in caplog.text
    monkeypatch.undo()
    bench.worker.take(work(2, save={1: 0}))
    assert np.array_equal(bench.answer().stored, keys(1))


@pytest.mark.parametrize(("code", "starts"), [(errno.ENOSPC, True), (errno.EROFS, False)])
def test_an_engine_starts_without_a_directory_that_has_no_room(tiny_path, tmp_path, monkeypatch, caplog, code, starts):
    def refuse(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    config = RunnerConfig(
        model_path="", dtype="float32", threads=1, context_length=None, kv_tokens=None, runner_address="", ipc_dir="",
        log_level="info", cache_dir=str(tmp_path / "kv"), cache_dir_bytes=1 << 20,
    )  # fmt: skip
    shape = PoolShape(layers=1, kv_heads=1, head_dim=8, dtype=torch.float32)
    checkpoint = open_checkpoint(tiny_path)
    if starts:
        assert open_tier(config, checkpoint, shape, "float32", "as loaded", "0" * 32) is None
        assert "No space left" in caplog.text and "serving goes on" in caplog.text
    else:
        with pytest.raises(StartupError, match="Read-only"):
            open_tier(config, checkpoint, shape, "float32", "as loaded", "0" * 32)
    monkeypatch.undo()
    tier = open_tier(config, checkpoint, shape, "float32", "as loaded", "0" * 32)
    assert tier is not None and tier.kind == "disk"
    tier.close()
