"""The encoder's runner: plans into vectors, faults into StepFailed, and what hidden states are pooled into."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from radixrt.checkpoint import open_checkpoint
from radixrt.config import RunnerConfig
from radixrt.errors import StartupError
from radixrt.messages import Connect, EncodePlan, EncodeResult, RunnerReady, StepFailed
from radixrt.models.bert import BertEncoder
from radixrt.runner import encode
from radixrt.runner.inbox import Inbox
from radixrt.runner.pooling import pool_rows, pool_texts
from tests.tiny_bert import POSITIONS, WORDS, tiny_bert, true_vectors, write_tiny_bert

from .fakes import FakeLink

CONFIG = RunnerConfig(
    model_path="", dtype="auto", threads=1, context_length=None, kv_tokens=None, runner_address="", ipc_dir="",
    log_level="warning", device="cpu",
)  # fmt: skip
TEXTS = [[2, 60, 61, 3], [2], [2, 70, 3, 5, 9, 3]]


@pytest.fixture(scope="module")
def truth() -> Any:
    return tiny_bert()


@pytest.fixture(scope="module")
def path(truth: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_bert(tmp_path_factory.mktemp("bert") / "dir", truth, tokens=20)


@pytest.fixture(scope="module")
def loaded(path: Path) -> tuple[BertEncoder, RunnerReady]:
    return encode.load(CONFIG, open_checkpoint(path), lambda stage, fraction: None)


def plan(step: int = 1, texts: list[list[int]] = TEXTS, pooling: str = "mean", **changes: Any) -> EncodePlan:
    made = EncodePlan(
        step=step,
        tokens=np.array([token for text in texts for token in text], np.int32),
        lengths=np.array([len(text) for text in texts], np.int32),
        pooling=pooling,
    )
    return msgspec.structs.replace(made, **changes)


@pytest.mark.parametrize("pooling", ["mean", "cls", "last"])
def test_vectors(loaded: tuple[BertEncoder, RunnerReady], truth: Any, pooling: str) -> None:
    with torch.inference_mode():
        result = encode.run(loaded[0], plan(pooling=pooling))
    assert result.vectors.dtype == np.float32 and result.vectors.shape == (3, 32)
    unit = result.vectors / np.linalg.norm(result.vectors, axis=1, keepdims=True)
    np.testing.assert_allclose(unit, true_vectors(truth, TEXTS, pooling), atol=1e-5)


def test_what_is_said_when_it_is_ready(loaded: tuple[BertEncoder, RunnerReady]) -> None:
    ready = loaded[1]
    assert (ready.kv_tokens, ready.context_length, ready.vocab_size) == (0, 20, len(WORDS))
    assert (ready.dtype, ready.embedding_size) == ("float32", 32)


def test_plans_are_answered_in_order_and_a_fault_is_its_own(loaded: tuple[BertEncoder, RunnerReady]) -> None:
    link = FakeLink()
    inbox = Inbox(link)  # type: ignore[arg-type]
    link.incoming.extend([Connect(), plan(1), plan(2, [[len(WORDS)]]), plan(3)])
    with torch.inference_mode():
        while link.incoming or inbox.plans or inbox.connected:
            encode.turn(inbox, *loaded)
    ready, first, fault, third = link.sent
    assert ready == loaded[1] and isinstance(first, EncodeResult) and isinstance(third, EncodeResult)
    assert (first.step, third.step) == (1, 3) and isinstance(fault, StepFailed) and "does not know" in fault.message


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"lengths": np.array([1, 2], np.int32)}, "add up"),
        ({"lengths": np.array([0, 11], np.int32)}, "add up"),
        ({"lengths": np.array([], np.int32)}, "not empty"),
        ({"tokens": np.array([-1] * 11, np.int32)}, "does not know"),
        ({"pooling": "max"}, "pooling"),
        ({"tokens": np.ones(POSITIONS + 1, np.int32), "lengths": np.array([POSITIONS + 1], np.int32)}, "positions"),
    ],
)
def test_plans_that_contradict_themselves(
    loaded: tuple[BertEncoder, RunnerReady], changes: dict[str, Any], words: str
) -> None:
    with torch.inference_mode(), pytest.raises(encode.PlanError, match=words):
        encode.run(loaded[0], plan(**changes))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"kv_tokens": 100}, "--kv-tokens"),
        ({"tp": 2}, "--tp"),
        ({"draft_path": "x"}, "--draft-model"),
        ({"cache_dir": "x"}, "--cache-dir"),
        ({"cache_host_bytes": 9}, "--cache-host-bytes"),
        ({"weights": "int8"}, "--weights"),
        ({"attention": "torch"}, "--attention"),
        ({"load_format": "dummy"}, "--load-format"),
        ({"context_length": POSITIONS + 1}, "--context-length"),
    ],
)
def test_options_that_an_encoder_has_no_use_for(path: Path, change: dict[str, Any], words: str) -> None:
    config = msgspec.structs.replace(CONFIG, **change)
    with pytest.raises(StartupError, match=words):
        encode.load(config, open_checkpoint(path), lambda stage, fraction: None)


def test_more_context_than_the_files_say_up_to_the_positions(path: Path) -> None:
    config = msgspec.structs.replace(CONFIG, context_length=POSITIONS, dtype="bfloat16")
    model, ready = encode.load(config, open_checkpoint(path), lambda stage, fraction: None)
    assert ready.context_length == POSITIONS and ready.dtype == "bfloat16"
    with torch.inference_mode():
        assert encode.run(model, plan(1, [[5] * POSITIONS])).vectors.dtype == np.float32


def test_a_steps_rows_are_pooled_as_the_plan_says() -> None:
    hidden = torch.arange(18, dtype=torch.float32).view(6, 3)
    ends = np.array([2, 3, 6])
    np.testing.assert_array_equal(pool_rows(hidden, ends, np.array([1, 0, 2], np.uint8)), [[3, 4, 5], [36, 39, 42]])
    np.testing.assert_array_equal(pool_texts(hidden, [2, 1, 3], "cls"), [[0, 1, 2], [6, 7, 8], [9, 10, 11]])
    np.testing.assert_array_equal(pool_texts(hidden, [2, 1, 3], "mean"), [[1.5, 2.5, 3.5], [6, 7, 8], [12, 13, 14]])
