"""The loop and its inbox over a link that is two lists; no sockets, no clocks."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from radixrt.messages import Connect, RowOpen, RunnerReady, StepFailed, StepMasks, StepResult
from radixrt.runner.inbox import Inbox, MasksMissing
from radixrt.runner.loop import turn
from radixrt.runner.step import Stepper

from .fakes import FakeLink, FakeModel, plan

READY = RunnerReady(kv_tokens=1, context_length=1, vocab_size=1, dtype="float32", device="cpu", threads=1)


class Bench:
    def __init__(self) -> None:
        self.link = FakeLink()
        self.model = FakeModel()
        self.inbox = Inbox(self.link)
        self.stepper = Stepper(
            self.model, torch.zeros(1, 2, 1, 100, 2), vocab_size=64, vocabulary=64, context_length=512
        )  # fmt: skip

    def go(self, *incoming):
        """Everything that the loop sends until there is nothing left to do."""
        self.link.incoming.extend(incoming)
        before = len(self.link.sent)
        while self.link.incoming or self.inbox.plans or self.inbox.connected:
            turn(self.inbox, self.stepper, READY)
        return self.link.sent[before:]


@pytest.fixture
def bench() -> Bench:
    bench = Bench()
    assert bench.go(Connect()) == [READY]
    return bench


def prefill(step: int, row: int = 0, masked=()):
    entry = {"row": row, "tokens": [1, 2], "at": 0, "slots": [2 * row, 2 * row + 1]}
    return plan(step, [entry], opens=[RowOpen(row=row, temperature=0.0)], masked=masked)


def allow(step: int, *ids: int) -> StepMasks:
    bits = np.zeros((1, 64), np.uint8)
    bits[0, list(ids)] = 1
    return StepMasks(step=step, bitmask=np.packbits(bits, axis=-1, bitorder="little").view(np.int32))


def test_plans_are_answered_in_order(bench):
    follow = plan(2, [{"row": 0, "tokens": [-1], "at": 2, "slots": [50], "private": [0, 1]}])
    answers = bench.go(prefill(1), follow)
    assert [type(a) for a in answers] == [StepResult, StepResult]
    assert [a.step for a in answers] == [1, 2]
    assert [int(a.tokens[0]) for a in answers] == bench.model.greedy([1, 2], 2)


@pytest.mark.parametrize(
    "order",
    [
        lambda p1, m1, p2, m2: [p1, m1, p2, m2],  # masks with their plan
        lambda p1, m1, p2, m2: [p1, "pause", m1, p2, "pause", m2],  # masks while the step runs
        lambda p1, m1, p2, m2: [p1, p2, "pause", m1, "pause", m2],  # the next plan before this step's masks
        lambda p1, m1, p2, m2: [p1, "pause", p2, "pause", m1, m2],
    ],
)
def test_masks_may_come_early_or_late(bench, order):
    answers = bench.go(*order(prefill(1, 0, [0]), allow(1, 9), prefill(2, 1, [0]), allow(2, 33)))
    assert [(a.step, a.tokens.tolist()) for a in answers] == [(1, [9]), (2, [33])]
    assert all(a.mask_wait_s >= 0 for a in answers)


def test_masks_that_never_come_fail_the_step_and_the_next_one_runs(bench):
    answers = bench.go(prefill(1, 0, [0]))
    assert isinstance(answers[0], StepFailed)
    assert "masks" in answers[0].message
    assert [type(a) for a in bench.go(prefill(2))] == [StepResult]


def test_waiting_for_masks_ends_when_another_scheduler_connects(bench):
    answers = bench.go(prefill(1, 0, [0]), "pause", Connect(), prefill(2))
    assert isinstance(answers[0], StepFailed)
    assert answers[1] == READY
    assert answers[2].step == 2
    assert len(answers) == 3


def test_stale_masks_do_not_pile_up(bench):
    bench.go(*[m for i in range(50) for m in (allow(i, 3), prefill(i))])
    with pytest.raises(MasksMissing):
        bench.inbox.masks(49)
    assert not bench.inbox._masks


def test_a_failing_step_says_so_without_details(bench):
    bench.model.fail = True
    (answer,) = bench.go(prefill(4))
    assert isinstance(answer, StepFailed)
    assert answer.step == 4
    assert "/secret" not in answer.message
    assert "0x" not in answer.message
    assert "RuntimeError" in answer.message
    bench.model.fail = False
    assert [type(a) for a in bench.go(prefill(5))] == [StepResult]


def test_a_malformed_plan_names_the_field(bench):
    (answer,) = bench.go(plan(3, [{"row": 8, "tokens": [1], "at": 0, "slots": [0]}]))
    assert isinstance(answer, StepFailed)
    assert "rows" in answer.message


def test_a_new_scheduler_starts_from_nothing(bench):
    bench.go(prefill(1))
    assert len(bench.stepper.rows) == 1
    assert bench.go(Connect()) == [READY]
    assert len(bench.stepper.rows) == 0


def test_strangers_are_not_served():
    bench = Bench()
    assert bench.go(prefill(1)) == []
