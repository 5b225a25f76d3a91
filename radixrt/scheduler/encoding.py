"""The scheduler of an encoder: texts in, whole ones packed into steps, vectors out. There is no cache and nothing to
sample, so a request is a list of texts and a step a choice of them.

Who goes next: the lowest priority number first; within it tenants (or salts) take turns, and each one's requests among
themselves, a text a turn: a request of one text does not wait behind one of thousands. Within a step the texts stand as
they were chosen. Like `core.Scheduler` it knows of no sockets, so tests drive it directly.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from radixrt.errors import GenerationFailed, Overloaded, RadixrtError
from radixrt.messages import EncodePlan, EncodeResult, EnqueueEmbed, FromScheduler, Pooled, Rejected, StepFailed
from radixrt.results import EngineStats, Usage
from radixrt.scheduler.embeds import check_texts
from radixrt.scheduler.requests import Limits
from radixrt.scheduler.stats import Stats


@dataclass(eq=False)
class Texts:
    """One EnqueueEmbed. Its texts, in order: [0, planned) are in a step or done, [planned, ..) wait."""

    id: int
    ids: list[NDArray[np.int32]]
    priority: int
    share: str | None
    arrived: float
    vectors: list[NDArray[np.float32] | None] = field(default_factory=list)
    planned: int = 0
    done: int = 0
    started: float | None = None
    ended: bool = False
    """Answered, failed or cancelled."""

    @property
    def waits(self) -> bool:
        return not self.ended and self.planned < len(self.ids)


@dataclass(eq=False)
class EncodeScheduler:
    """Batches texts for one encoder; each method is one event."""

    limits: Limits
    pooling: str
    clock: Callable[[], float] = time.monotonic
    stats: Stats = field(default_factory=Stats)
    outbox: list[FromScheduler] = field(default_factory=list)
    requests: dict[int, Texts] = field(default_factory=dict)
    steps: deque[tuple[int, list[tuple[Texts, int]]]] = field(default_factory=deque)
    """Steps under way: their number, and which text of which request each line is."""
    texts: int = 0
    """Embedded since start."""
    _turns: dict[int, dict[str | None, deque[Texts]]] = field(default_factory=dict)
    """Waiting requests by priority and share; both take turns by going to the end."""
    _number: int = 0

    def enqueue(self, message: EnqueueEmbed) -> None:
        """Queue a request, or answer Rejected."""
        limits = self.limits
        try:
            if len(self.requests) >= limits.max_waiting + limits.max_num_seqs:
                raise Overloaded(f"the queue is full ({limits.max_waiting} requests wait): try again later")
            ids = check_texts(message, limits.vocab_size, limits.context_length, "the model's context")
        except RadixrtError as error:
            self.outbox.append(Rejected(request_id=message.request_id, error=error.info()))
            return
        space = message.namespace
        request = Texts(message.request_id, ids, message.priority, space.tenant or space.salt, self.clock())
        request.vectors = [None] * len(ids)
        self.requests[request.id] = request
        self._turns.setdefault(request.priority, {}).setdefault(request.share, deque()).append(request)

    def cancel(self, request_id: int) -> None:
        """Drop a request; an unknown id is ignored."""
        request = self.requests.get(request_id)
        if request is not None:
            self._end(request, "abort")

    @property
    def can_plan(self) -> bool:
        return len(self.steps) <= self.limits.lookahead and any(self._turns.values())

    def plan(self) -> EncodePlan | None:
        """The next step, or None when nothing waits. A text longer than a step's budget has a step of its own."""
        begun, now = time.perf_counter(), self.clock()
        budget, chosen = self.limits.max_num_batched_tokens, list[tuple[Texts, int]]()
        while len(chosen) < self.limits.max_num_seqs:
            request = self._next()
            if request is None or (chosen and len(request.ids[request.planned]) > budget):
                break
            budget -= len(request.ids[request.planned])
            chosen.append((request, request.planned))
            request.started = now if request.started is None else request.started
            self._turn(request)
        if not chosen:
            return None
        self._number += 1
        ids = [request.ids[index] for request, index in chosen]
        self.steps.append((self._number, chosen))
        self.stats.steps += 1
        self.stats.plan_s += time.perf_counter() - begun
        return EncodePlan(
            step=self._number,
            tokens=np.concatenate(ids),
            lengths=np.array([len(text) for text in ids], dtype=np.int32),
            pooling=self.pooling,
        )

    def _next(self) -> Texts | None:
        """Whose turn it is; requests that ended while they waited drop out here."""
        while self._turns:
            priority = min(self._turns)
            shares = self._turns[priority]
            share = next(iter(shares))
            queue = shares[share]
            while queue and not queue[0].waits:
                queue.popleft()
            if queue:
                return queue[0]
            del shares[share]
            if not shares:
                del self._turns[priority]
        return None

    def _turn(self, request: Texts) -> None:
        """One of its texts was taken: others come before its next one."""
        request.planned += 1
        shares = self._turns[request.priority]
        queue = shares.pop(request.share)
        queue.popleft()
        if request.waits:
            queue.append(request)
        if queue:
            shares[request.share] = queue
        elif not shares:
            del self._turns[request.priority]

    def settle(self, result: EncodeResult) -> None:
        """Take in a step's vectors, and answer whose last one came."""
        number, lines = self.steps.popleft()
        if number != result.step:
            raise RuntimeError(f"step {result.step} was answered, but step {number} is next")
        self.stats.step_s += result.forward_s
        for (request, index), vector in zip(lines, result.vectors, strict=True):
            if request.ended:
                continue
            request.vectors[index] = vector
            request.done += 1
            if request.done == len(request.ids):
                usage = self._end(request, "embed")
                self.texts += request.done
                vectors = np.stack([vector for vector in request.vectors if vector is not None])
                self.outbox.append(Pooled(request_id=request.id, vectors=vectors, usage=usage))

    def fail_step(self, failed: StepFailed) -> None:
        """A step raised: the requests whose texts were in it fail, others go on."""
        _, lines = self.steps.popleft()
        error = GenerationFailed(f"the model runner failed: {failed.message}")
        for request in dict.fromkeys(request for request, _ in lines):
            if not request.ended:
                self._end(request, "error")
                self.outbox.append(Rejected(request_id=request.id, error=error.info()))

    def _end(self, request: Texts, outcome: str) -> Usage:
        request.ended = True
        del self.requests[request.id]
        now = self.clock()
        usage = Usage(
            prompt_tokens=sum(map(len, request.ids)),
            queue_s=(now if request.started is None else request.started) - request.arrived,
            ttft_s=now - request.arrived,
            total_s=now - request.arrived,
        )
        self.stats.finished_request(usage, outcome)
        return usage

    def snapshot(self) -> EngineStats:
        """Counters and gauges as they stand."""
        stats = self.stats
        running = sum(request.started is not None for request in self.requests.values())
        return EngineStats(
            running=running,
            waiting=len(self.requests) - running,
            prompt_tokens=stats.prompt_tokens,
            embedded_texts=self.texts,
            steps=stats.steps,
            plan_s=stats.plan_s,
            step_s=stats.step_s,
            finished=dict(stats.finished),
            queue_s=stats.queue.pair,
            total_s=stats.total.pair,
        )
