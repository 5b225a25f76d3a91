"""The scheduler process: sockets around `core.Scheduler`. One event in, everything that follows from it out."""

from __future__ import annotations

import logging
import math
import sys
from pathlib import Path
from typing import Any

import msgspec
import zmq

from radixrt.cache import Paced
from radixrt.checkpoint import Checkpoint, open_checkpoint
from radixrt.config import SchedulerConfig
from radixrt.errors import GenerationFailed, RadixrtError, StartupError
from radixrt.garbage import Tidier, spare_what_stays
from radixrt.grammar import CompileService, MaskFiller, ServiceLimits
from radixrt.messages import (
    Cancel,
    Connect,
    Enqueue,
    EnqueueEmbed,
    EnqueueSelect,
    FromRunner,
    FromScheduler,
    Loading,
    Ready,
    Rejected,
    RunnerReady,
    RunSegments,
    SchedulerAnswer,
    SchedulerQuery,
    StartupFailed,
    StepFailed,
    StepResult,
    StopRow,
    TierDone,
    ToRunner,
    ToScheduler,
)
from radixrt.scheduler import encoder_loop
from radixrt.scheduler.core import Scheduler
from radixrt.scheduler.encoding import EncodeScheduler
from radixrt.scheduler.events import EventPublisher, KvEvents
from radixrt.scheduler.facts import model_info, pooling_of
from radixrt.scheduler.inspector import answer
from radixrt.scheduler.memory import make_cache
from radixrt.scheduler.policies import PolicyOptions
from radixrt.scheduler.requests import Limits
from radixrt.scheduler.rows import RowTable
from radixrt.tiers.keys import CHUNK
from radixrt.transport import Link, open_socket

log = logging.getLogger(__name__)

IDLE_S = 0.2
"""When nothing has happened for so long, what the tier lacks is saved, and the first compile worker is started, which
would take a core from the first requests."""


class SchedulerProcess:
    """Owns the sockets, the compile service and, once the runner is ready, the scheduler."""

    def __init__(self, config: SchedulerConfig) -> None:
        self._config = config
        self._to_save: list[int] = []
        """Queries that asked to save what the tree holds."""
        self._syncing: tuple[int, list[int]] | None = None
        """The TierWork whose end says that all is safe, and the queries that it answers."""
        context: zmq.Context[Any] = zmq.Context()
        self._context = context
        self._events: EventPublisher | None = None
        self._inward: Link[ToScheduler, Any] = Link(
            open_socket(context, zmq.PULL, config.scheduler_in, bind=False), ToScheduler
        )
        self._outward: Link[Any, FromScheduler] = Link(
            open_socket(context, zmq.PUSH, config.scheduler_out, bind=False), FromScheduler
        )
        self._runner: Link[FromRunner, ToRunner] = Link(
            open_socket(context, zmq.DEALER, config.runner_address, bind=False), FromRunner
        )
        self._runner.send(Connect())

    def run(self) -> None:
        """Start up, then serve for ever."""
        try:
            checkpoint = open_checkpoint(Path(self._config.model_path))
            encoder = self._start_encoder(checkpoint) if checkpoint.encoder is not None else None
            if encoder is None:
                self._start(checkpoint)
        except RadixrtError as error:
            self._outward.send(StartupFailed(error=error.info()))
            self._outward.close(linger_ms=2000)
            sys.exit(1)
        if encoder is not None:
            spare_what_stays()
            encoder_loop.serve(encoder, self._inward, self._outward, self._runner)
        poller = zmq.Poller()
        poller.register(self._inward.socket, zmq.POLLIN)
        poller.register(self._runner.socket, zmq.POLLIN)
        poller.register(self._compiler.fileno(), zmq.POLLIN)
        if self._events is not None:
            poller.register(self._events.replay, zmq.POLLIN)
        checked, tidy = True, Tidier()
        while True:
            if not poller.poll(self._timeout_ms(checked)) and not (
                self._scheduler.steps or self._scheduler.rows.waiting
            ):
                self._scheduler.tiering.sweep(self._scheduler.clock())
                self._compiler.start()
            for _, message in self._inward.receive():
                self._take(message)
            if self._compiler.completed():
                self._scheduler.compiled()
            for _, result in self._runner.receive():
                if isinstance(result, StepResult):
                    self._scheduler.settle(result)
                elif isinstance(result, StepFailed):
                    self._scheduler.fail_step(result)
                elif isinstance(result, TierDone):
                    self._tier_done(result)
            self._advance()
            if self._scheduler.steps:
                tidy()  # while the runner computes
            self._scheduler.cache.keep_free()
            if self._events is not None:
                self._events.flush()
                self._events.answer()  # with all that has happened by now
            checked = self._paced.tick()

    def _start_encoder(self, checkpoint: Checkpoint) -> EncodeScheduler:
        """Wait for the runner, and say what is served."""
        config = self._config
        if config.kv_events is not None:
            raise StartupError("an encoder has no KV cache: leave out --kv-events", param="kv_events")
        ready = self._wait_for_runner()
        pooling, _ = pooling_of(checkpoint, config.pooling)
        limits = Limits(
            context_length=ready.context_length,
            vocab_size=ready.vocab_size,
            eos_token_ids=(),
            max_num_seqs=config.max_num_seqs,
            max_num_batched_tokens=config.max_num_batched_tokens,
            max_waiting=config.max_waiting,
            lookahead=config.lookahead,
        )
        self._outward.send(Ready(info=model_info(config, ready, checkpoint, (), ready.context_length)))
        return EncodeScheduler(limits, pooling)

    def _start(self, checkpoint: Checkpoint) -> None:
        """Count the token ids while the runner loads the model, then build the scheduler for the runner's pool."""
        config = self._config
        vocabulary = checkpoint.token_ids(config.tokenizer)
        ready = self._wait_for_runner()
        context_length = min(config.context_length or ready.context_length, ready.context_length)
        kept = ServiceLimits(preferred=config.grammar_backend)
        self._compiler = CompileService(
            vocabulary, ready.vocab_size, config.grammar, service_limits=kept, start=False
        )  # fmt: skip
        limits = Limits(
            context_length=context_length,
            vocab_size=ready.vocab_size,
            eos_token_ids=vocabulary.eos_ids,
            max_num_seqs=config.max_num_seqs,
            max_num_batched_tokens=config.max_num_batched_tokens,
            max_waiting=config.max_waiting,
            lookahead=config.lookahead,
            max_drafts=config.max_drafts,
            draft_sources=config.draft_sources,
            max_draft_rows=config.max_draft_rows,
            share_from=config.share_from,
        )
        policy = PolicyOptions(
            name=config.policy,
            max_wait_s=config.max_wait_s,
            fair=config.fair,
            namespace_weights=config.namespace_weights,
        )
        cache = make_cache(config, ready.kv_tokens)
        if config.kv_events is not None:
            events = KvEvents()
            self._events = EventPublisher(self._context, events, config.kv_events, config.kv_events_replay)
            cache.tree.watchers.append(events)
        self._scheduler = Scheduler(
            rows=RowTable(cache, limits, policy),
            limits=limits,
            compiler=self._compiler,
            filler=MaskFiller(config.grammar.mask_deadline_s),
            prefix_cache=config.prefix_cache,
            check=config.check,
            tier=ready.tier,
        )
        self._paced = Paced(self._scheduler.rows.check, config.check_every_s)
        pooling, fault = pooling_of(checkpoint, config.pooling)
        self._scheduler.embeds.pooling = "mean" if pooling == "mean" else "last"
        self._scheduler.embeds.fault = fault
        self._outward.send(Ready(info=model_info(config, ready, checkpoint, vocabulary.eos_ids, context_length)))

    def _wait_for_runner(self) -> RunnerReady:
        while True:
            self._runner.wait(None)
            for _, message in self._runner.receive():
                if isinstance(message, RunnerReady):
                    return message
                if isinstance(message, Loading):
                    self._outward.send(message)
                elif isinstance(message, StartupFailed):
                    raise RadixrtError.from_info(message.error)
                else:
                    raise StartupError(f"the runner sent {type(message).__name__} before it was ready")

    def _take(self, message: ToScheduler) -> None:
        """One message from the tokenizer process; a fault in a request costs only that request."""
        if isinstance(message, Enqueue | EnqueueSelect | EnqueueEmbed):
            try:
                self._scheduler.enqueue(message)
            except Exception:  # whatever it is, it must not take the others along
                log.exception("request %d could not be queued", message.request_id)
                self._scheduler.cancel(message.request_id)
                error = GenerationFailed("the request could not be queued: see the server's log")
                self._scheduler.outbox.append(Rejected(request_id=message.request_id, error=error.info()))
        elif isinstance(message, RunSegments):
            self._scheduler.programs.take(message)
        elif isinstance(message, StopRow):
            self._scheduler.stop_row(message.request_id, message.index, message.keep)
        elif isinstance(message, Cancel):
            self._scheduler.cancel(message.request_id)
        elif message.what == "save":
            if self._scheduler.tiering.state is None:
                self._outward.send(self._saved(message.query_id))
            else:
                self._to_save.append(message.query_id)
                self._save()
        else:
            self._outward.send(self._answer(message))

    def _tier_done(self, message: TierDone) -> None:
        self._scheduler.tiering.done(message, self._scheduler.clock())
        if self._syncing is not None and self._syncing[0] == message.number:
            for query in self._syncing[1]:
                self._outward.send(self._saved(query))
            self._syncing = None
        self._save()

    def _saved(self, query_id: int) -> SchedulerAnswer:
        return SchedulerAnswer(query_id=query_id, tier_tokens=len(self._scheduler.tiering.index) * CHUNK)

    def _timeout_ms(self, checked: bool) -> int | None:
        """How long nothing need be done though nothing arrives."""
        scheduler, now = self._scheduler, self._scheduler.clock()
        left_s = [scheduler.deadlines.seconds_left(now), scheduler.tiering.seconds_left(now)]
        if not scheduler.steps and (scheduler.tiering.behind(now) or not self._compiler.started):
            left_s.append(IDLE_S)
        if not checked and self._config.check_every_s:
            left_s.append(
                self._config.check_every_s
            )  # what was not checked while it was busy is checked once it is not
        return min((math.ceil(left * 1000) for left in left_s if left is not None), default=None)

    def _save(self) -> None:
        """Go on saving what the tree holds, for those who asked for it; they are answered when it is safe."""
        if self._to_save and self._syncing is None:
            number = self._scheduler.tiering.save_more(self._scheduler.clock())
            if number is not None:
                self._syncing, self._to_save = (number, self._to_save), []

    def _answer(self, query: SchedulerQuery) -> SchedulerAnswer:
        told = answer(self._scheduler, query)
        if told.stats is None:
            return told
        stats = msgspec.structs.replace(
            told.stats,
            checks=self._paced.runs,
            check_s=self._paced.seconds,
            grammar_compiles=self._compiler.compiles,
            grammar_backends=dict(self._compiler.by_backend),
            grammar_refusals=self._compiler.refusals,
            grammar_workers_lost=self._compiler.workers_lost,
            grammar_cache_hits=self._compiler.cache_hits,
            grammar_compile_s=self._compiler.compile_seconds,
        )
        return msgspec.structs.replace(told, stats=stats)

    def _advance(self) -> None:
        """Keep the runner busy first, then tell what is new.

        The other way round where nothing is under way and newcomers are to be planned: that takes a while, and the
        runner's cores meanwhile are those of the processes that pass on what is new.
        """
        scheduler = self._scheduler
        scheduler.expire()
        if not scheduler.steps and scheduler.rows.waiting:
            self._tell()
        while True:
            masks = scheduler.masks()
            if masks is not None:
                self._runner.send(masks)
            plan = scheduler.plan() if scheduler.can_plan else None
            for work in scheduler.tiering.pack():
                self._runner.send(work)
            if plan is None:
                break
            self._runner.send(plan)
        self._tell()

    def _tell(self) -> None:
        """Send what this event has brought so far to the tokenizer process."""
        self._scheduler.flush()
        for message in self._scheduler.outbox:
            self._outward.send(message)
        self._scheduler.outbox.clear()
