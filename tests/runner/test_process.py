"""The whole process, over its socket, on a small random llama; transformers says what the tokens must be."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
import zmq

import radixrt
from radixrt.config import RunnerConfig
from radixrt.messages import (
    Connect,
    FromRunner,
    Loading,
    RowOpen,
    RunnerReady,
    ScoreSpec,
    StartupFailed,
    StepFailed,
    StepMasks,
    StepResult,
    ToRunner,
)  # fmt: skip
from radixrt.transport import Link, open_socket, private_directory
from tests.waiting import HANG_S

from .fakes import plan

V = 300
ROOT = Path(radixrt.__file__).parents[1]


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    """(folder, transformers' model)."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=V, hidden_size=64, intermediate_size=128, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=256, tie_word_embeddings=False, initializer_range=0.3,
    )  # fmt: skip
    model = LlamaForCausalLM(config).eval()
    folder = tmp_path_factory.mktemp("llama")
    model.save_pretrained(folder)
    return folder, model


def greedy(model, tokens: list[int], count: int) -> list[int]:
    with torch.inference_mode():
        for _ in range(count):
            tokens = [*tokens, int(model(torch.tensor([tokens])).logits[0, -1].argmax())]
    return tokens[-count:]


class Runner:
    """A runner process and the scheduler's end of its link."""

    def __init__(self, model_path: Path, **config) -> None:
        self.directory = private_directory()
        address = f"ipc://{self.directory}/runner"
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "radixrt.runner"],
            stdin=subprocess.PIPE,
            env=os.environ | {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE", "PYTHONPATH": str(ROOT)},
        )
        settings = {
            "model_path": str(model_path), "dtype": "float32", "threads": 1, "context_length": None, "kv_tokens": 512,
            "runner_address": address, "ipc_dir": self.directory, "log_level": "error",
        }  # fmt: skip
        self.process.stdin.write(msgspec.json.encode(RunnerConfig(**(settings | config))) + b"\n")
        self.process.stdin.flush()
        self.context = zmq.Context()
        self.link: Link[FromRunner, ToRunner] = Link(
            open_socket(self.context, zmq.DEALER, address, bind=False), FromRunner
        )
        self._arrived: list[FromRunner] = []
        self.link.send(Connect())

    def next(self) -> FromRunner:
        deadline = time.monotonic() + HANG_S
        while not self._arrived:
            ended = self.process.poll()
            if not self.link.wait(0.2):
                assert ended is None, f"the runner ended with {ended}"
                assert time.monotonic() < deadline, "the runner says nothing"
            self._arrived = [message for _, message in self.link.receive()]
        return self._arrived.pop(0)

    def ask(self, *messages: ToRunner) -> list[FromRunner]:
        for message in messages:
            assert self.link.send(message)
        return [self.next() for message in messages if not isinstance(message, StepMasks)]

    def close(self) -> int:
        self.process.stdin.close()
        self.link.close(0)
        self.context.term()
        return self.process.wait(HANG_S)


@pytest.fixture(scope="module")
def runner(llama):
    runner = Runner(llama[0])
    messages = [runner.next()]
    while isinstance(messages[-1], Loading):
        messages.append(runner.next())
    runner.messages = messages
    yield runner
    runner.close()


@pytest.fixture(autouse=True)
def fresh_rows(request):
    """Each test finds a runner without open rows."""
    if "runner" in request.fixturenames:
        runner = request.getfixturevalue("runner")
        assert isinstance(runner.ask(Connect())[0], RunnerReady)


def test_it_reports_loading_and_then_itself(runner):
    *loading, ready = runner.messages
    assert loading
    assert all(isinstance(message, Loading) and 0 <= message.fraction <= 1 for message in loading)
    assert ready == RunnerReady(
        kv_tokens=512, context_length=256, vocab_size=V, dtype="float32", kv_dtype="float32", device="cpu", threads=1,
        embedding_size=64, description=ready.description, slow=ready.slow,
    )  # fmt: skip
    assert "float32 KV" in ready.description and "1 thread" in ready.description


def test_a_shared_prefix_planned_ahead_gives_transformers_tokens(runner, llama):
    """Two rows over one prefix, one of them in chunks; decode steps are all sent before the first answer."""
    prefix, a, b = [7, 8, 9, 10, 11], [20, 21], [30, 31, 32]
    shared = list(range(100, 105))
    steps = [
        plan(
            0,
            [
                {"row": 0, "tokens": prefix + a, "at": 0, "slots": [*shared, 1, 2]},
                {"row": 1, "tokens": b[:2], "at": 5, "slots": [11, 12], "sample": False},
            ],
            opens=[RowOpen(row=0, temperature=0.0), RowOpen(row=1, temperature=0.0)],
            spans=[(shared, 1, 2)],
        )
    ]
    for i in range(8):
        second = {"row": 1, "tokens": [-1], "at": 7 + i, "slots": [13 + i], "private": range(11, 13 + i)}
        if i == 0:
            second["tokens"] = b[2:]
        first = {"row": 0, "tokens": [-1], "at": 7 + i, "slots": [3 + i], "private": range(1, 3 + i)}
        steps.append(plan(i + 1, [first, second], spans=[(shared, 0, 2)]))
    answers = runner.ask(*steps)
    assert [answer.step for answer in answers] == list(range(9))
    assert answers[0].tokens.shape == (1,)
    tokens = np.stack([answer.tokens for answer in answers[1:]])
    assert [int(answers[0].tokens[0]), *tokens[:, 0].tolist()] == greedy(llama[1], prefix + a, 9)
    assert tokens[:, 1].tolist() == greedy(llama[1], prefix + b, 8)
    assert all(answer.forward_s > 0 and answer.sample_s > 0 for answer in answers)


def test_prompt_scores_are_transformers_log_probabilities(runner, llama):
    text = [5, 6, 7, 200, 299, 0, 3]
    spec = ScoreSpec(row_index=0, first=0, targets=np.array(text[1:], np.int32), top=3)
    entry = {"row": 0, "tokens": text, "at": 0, "slots": range(7)}
    (answer,) = runner.ask(plan(0, [entry], opens=[RowOpen(row=0, temperature=0.0, logprobs=4)], scores=[spec]))
    with torch.inference_mode():
        expected = torch.log_softmax(llama[1](torch.tensor([text])).logits[0].double(), -1)
    wanted = expected[:-1].gather(1, torch.tensor(text[1:])[:, None])[:, 0]
    np.testing.assert_allclose(answer.scores[0].logprobs, wanted, atol=1e-3)
    np.testing.assert_allclose(answer.scores[0].top_logprobs, expected[:-1].topk(3).values, atol=1e-3)
    np.testing.assert_allclose(answer.top_logprobs[0], expected[-1].topk(4).values, atol=1e-3)
    assert answer.top_ids[0, 0] == answer.tokens[0]


def test_masks_that_arrive_late(runner, llama):
    """The masks of a step are sent after the next plan; what they forbid is not sampled."""
    best = greedy(llama[1], [1, 2], 1)[0]
    bits = np.ones((1, 320), np.uint8)
    bits[0, best] = 0
    bitmask = np.packbits(bits, axis=-1, bitorder="little").view(np.int32)
    first = plan(
        0,
        [{"row": 0, "tokens": [1, 2], "at": 0, "slots": [0, 1]}],
        opens=[RowOpen(row=0, temperature=0.0)],
        masked=[0],
    )  # fmt: skip
    second = plan(1, [{"row": 0, "tokens": [-1], "at": 2, "slots": [2], "private": [0, 1]}])
    answers = runner.ask(first, second, StepMasks(step=0, bitmask=bitmask))
    with torch.inference_mode():
        second_best = int(llama[1](torch.tensor([[1, 2]])).logits[0, -1].topk(2).indices[1])
    assert answers[0].tokens.tolist() == [second_best]
    assert answers[1].tokens.tolist() == greedy(llama[1], [1, 2, second_best], 1)


def test_a_malformed_plan_is_refused_and_the_next_one_runs(runner, llama):
    entry = {"row": 0, "tokens": [1, 2], "at": 0, "slots": [0, 512]}
    good = {"row": 0, "tokens": [1, 2], "at": 0, "slots": [0, 1]}
    closed = {"row": 0, "tokens": [-1], "at": 2, "slots": [2], "private": [0, 1]}
    answers = runner.ask(
        plan(0, [entry], opens=[RowOpen(row=0, temperature=0.0)]),
        plan(1, [good]),
        plan(2, [closed], closes=[0]),
        plan(3, [good], opens=[RowOpen(row=0, temperature=0.0)]),
    )
    assert [type(answer) for answer in answers] == [StepFailed, StepResult, StepFailed, StepResult]
    assert "slots" in answers[0].message
    assert "rows" in answers[2].message
    assert answers[1].tokens.tolist() == answers[3].tokens.tolist() == greedy(llama[1], [1, 2], 1)


def test_it_ends_when_its_parent_is_gone(llama):
    runner = Runner(llama[0])
    assert isinstance(runner.next(), Loading | RunnerReady)
    assert runner.close() == 0
    assert not Path(runner.directory).exists()


@pytest.mark.parametrize(
    ("change", "kind", "words"),
    [
        ({"model_path": "/nowhere/at-all"}, "ModelError", ""),
        ({"kv_tokens": 10**12}, "StartupError", "KV tokens"),
        ({"dtype": "float8"}, "StartupError", "float8"),
    ],
)
def test_what_keeps_it_from_starting_is_told_and_it_exits(llama, change, kind, words):
    runner = Runner(**({"model_path": llama[0]} | change), log_level="error")
    try:
        message = runner.next()
        while isinstance(message, Loading):
            message = runner.next()
        assert isinstance(message, StartupFailed)
        assert message.error.kind == kind
        assert words in message.error.message
        assert "/nowhere" not in message.error.message
        assert runner.process.wait(HANG_S) == 1
    finally:
        runner.close()
