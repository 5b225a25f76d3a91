"""The scheduler process of an encoder: the sockets of `loop.py` around `encoding.EncodeScheduler`."""

from __future__ import annotations

from typing import Any

import zmq

from radixrt.errors import InvalidRequest, NotFound
from radixrt.messages import (
    Cancel,
    EncodeResult,
    EnqueueEmbed,
    FromRunner,
    FromScheduler,
    Rejected,
    RunSegments,
    SchedulerAnswer,
    SchedulerQuery,
    StepFailed,
    StopRow,
    ToRunner,
    ToScheduler,
    TreeView,
)
from radixrt.scheduler.encoding import EncodeScheduler
from radixrt.transport import Link


def serve(
    scheduler: EncodeScheduler,
    inward: Link[ToScheduler, Any],
    outward: Link[Any, FromScheduler],
    runner: Link[FromRunner, ToRunner],
) -> None:
    """One event in, everything that follows from it out, for ever."""
    poller = zmq.Poller()
    poller.register(inward.socket, zmq.POLLIN)
    poller.register(runner.socket, zmq.POLLIN)
    while True:
        poller.poll()
        for _, message in inward.receive():
            take(scheduler, message)
        for _, result in runner.receive():
            if isinstance(result, EncodeResult):
                scheduler.settle(result)
            elif isinstance(result, StepFailed):
                scheduler.fail_step(result)
        while scheduler.can_plan and (plan := scheduler.plan()) is not None:
            runner.send(plan)
        for answer in scheduler.outbox:
            outward.send(answer)
        scheduler.outbox.clear()


def take(scheduler: EncodeScheduler, message: ToScheduler) -> None:
    """One message from the tokenizer process, which refuses what an encoder cannot do before it comes here."""
    match message:
        case EnqueueEmbed():
            scheduler.enqueue(message)
        case Cancel(request_id=number):
            scheduler.cancel(number)
        case SchedulerQuery():
            scheduler.outbox.append(_answer(scheduler, message))
        case RunSegments() | StopRow():
            return  # of what was refused
        case _:
            error = InvalidRequest("the model is an encoder: it generates no text", code="model_cannot_generate")
            scheduler.outbox.append(Rejected(request_id=message.request_id, error=error.info()))


def _answer(scheduler: EncodeScheduler, query: SchedulerQuery) -> SchedulerAnswer:
    """There is no tree: it is empty, nothing can be freed, and no pin is there."""
    match query.what:
        case "stats":
            return SchedulerAnswer(query_id=query.query_id, stats=scheduler.snapshot())
        case "tree":
            nothing = TreeView(nodes=[], tokens=0, truncated=False, pins=[], pinned_tokens=0, pin_quota=0)
            return SchedulerAnswer(query_id=query.query_id, tree=nothing)
        case "flush":
            return SchedulerAnswer(query_id=query.query_id, freed_tokens=0)
        case "save":
            return SchedulerAnswer(query_id=query.query_id, tier_tokens=0)
        case "unpin":
            error = NotFound("there is no such pin", code="pin_not_found")
            return SchedulerAnswer(query_id=query.query_id, error=error.info())
