"""Recorded passes of a model over two ranks, which talk through gloo: the tokens of the whole model, step by step."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from threading import Lock
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from models_tiny import VOCAB, random_tokens, save, tiny
from test_models_parallel import GlooThread, together

from radixrt.checkpoint import open_checkpoint
from radixrt.kernels import triton
from radixrt.messages import RowOpen, StepPlan
from radixrt.models import load_model
from radixrt.models.blocks import Decoder
from radixrt.models.parallel import split
from radixrt.runner import cells
from radixrt.runner.ahead import AheadStepper
from radixrt.runner.backend import planner_of
from radixrt.runner.draws import draw_plain
from radixrt.runner.follower import Follower
from radixrt.runner.ranks import RankedModel, Recorded
from radixrt.runner.step import Stepper
from radixrt.runner.tier_ranks import RankChunks, RankedMover
from tests.runner.fakes import plan
from tests.runner.late_device import LateDevice
from tests.runner.test_ahead import in_flight, in_turn

pytestmark = pytest.mark.filterwarnings("ignore:overflow encountered", "ignore:divide by zero")
SLOTS = 64


def history() -> list[StepPlan]:
    """Two prompts, then both rows on their own tokens, one with a guess."""
    prompts = [random_tokens(20, seed) for seed in (1, 2)]
    opens = [RowOpen(row=row, temperature=t, seed=3) for row, t in ((0, 0.0), (1, 1.0))]
    entries = [
        {"row": row, "tokens": tokens, "at": 0, "slots": range(30 * row, 30 * row + 20)}
        for row, tokens in enumerate(prompts)
    ]
    plans = [plan(0, entries, opens=opens)]
    for step in range(3):
        rows = [
            {"row": row, "tokens": [-1], "at": 20 + step, "slots": [30 * row + 20 + step],
             "private": range(30 * row, 30 * row + 20 + step)}
            for row in (0, 1)
        ]  # fmt: skip
        if step == 2:
            rows[1] |= {"tokens": [-1, 5], "slots": [52, 53], "drafts": 1}
        plans.append(plan(step + 1, rows))
    return plans


def one_at_a_time() -> Any:
    """Triton's operations for threads: its interpreter is for one."""
    lock = Lock()

    def guarded(operation: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **options: Any) -> Any:
            with lock:
                return operation(*args, **options)

        return run

    return SimpleNamespace(**{name: guarded(getattr(triton, name)) for name in triton.__all__})


def test_ranks_record_and_replay_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """3 key-value heads: rank 0 has 2 of them, and its plans are those of both."""
    monkeypatch.setattr(cells, "LEAST_ITEMS", 3)
    shape = {"num_hidden_layers": 1, "num_attention_heads": 6, "num_key_value_heads": 3}
    checkpoint = open_checkpoint(save(tiny("llama, tied", **shape), tmp_path))
    config = checkpoint.config
    sizes = {"vocab_size": VOCAB, "vocabulary": VOCAB, "context_length": 256}
    plans, ops, messages = history(), one_at_a_time(), SimpleQueue[Any]()
    widths = [len(part.vocabulary) for part in split(config, 2)]
    told: list[str] = []

    def pool(heads: int, slots: int) -> torch.Tensor:
        return torch.zeros(config.num_layers, 2, heads, slots, config.head_dim)

    def loaded(group: GlooThread | None) -> Decoder:
        return load_model(checkpoint, dtype=torch.float32, group=group)

    slots, chunk = np.array([[3, 4, 40], [31, 5, 6]], np.int32), np.array([[60, 61, 62], [55, 57, 56]], np.int32)
    with torch.inference_mode():
        kv = pool(3, SLOTS)
        expected = in_turn(Stepper(loaded(None), kv, **sizes), plans, {})
        at = torch.from_numpy(slots.reshape(-1).astype(np.int64))

    def first(group: GlooThread) -> tuple[Any, ...]:
        part = loaded(group)
        part.use(ops)
        device, own = LateDevice(), pool(2, SLOTS + 1)
        model = RankedModel(part, config, group, messages.put)  # type: ignore[arg-type]
        stepper = AheadStepper(device, model, own, **sizes, drawer=draw_plain, planner=planner_of(part))
        found = in_flight(stepper, plans, {})
        mover = RankedMover(own, RankChunks(config, group), messages.put)
        saved, _ = mover.out(slots)
        mover.into(chunk, mover.bring([bytearray(line) for line in saved]))
        again, _ = mover.out(chunk)
        messages.put(None)
        return found, device.recorded, device.replayed, saved, again

    def second(group: GlooThread) -> tuple[Any, ...]:
        part = loaded(group)
        part.use(ops)
        device = LateDevice()
        follower = Follower(part, group, widths, RankChunks(config, group), device, planner_of(part))
        follower.kv = pool(1, SLOTS + 1)
        while (message := messages.get()) is not None:
            told.append(type(message).__name__)
            follower.take(message)
            device.event().wait()
        return device.recorded, device.replayed

    def rank(group: GlooThread) -> Any:
        with torch.inference_mode():
            return (second if group.rank else first)(group)

    (found, recorded, replayed, saved, again), other = together(2, rank)
    assert [each.tokens.tolist() for each in found] == [each.tokens.tolist() for each in expected]
    assert recorded == other[0] >= 1 and replayed == other[1] == told.count(Recorded.__name__) == 3
    assert told.count("Forward") == 1  # the prompts
    # A chunk has all heads, as a pool of one rank holds them.
    whole = kv[:, :, :, at].view(config.num_layers, 2, 3, 2, 3, config.head_dim).permute(3, 0, 1, 2, 4, 5)
    chunks = torch.from_numpy(saved).view(torch.float32).view(whole.shape)
    torch.testing.assert_close(chunks, whole, rtol=1e-4, atol=1e-5)
    assert np.array_equal(again, saved)
