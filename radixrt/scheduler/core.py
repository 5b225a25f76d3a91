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

import msgspec
import numpy as np

from radixrt.cache import PrefixCache, SlotError
from radixrt.errors import Aborted, GenerationFailed, Overloaded, RadixrtError
from radixrt.grammar import MaskFiller
from radixrt.messages import (
    Enqueue,
    EnqueueSelect,
    FromScheduler,
    Rejected,
    Score,
    StepFailed,
    StepMasks,
    StepPlan,
    StepResult,
    TierState,
    TokenBatch,
    TokenDelta,
)
from radixrt.results import FinishReason, Usage
from radixrt.scheduler.admission import Compiler, to_request
from radixrt.scheduler.batch import PlannedRow, Step, branches_of, build_plan
from radixrt.scheduler.deadlines import Deadlines
from radixrt.scheduler.drafts.drafter import Drafter
from radixrt.scheduler.drafts.guess import NOTHING
from radixrt.scheduler.drafts.lines import Counted, counted_lines, fill_masks
from radixrt.scheduler.memory import cache_report, check_pin, keep_prompt
from radixrt.scheduler.requests import Limits, Request, Row, State
from radixrt.scheduler.rows import RowTable
from radixrt.scheduler.segments import Programs
from radixrt.scheduler.select import Piece, Selects
from radixrt.scheduler.specs import prompt_scores, score_spec, token_delta
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
    tier: InitVar[TierState | None] = None
    drafter: Drafter = field(init=False)
    _step_number: int = 0
    _deltas: list[TokenDelta] = field(default_factory=list)

    def __post_init__(self, tier: TierState | None) -> None:
        self.programs = Programs(self)
        self.selects = Selects(self.cache, self.limits, self.clock, self.stats, self.outbox, self.prefix_cache)
        self.selects.rows_run = lambda: bool(self.rows.running)
        self.selects.relief = self.rows.relieve = lambda: self.programs.relieve() or self.selects.relieve()
        self.tiering = Tiering(self.rows, tier)
        self.drafter = Drafter.of(self.limits, self.cache.capacity)
        self.rows.on_admit = self.drafter.admitted

    @property
    def cache(self) -> PrefixCache:
        return self.rows.cache

    # --- requests come and go -------------------------------------------------------------------------------------

    def enqueue(self, message: Enqueue | EnqueueSelect) -> None:
        """Admit a request to the queue, or answer Rejected."""
        try:
            if len(self.requests) + len(self.selects) >= self.limits.max_waiting + self.limits.max_num_seqs:
                raise Overloaded(f"the queue is full ({self.limits.max_waiting} requests wait): try again later")
            if isinstance(message, EnqueueSelect):
                self.selects.add(message)
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
                self._fail(request, answer)
                continue
            request.grammar, request.grammar_s = answer, self.clock() - request.arrived
            for row in request.rows:
                row.matcher = answer.matcher(request.sampling.stop_token_ids)
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
                self._end(row, "abort")
        self.selects.cancel(request_id)

    def stop_row(self, request_id: int, index: int, keep: int) -> None:
        """A stop string matched: the sample ends, `keep` of its tokens count."""
        request = self.requests.get(request_id)
        if request is None or index >= len(request.rows):
            return
        row = request.rows[index]
        if row.state is not State.FINISHED:
            row.kept = min(keep, row.output)
            self._finish(row, "stop")

    def expire(self) -> None:
        """Fail what ran out of time, whether it waits or runs; who waits too long for a tier waits no more."""
        self.tiering.expire(self.clock())
        for request in self.deadlines.expired(self.clock()):
            self._fail(request, Aborted("the request's timeout passed before it was done", code="timeout"))

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
        planned: dict[Row, PlannedRow] = {}
        leftover: list[int] = []
        budget = self.limits.max_num_batched_tokens
        retractions = self.rows.retractions
        self.cache.begin_step(self._step_number + 1)
        for row in list(self.rows.running):
            if budget and row.ready:
                budget -= self._plan_row(row, budget, planned, leftover)
        now = self.clock()
        crowded = bool(self.rows.waiting) and not self.rows.full
        pieces = self.selects.plan(self._step_number + 1, budget, shared=crowded, leftover=leftover)
        budget -= sum(piece.slots.size for piece in pieces)
        open_to_new = budget and not self.rows.full and not self.selects.blocked
        for row in self.rows.waiting.candidates(now) if open_to_new else ():
            # After a retraction nobody new comes in: the pool is too small for those who run.
            if self.tiering.holds(row, now):
                self.rows.waiting.park(row)
            elif self.rows.retractions == retractions and self.rows.admit(row, now):
                self.tiering.admitted(row)
                if row.ready:
                    budget -= self._plan_row(row, budget, planned, leftover)
                else:
                    self.nothing_to_compute(row)
            if not budget or self.rows.full or self.rows.retractions > retractions:
                break
        # Only now: a slot that was freed while planning must not be written twice by this step.
        self.cache.release(leftover)
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
        self._finish(row, "length")

    def _plan_row(self, row: Row, budget: int, planned: dict[Row, PlannedRow], leftover: list[int]) -> int:
        """Put the row's next tokens into the step, `budget` at most; how many. 0 where there was no slot for any."""
        wanted = min(row.goal - row.planned, budget)
        slots = self.rows.slots_for(row, wanted, planned)
        count, start, rows = len(slots), row.planned, len(self.rows.running)
        if not count or row.node is None:
            return 0
        sample = start + count == row.total and row.left > 0
        known = row.tokens[start : start + count]
        guess = self.drafter.propose(row, budget - count, rows) if sample else NOTHING
        extra = self.rows.spare_slots(row, guess.size)
        guess = guess.cut(len(extra))
        item = PlannedRow(
            row=row,
            start=start,
            in_tree=row.in_tree,
            own=np.array(row.own, dtype=np.int32),
            tokens=[*known, *[-1] * (count - len(known)), *guess.chain],
            slots=np.concatenate([slots, np.array(extra[: len(guess.chain)], dtype=np.int32)]),
            sample=sample,
            drafts=guess.chain,
            score=score_spec(row, start, count),
            guess=guess,
            propose=self.drafter.wanted(row, guess, rows) if sample else 0,
        )
        item.branches = branches_of(item, extra[len(guess.chain) :])
        if known:
            # In the tree at once: rows of this step and later ones may read what this step computes.
            row.node, duplicates = self.cache.tree.extend(
                row.node, known, slots[: len(known)].tolist(), row.request.priority
            )
            row.in_tree += len(known)
            leftover.extend(slots[:duplicates].tolist())
        row.own.extend([*slots[len(known) :].tolist(), *extra])
        row.planned += count + len(guess.chain)
        row.pending += sample
        row.drafting = bool(extra)
        planned[row] = item
        self.rows.waiting.charge(row, count)
        return count + len(extra)

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
            self._fail(row.request, error)
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
        scores = iter(result.scores)
        for item in step.rows:
            if isinstance(item.row, Piece):
                self.selects.settle(item.row, next(scores) if item.score is not None else None)
                continue
            if item.score is not None:
                self._send_scores(item.row.request, next(scores))
            if item in lines:
                self._take_tokens(item.row, item, result, lines[item])
            elif item.sample:
                continue  # a branch: its row has its tokens
            elif item.row.request.max_tokens == 0 and item.start + item.slots.size >= item.row.goal:
                self._finish(item.row, "length")
        self.drafter.receive([item.row for item in step.rows if isinstance(item.row, Row) and item.propose], result)
        self.flush()
        self.verify()

    def _send_scores(self, request: Request, score: Score | None) -> None:
        """Take a chunk's prompt scores; send them when all are there."""
        request.scored.extend(() if score is None else [score])
        if request.score_from >= len(request.prompt) - 1 and request.id in self.requests:
            self.outbox.extend(filter(None, [prompt_scores(request)]))

    def _take_tokens(self, row: Row, item: PlannedRow, result: StepResult, lines: list[Counted]) -> None:
        """A row's sampled tokens, as far as its guesses held; slots of the others are its next ones."""
        ahead = not item.drafts
        row.pending -= 1
        if item.drafts:
            self.drafter.verified(row, item.guess, len(lines) - 1)
        for counted in lines:
            if row.state is not State.FINISHED:
                slot = row.own[0] if ahead and row.own else counted.slot
                self._take_token(row, result, counted.line, slot, forced=counted.forced)
        if item.drafts and row.drafting:
            self.rows.settle_guesses(row)

    def _take_token(self, row: Row, result: StepResult, k: int, slot: int | None, *, forced: bool) -> None:
        """A sampled token: an end, or the next token of the output.

        `slot`: the one of the row's own that holds this token, or will once a step under way is done.
        """
        request, sampling, token = row.request, row.request.sampling, int(result.tokens[k])
        if token < 0:
            self._fail(request, GenerationFailed("no token is possible here: the constraint met a dead end"))
            return
        now = self.clock()
        self.stats.token(now - row.last_token_at if row.last_token_at else None)
        row.last_token_at = now
        if request.first_token is None:
            request.first_token = now
        if token in sampling.stop_token_ids:
            self._finish(row, "stop", stop_token=token)
            return
        if token in self.limits.eos_token_ids and not sampling.ignore_eos:
            self._finish(row, "stop")
            return
        if row.matcher is not None:
            try:
                row.matcher.accept(token)
            except RadixrtError as error:
                self._fail(request, error)
                return
        row.tokens.append(token)
        row.kept += 1
        self.drafter.learn(row, token)
        if slot is not None and row.node is not None:
            # Its slot was planned before its id was known; now it is a token of the tree.
            row.node, duplicates = self.cache.tree.extend(row.node, [token], [slot], request.priority)
            row.own.remove(slot)
            if duplicates:
                self.cache.release([slot])
            row.in_tree += 1
        self._deltas.append(token_delta(row, token, result, k, forced))
        if row.matcher is not None and row.matcher.must_stop:
            self._finish(row, "stop")
        elif row.output >= request.max_tokens:
            self._finish(row, "length")

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
            self._fail(row.request, GenerationFailed(f"the model runner failed: {failed.message}"))
        self.programs.relieve()
        self.selects.fail(GenerationFailed(f"the model runner failed: {failed.message}"))
        self.tiering.void()
        self.cache.invalidate()
        self.flush()
        self.verify()

    # --- ends -----------------------------------------------------------------------------------------------------

    def _finish(self, row: Row, reason: FinishReason, *, stop_token: int | None = None) -> None:
        """The sample ends well, and the client hears of it."""
        if row.state is State.FINISHED:
            return
        refused = keep_prompt(self.cache, row)
        if refused is not None:
            self._fail(row.request, refused)
            return
        usage = self._end(row, reason)
        delta = TokenDelta(request_id=row.request.id, index=row.index)
        if self._deltas and (self._deltas[-1].request_id, self._deltas[-1].index) == (row.request.id, row.index):
            delta = self._deltas.pop()  # the token that ended it travels with its end
        self._deltas.append(msgspec.structs.replace(delta, finish_reason=reason, stop_token=stop_token, usage=usage))
        self.programs.row_ended(row)

    def _end(self, row: Row, outcome: str) -> Usage | None:
        """Take the row out; the request's usage when it was its last one."""
        if row.state is State.FINISHED:
            return None
        self.programs.row_ends(row)
        self.rows.end(row)
        self.drafter.ended(row)
        request = row.request
        if not request.finished:
            return None
        usage = msgspec.structs.replace(request.usage(self.clock()), cache=cache_report(request))
        del self.requests[request.id]
        self.stats.finished_request(usage, outcome)
        return usage

    def _fail(self, request: Request, error: RadixrtError) -> None:
        """This request ends in an error; others go on."""
        if request.id not in self.requests:
            return
        self.flush()
        for row in request.rows:
            self._end(row, "error")
        self.compiling.pop(request.id, None)
        self.outbox.append(Rejected(request_id=request.id, error=error.info()))

    def flush(self) -> None:
        """Move what this event brought into the outbox."""
        if self._deltas:
            self.outbox.append(TokenBatch(items=self._deltas))
            self._deltas = []

    def verify(self) -> None:
        if self.check:
            self.rows.check()
