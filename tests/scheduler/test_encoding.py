"""The encoder's scheduler, driven without sockets: what goes into a step, who goes first, how requests end."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from radixrt.messages import (
    Cancel,
    EncodePlan,
    EncodeResult,
    Enqueue,
    EnqueueEmbed,
    Namespace,
    Pooled,
    Rejected,
    SchedulerAnswer,
    SchedulerQuery,
    StepFailed,
)
from radixrt.params import SamplingParams
from radixrt.scheduler.encoder_loop import take
from radixrt.scheduler.encoding import EncodeScheduler
from radixrt.scheduler.requests import Limits

from .fakes import Clock


def scheduler(**sizes: Any) -> EncodeScheduler:
    limits = {"context_length": 16, "vocab_size": 100, "eos_token_ids": (), "max_num_seqs": 4,
              "max_num_batched_tokens": 12, "max_waiting": 3}  # fmt: skip
    return EncodeScheduler(Limits(**(limits | sizes)), "mean", clock=Clock())


def texts(number: int, *lengths: int, tenant: str | None = None, **more: Any) -> EnqueueEmbed:
    """Every token of a text is the request's number, but the last: which text it is."""
    ids = [[number] * (length - 1) + [index] for index, length in enumerate(lengths)]
    return EnqueueEmbed(
        request_id=number,
        ids=np.array([token for text in ids for token in text], np.int32),
        lengths=np.array(lengths, np.int32),
        namespace=Namespace(tenant=tenant),
        **more,
    )


def split(plan: EncodePlan) -> list[list[int]]:
    return [part.tolist() for part in np.split(plan.tokens, plan.lengths.cumsum()[:-1])]


def vectors(plan: EncodePlan) -> EncodeResult:
    """A vector says whose it is: (the first token, the last, the length)."""
    rows = [[text[0], text[-1], len(text)] for text in split(plan)]
    return EncodeResult(step=plan.step, vectors=np.array(rows, np.float32), forward_s=0.25)


def drain(it: EncodeScheduler) -> list[list[list[int]]]:
    """Run until nothing is left; the texts of each step."""
    steps = []
    plans: list[EncodePlan] = []
    while it.can_plan or plans:
        plan = it.plan() if it.can_plan else None
        if plan is not None:
            plans.append(plan)
            steps.append(split(plan))
        if plans and (plan is None or not it.can_plan):
            it.settle(vectors(plans.pop(0)))
    return steps


def test_a_request_is_answered_with_a_vector_of_each_text_in_order() -> None:
    it = scheduler()
    it.enqueue(texts(7, 5, 9, 3, 16, 1))
    steps = drain(it)
    assert all(sum(map(len, step)) <= 12 or len(step) == 1 for step in steps) and len(steps) == 4
    [answer] = it.outbox
    assert isinstance(answer, Pooled) and answer.request_id == 7
    assert [(int(v[1]), int(v[2])) for v in answer.vectors] == [(0, 5), (1, 9), (2, 3), (3, 16), (4, 1)]
    assert answer.usage.prompt_tokens == 34 and answer.usage.completion_tokens == 0
    assert it.snapshot().embedded_texts == 5 and it.snapshot().finished == {"embed": 1}
    assert (it.snapshot().running, it.snapshot().waiting) == (0, 0)


def test_a_step_has_a_most_of_rows() -> None:
    it = scheduler()
    it.enqueue(texts(1, *[1] * 6))
    assert [len(step) for step in drain(it)] == [4, 2]


def test_a_small_request_does_not_wait_behind_a_large_one() -> None:
    it = scheduler(lookahead=0)
    it.enqueue(texts(1, *[6] * 10))
    it.enqueue(texts(2, 6))
    assert [text[0] for text in drain(it)[0]] == [1, 2]


def test_tenants_take_turns_whatever_they_ask_for() -> None:
    it = scheduler(lookahead=0, max_waiting=100)
    for number in (1, 2, 3):
        it.enqueue(texts(number, 6, 6, tenant="many"))
    it.enqueue(texts(4, 6, 6, tenant="one"))
    order = [text[0] for step in drain(it) for text in step]
    assert order == [1, 4, 2, 4, 3, 1, 2, 3]


def test_a_lower_priority_number_goes_first() -> None:
    it = scheduler(lookahead=0)
    it.enqueue(texts(1, 6, 6))
    it.enqueue(texts(2, 6, 6, priority=-1))
    assert [text[0] for step in drain(it) for text in step] == [2, 2, 1, 1]


def test_no_more_steps_are_under_way_than_may_be() -> None:
    it = scheduler(lookahead=1)
    it.enqueue(texts(1, *[12] * 4))
    first, second = it.plan(), it.plan()
    assert first is not None and second is not None and not it.can_plan
    it.settle(vectors(first))
    assert it.can_plan


def test_cancelled_texts_are_neither_planned_nor_answered() -> None:
    it = scheduler()
    it.enqueue(texts(1, *[12] * 4))
    it.enqueue(texts(2, 12))
    plan = it.plan()
    assert plan is not None
    take(it, Cancel(request_id=1))
    it.settle(vectors(plan))
    assert [text[0] for step in drain(it) for text in step] == [2]
    assert [answer.request_id for answer in it.outbox if isinstance(answer, Pooled)] == [2]
    assert it.snapshot().finished == {"abort": 1, "embed": 1} and not it.requests
    take(it, Cancel(request_id=1))  # once more is harmless


def test_a_step_that_fails_fails_those_who_were_in_it() -> None:
    it = scheduler(max_num_seqs=1)
    it.enqueue(texts(1, 2, 2))
    it.enqueue(texts(2, 2))
    plan = it.plan()
    assert plan is not None
    it.fail_step(StepFailed(step=plan.step, message="no memory"))
    assert [text[0] for step in drain(it) for text in step] == [2]
    failed, pooled = it.outbox
    assert isinstance(failed, Rejected) and failed.request_id == 1 and "no memory" in failed.error.message
    assert isinstance(pooled, Pooled) and it.snapshot().finished == {"error": 1, "embed": 1}


@pytest.mark.parametrize(
    ("message", "words", "kind"),
    [
        (texts(1, 3, 17, first=64), "input 65 has 17 tokens, but the model's context holds 16",
         "ContextLengthExceeded"),
        (EnqueueEmbed(request_id=1, ids=np.array([1, 100], np.int32), lengths=np.array([2], np.int32)),
         "between 0 and 99", "InvalidRequest"),
        (EnqueueEmbed(request_id=1, ids=np.array([1], np.int32), lengths=np.array([1, 0], np.int32)),
         "at least one token", "InvalidRequest"),
        (EnqueueEmbed(request_id=1, ids=np.zeros(0, np.int32), lengths=np.zeros(0, np.int32)),
         "at least one text", "InvalidRequest"),
    ],
)  # fmt: skip
def test_what_can_never_run_is_rejected(message: EnqueueEmbed, words: str, kind: str) -> None:
    it = scheduler()
    it.enqueue(message)
    [answer] = it.outbox
    assert isinstance(answer, Rejected) and words in answer.error.message and answer.error.kind == kind
    assert not it.can_plan and not it.requests


def test_a_full_queue_refuses() -> None:
    it = scheduler()
    for number in range(8):
        it.enqueue(texts(number, 1))
    [answer] = it.outbox
    assert isinstance(answer, Rejected) and answer.request_id == 7 and answer.error.kind == "Overloaded"


def test_questions_are_answered_without_a_tree() -> None:
    it = scheduler()
    for what in ("stats", "tree", "flush", "save", "unpin"):
        take(it, SchedulerQuery(query_id=3, what=what))
    stats, tree, flush, save, unpin = it.outbox
    assert all(isinstance(answer, SchedulerAnswer) and answer.query_id == 3 for answer in it.outbox)
    assert stats.stats is not None and tree.tree is not None and not tree.tree.nodes
    assert flush.freed_tokens == 0 and save.tier_tokens == 0 and unpin.error is not None


def test_generation_is_rejected() -> None:
    it = scheduler()
    take(it, Enqueue(request_id=5, ids=np.array([1], np.int32), sampling=SamplingParams()))
    [answer] = it.outbox
    assert isinstance(answer, Rejected) and answer.error.code == "model_cannot_generate"
