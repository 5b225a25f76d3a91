"""The loop over a device that works ahead: what is launched, answered and awaited, and in which order."""

from __future__ import annotations

import os

import numpy as np
import pytest
import torch

from radixrt.messages import Connect, RowOpen, RunnerReady, StepFailed, StepMasks, StepResult
from radixrt.runner.ahead import AheadStepper
from radixrt.runner.ahead_loop import AheadLoop
from radixrt.runner.draws import draw_plain
from radixrt.runner.inbox import Inbox

from .fakes import FakeLink, FakeModel, plan
from .late_device import LateDevice, LateEvent

V = 64
READY = RunnerReady(kv_tokens=40, context_length=64, vocab_size=V, dtype="float32", device="cuda", threads=1)


class WorkingDevice(LateDevice):
    """Gets its work done while the loop waits."""

    def __init__(self) -> None:
        super().__init__()
        self.watched: list[LateEvent] = []

    def watch(self, event: LateEvent) -> None:
        self.watched.append(event)

    def pass_time(self) -> None:
        for event in self.watched:
            event.wait()
        self.watched.clear()
        os.eventfd_write(self.wake, 1)


class Line(FakeLink):
    def __init__(self, device: WorkingDevice) -> None:
        super().__init__()
        self.device = device
        self.waited = 0

    def wait(self, timeout_s: float | None, also: int | None = None) -> bool:
        self.waited += 1
        if also is not None and not self.incoming:
            self.device.pass_time()
            return True
        return super().wait(timeout_s)


@pytest.fixture
def model() -> FakeModel:
    return FakeModel(V)


@pytest.fixture
def device() -> WorkingDevice:
    return WorkingDevice()


@pytest.fixture
def line(device: WorkingDevice) -> Line:
    return Line(device)


@pytest.fixture
def loop(model: FakeModel, device: WorkingDevice, line: Line) -> AheadLoop:
    kv = torch.zeros(1, 2, 1, 41, 2)
    stepper = AheadStepper(device, model, kv, vocab_size=V, vocabulary=V, context_length=64, drawer=draw_plain)
    line.incoming.append(Connect())
    made = AheadLoop(Inbox(line), stepper, READY)
    made.turn()
    assert line.sent == [READY]
    line.sent.clear()
    return made


def prefill(step: int = 0, row: int = 0, **more: object) -> object:
    entry = {"row": row, "tokens": [5, 6, 7], "at": 0, "slots": [row * 10 + i for i in range(3)]}
    return plan(step, [entry], opens=[RowOpen(row=row, temperature=0.0)], **more)


def decode(step: int, at: int, row: int = 0, **more: object) -> object:
    slots = [row * 10 + i for i in range(at + 1)]
    return plan(step, [{"row": row, "tokens": [-1], "at": at, "slots": slots[-1:], "private": slots[:-1]}], **more)


def tokens(line: Line) -> list[int]:
    return [int(result.tokens[0]) for result in line.sent if isinstance(result, StepResult)]


def test_a_step_is_answered_when_the_device_is_done(loop, line, model) -> None:
    line.incoming.append(prefill())
    loop.turn()
    assert not line.sent  # under way, and nothing else to do
    loop.turn()
    assert tokens(line) == model.greedy([5, 6, 7], 1)


def test_the_next_step_is_launched_before_this_one_is_settled(loop, line, model, device) -> None:
    line.incoming.extend([prefill(), decode(1, 3), decode(2, 4)])
    loop.turn()
    loop.turn()
    assert model.forwards == 1 and len(line.sent) == 1  # the second is queued behind the first, which is answered
    loop.turn()
    loop.turn()
    assert tokens(line) == model.greedy([5, 6, 7], 3)
    assert line.waited == 1 and device.waits <= 3


def test_masks_come_after_the_answer_that_they_depend_on(loop, line, model) -> None:
    line.incoming.extend([prefill(), decode(1, 3, masked=[0]), "pause"])
    bits = np.zeros((1, V // 32), np.int32)
    bits[0, 0] = 1 << 9
    loop.turn()
    line.incoming.append(StepMasks(step=1, bitmask=bits))
    loop.turn()
    assert len(line.sent) == 1
    loop.turn()
    assert tokens(line) == [model.greedy([5, 6, 7], 1)[0], 9]


def test_what_fails_fails_alone_and_in_order(loop, line, model) -> None:
    bad = plan(1, [{"row": 0, "tokens": [-1], "at": 3, "slots": [40], "private": [0, 1, 2]}])  # the spare slot
    line.incoming.extend([prefill(), bad, prefill(2, row=1)])
    for _ in range(4):
        loop.turn()
    assert [type(each) for each in line.sent] == [StepResult, StepFailed, StepResult]
    assert "slots" in line.sent[1].message
    assert tokens(line) == model.greedy([5, 6, 7], 1) * 2


def test_what_raises_on_the_device_is_answered_too(loop, line, model) -> None:
    model.fail = True
    line.incoming.extend([prefill(), decode(1, 3)])
    loop.turn()
    loop.turn()
    model.fail = False
    loop.turn()
    assert [type(each) for each in line.sent] == [StepFailed, StepFailed]


def test_an_id_given_to_another_row_meanwhile(loop, line, model) -> None:
    """The first row of id 0 is closed, and the next one opened, by a plan that is launched before it has its token."""
    second = plan(1, [{"row": 0, "tokens": [9], "at": 0, "slots": [20]}], closes=[0],
                  opens=[RowOpen(row=0, temperature=0.0)])  # fmt: skip
    third = plan(2, [{"row": 0, "tokens": [-1], "at": 1, "slots": [21], "private": [20]}])
    line.incoming.extend([prefill(), second, third])
    for _ in range(4):
        loop.turn()
    assert tokens(line) == [*model.greedy([5, 6, 7], 1), *model.greedy([9], 2)]


def test_a_new_scheduler_gets_no_answers_to_the_old_one(loop, line) -> None:
    line.incoming.append(prefill())
    loop.turn()
    line.incoming.append(Connect())
    loop.turn()
    assert line.sent == [READY]
