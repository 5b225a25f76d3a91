"""The scheduler without its sockets: requests in, step plans out, results in, tokens out.

Each method is one event. Nothing here waits, and nothing knows of ZeroMQ or the clock's source, so that tests drive
it with a fake runner and a fake clock.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable
from dataclasses import InitVar, dataclass, field

from radixrt.cache import PrefixCache, SlotError
from radixrt.errors import Aborted, GenerationFailed, Overloaded, RadixrtError
from radixrt.grammar import MaskFiller
from radixrt.messages import (
    Enqueue,
    EnqueueEmbed,
    EnqueueSelect,
    FromScheduler,
    Rejected,
    Score,
    StepFailed,
    StepMasks,
    StepPlan,
    StepResult,
    TierState,
)
from radixrt.scheduler.admission import Compiler, to_request
from radixrt.scheduler.batch import Step, build_plan
from radixrt.scheduler.deadlines import Deadlines
from radixrt.scheduler.drafts.drafter import Drafter
from radixrt.scheduler.drafts.lines import counted_lines, fill_masks
from radixrt.scheduler.embeds import Embeds
from radixrt.scheduler.ends import Ends
from radixrt.scheduler.memory import check_pin
from radixrt.scheduler.planning import Planner
from radixrt.scheduler.requests import Limits, Request, Row, State
from radixrt.scheduler.rows import RowTable
from radixrt.scheduler.segments import Programs
from radixrt.scheduler.select import Piece, Selects
from radixrt.scheduler.settling import Settler
from radixrt.scheduler.specs import prompt_scores
from radixrt.scheduler.stats import Stats
from radixrt.scheduler.tiering import Tiering

log = logging.getLogger(__name__)


@dataclass(eq=False)
class Scheduler:
    """Continuous batching around the prefix tree."""

    rows: RowTable
    limits: Limits
    compiler: Compiler
    clock: Callable[[], float] = time.monotonic
    prefix_cache: bool = True
    check: bool = False
    stats: Stats = field(default_factory=Stats)
    filler: MaskFiller = field(default_factory=MaskFiller)
    outbox: list[FromScheduler] = field(default_factory=list)
    """Messages to the tokenizer process, in order; the caller sends and clears them."""
    requests: dict[int, Request] = field(default_factory=dict)
    compiling: dict[int, Request] = field(default_factory=dict)
    steps: deque[Step] = field(default_factory=deque)
    deadlines: Deadlines = field(default_factory=Deadlines)
    programs: Programs = field(init=False)
    selects: Selects = field(init=False)
    embeds: Embeds = field(init=False)
    tier: InitVar[TierState | None] = None
    drafter: Drafter = field(init=False)
    ends: Ends = field(init=False)
    planner: Planner = field(init=False)
    settler: Settler = field(init=False)
    _step_number: int = 0

    def __post_init__(self, tier: TierState | None) -> None:
        self.programs = Programs(self)
        self.selects = Selects(self.cache, self.limits, self.clock, self.stats, self.outbox, self.prefix_cache)
        self.selects.rows_run = lambda: bool(self.rows.running)
        self.selects.relief = self.rows.relieve = lambda: self.programs.relieve() or self.selects.relieve()
        self.tiering = Tiering(self.rows, tier)
        self.drafter = Drafter.of(self.limits, self.cache.capacity)
        self.rows.on_admit = self.drafter.admitted
        self.ends = Ends(
            self.rows, self.requests, self.compiling, self.outbox, self.programs, self.drafter, self.stats, self.clock
        )
        self.embeds = Embeds(self)
        self.ends.fail_text = self.embeds.fail
        self.planner = Planner(
            self.rows, self.limits, self.selects, self.tiering, self.drafter, self.clock, self.ends.finish
        )
        self.settler = Settler(self.rows, self.limits, self.drafter, self.stats, self.clock, self.ends)

    @property
    def cache(self) -> PrefixCache:
        return self.rows.cache

    # --- requests come and go -------------------------------------------------------------------------------------

    def enqueue(self, message: Enqueue | EnqueueSelect | EnqueueEmbed) -> None:
        """Admit a request to the queue, or answer Rejected."""
        try:
            open_requests = len(self.requests) - self.embeds.surplus + len(self.selects)
            if open_requests >= self.limits.max_waiting + self.limits.max_num_seqs:
                raise Overloaded(f"the queue is full ({self.limits.max_waiting} requests wait): try again later")
            if isinstance(message, EnqueueSelect):
                self.selects.add(message)
                return
            if isinstance(message, EnqueueEmbed):
                self.embeds.add(message)
                return
            request = to_request(
                message, self.limits, self.cache.capacity, self.clock(), prefix_cache=self.prefix_cache
            )
            check_pin(self.cache, message, request)
        except RadixrtError as error:
            self.outbox.append(Rejected(request_id=message.request_id, error=error.info()))
            return
        self.requests[request.id] = request
        self.deadlines.add(request)
        if request.sampling.prompt_logprobs is not None and request.score_from >= len(request.prompt) - 1:
            self._send_scores(request, None)  # a prompt of one token, with nothing before it: no step brings any
        if request.constraint is None:
            self.rows.waiting.extend(request.rows)
            self.tiering.arrived(request.rows, request.arrived)
        else:
            self.compiling[request.id] = request
            self.compiled()

    def compiled(self) -> None:
        """Ask the compiler again for every request that waits for it; called whenever it has new answers."""
        for request in list(self.compiling.values()):
            answer = self.compiler.request(request.constraint) if request.constraint is not None else None
            if answer is None:
                continue
            del self.compiling[request.id]
            if isinstance(answer, RadixrtError):
                self.ends.fail(request, answer)
                continue
            request.grammar, request.grammar_s = answer, self.clock() - request.arrived
            for row in request.rows:
                row.matcher = answer.matcher(request.sampling.stop_token_ids)
                self.drafter.begin(row)
            rows = [row for row in request.rows if row.state is State.WAITING]
            self.rows.waiting.extend(rows)
            self.tiering.arrived(rows, self.clock())

    def cancel(self, request_id: int) -> None:
        """Drop a request or a program; nothing is answered. An unknown id (it just finished) is ignored."""
        self.programs.cancel(request_id)
        request = self.requests.get(request_id)
        if request is not None:
            self.compiling.pop(request_id, None)
            for row in request.rows:
                self.ends.end(row, "abort")
        self.selects.cancel(request_id)
        self.embeds.cancel(request_id)

    def stop_row(self, request_id: int, index: int, keep: int) -> None:
        """A stop string matched: the sample ends, `keep` of its tokens count."""
        request = self.requests.get(request_id)
        if request is None or index >= len(request.rows):
            return
        row = request.rows[index]
        if row.state is not State.FINISHED:
            row.kept = min(keep, row.output)
            self.ends.finish(row, "stop")

    def expire(self) -> None:
        """Fail what ran out of time, whether it waits or runs; who waits too long for a tier waits no more."""
        self.tiering.expire(self.clock())
        for request in self.deadlines.expired(self.clock()):
            self.ends.fail(request, Aborted("the request's timeout passed before it was done", code="timeout"))

    # --- planning -------------------------------------------------------------------------------------------------

    @property
    def can_plan(self) -> bool:
        """There is room for a step ahead and something to put into it.

        Where guesses are expected to save more, no step is planned ahead: they need each row's last token.
        """
        if len(self.steps) > self.limits.lookahead or (self.steps and self.drafter.holds(self.rows.running)):
            return False
        return bool(self.rows.waiting or self.selects.waiting) or any(row.ready for row in self.rows.running)

    def plan(self) -> StepPlan | None:
        """The next step, or None when nothing can be computed now."""
        begun = time.perf_counter()
        self.expire()
        planned, pieces = self.planner.fill(self._step_number + 1)
        if not planned and not pieces:
            return None
        self._step_number += 1
        masked = {row for row in planned if row.matcher is not None}
        plan, order = build_plan(
            self._step_number,
            [*planned.values(), *pieces],
            self.rows.opens,
            self.rows.closes,
            masked,
            self.limits.share_from,
        )
        self.selects.end_of_plan()
        self.rows.opens, self.rows.closes = [], []
        self.steps.append(Step(order, plan, masks_sent=not plan.masked.size))
        self.stats.planned(time.perf_counter() - begun, plan)
        self.verify()
        return plan

    def nothing_to_compute(self, row: Row) -> None:
        """A row that samples nothing and whose prompt the tree already has ends where it began."""
        self.ends.finish(row, "length")

    # --- results --------------------------------------------------------------------------------------------------

    def masks(self) -> StepMasks | None:
        """Token masks of the step whose rows' tokens are all known by now, if it still waits for them."""
        step = self.steps[0] if self.steps else None
        if step is None or step.masks_sent:
            return None
        begun = time.perf_counter()
        step.masks_sent = True
        words = -(-self.limits.vocab_size // 32)
        masked = [step.rows[index] for index in step.plan.masked.tolist()]
        bitmask, failed = fill_masks(masked, step.rows, words, self.filler)
        for row, error in failed:
            self.ends.fail(row.request, error)
        self.stats.mask_s += time.perf_counter() - begun
        return StepMasks(step=step.plan.step, bitmask=bitmask)

    def settle(self, result: StepResult) -> None:
        """Take in a step's result: tokens to their rows, scores to their requests, ends where they are."""
        step = self.steps.popleft()
        if step.plan.step != result.step:
            raise SlotError(f"step {result.step} was answered, but step {step.plan.step} is next")
        self.stats.settled(result)
        self.tiering.settled(result.step, step.plan.tokens.size, result.forward_s)
        self.cache.settled = result.step
        self.drafter.cost.measured(step.plan.tokens.size, result.forward_s + result.mask_wait_s + result.sample_s)
        lines = counted_lines(step.rows, result)
        scores, pooled = iter(result.scores), iter(() if result.pooled is None else result.pooled)
        for item in step.rows:
            if isinstance(item.row, Piece):
                self.selects.settle(item.row, next(scores) if item.score is not None else None)
                continue
            if item.score is not None:
                self._send_scores(item.row.request, next(scores))
            if item.pool:
                self.embeds.take(item.row.request, item, next(pooled))
            elif item in lines:
                if item.foretold < 0:
                    self.settler.take_tokens(item.row, item, result, lines[item])
            elif item.sample:
                continue  # a branch: its row has its tokens
            elif item.row.request.max_tokens == 0 and item.start + item.slots.size >= item.row.goal:
                self.ends.finish(item.row, "length")
        self.drafter.receive([item for item in step.rows if item.propose], result)
        for item in lines:
            if isinstance(item.row, Row):
                self.settler.jump(item.row, self.steps)
        self.ends.flush()
        self.verify()

    def _send_scores(self, request: Request, score: Score | None) -> None:
        """Take a chunk's prompt scores; send them when all are there."""
        request.scored.extend(() if score is None else [score])
        if request.score_from >= len(request.prompt) - 1 and request.id in self.requests:
            self.outbox.extend(filter(None, [prompt_scores(request)]))

    def fail_step(self, failed: StepFailed) -> None:
        """The runner could not compute a step: all that runs may have read from it, so all of it fails and the tree
        is emptied; waiting requests go on."""
        log.error("step %d failed: %s", failed.step, failed.message)
        step = self.steps.popleft()
        self.tiering.settled(failed.step)
        if all(item.row.state is State.FINISHED for item in step.rows):
            return  # planned before its rows had failed
        planned = [item.row for later in (step, *self.steps) for item in later.rows]  # retracted since, some of them
        for row in (*self.rows.running, *(row for row in planned if isinstance(row, Row))):
            self.ends.fail(row.request, GenerationFailed(f"the model runner failed: {failed.message}"))
        self.programs.relieve()
        self.selects.fail(GenerationFailed(f"the model runner failed: {failed.message}"))
        self.tiering.void()
        self.cache.invalidate()
        self.ends.flush()
        self.verify()

    # --- after an event -------------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Move what this event brought into the outbox."""
        self.ends.flush()

    def verify(self) -> None:
        if self.check:
            self.rows.check()
