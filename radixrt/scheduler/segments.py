"""Programs in the scheduler: segments that run one after another in one row (design section 3).

A segment is a `Request` of its own, so that everything that holds for requests holds for it. When the first sample of a
segment ends, the program takes over the lock on its path, and the next segment's row starts on that path in the same
event: the next step holds the text in between, nothing is asked of anybody, and what stands is computed once. Between
segments that are not known yet the program only holds the lock, and lets go of it when slots are short: its tokens then
are cached like others.

    waiting for segments --RunSegments--> a segment runs --its first sample ends--> the next one runs, or waiting
    (with `heal`: a request for one token comes first, and the gen goes on from what it gave)
"""

from __future__ import annotations

import logging
from array import array
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from radixrt.cache import Ids, Node
from radixrt.errors import GenerationFailed, Overloaded, RadixrtError
from radixrt.messages import Enqueue, Namespace, Rejected, RunSegments
from radixrt.params import SamplingParams
from radixrt.scheduler.admission import to_request
from radixrt.scheduler.among import Among
from radixrt.scheduler.requests import Alone, Request, Row, State
from radixrt.segments import Heal, Segment

if TYPE_CHECKING:
    from radixrt.scheduler.core import Scheduler

log = logging.getLogger(__name__)


@dataclass(eq=False)
class Program:
    """A program's tokens so far, and the segments that follow them."""

    id: int
    namespace: Namespace | Alone
    priority: int
    tokens: Ids = field(default_factory=lambda: array("i"))
    queue: deque[Segment] = field(default_factory=deque)
    node: Node | None = None
    """Locked while the program waits: the end of what is computed of `tokens`."""
    current: Request | None = None
    """The segment that runs, or the healing before it."""
    healing: Segment | None = None
    """The segment that `current` heals."""
    advancing: bool = False
    seniority: int = 0
    """Its first row's number of admission: later rows have it too, so that a program does not become the youngest with
    each of its gens."""


class Programs:
    """All open programs of a scheduler, which calls `row_ends` and `row_ended` around the end of every row."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._programs: dict[int, Program] = {}

    def __len__(self) -> int:
        return len(self._programs)

    # --- messages ----------------------------------------------------------------------------------------------------

    def take(self, message: RunSegments) -> None:
        """`run`, whose own faults cost this program alone."""
        try:
            self.run(message)
        except Exception:
            log.exception("program %d could not go on", message.program_id)
            self.cancel(message.program_id)
            error = GenerationFailed("the program could not go on: see the server's log")
            for segment in message.segments[:1]:
                self._reject(segment.request_id, error)

    def run(self, message: RunSegments) -> None:
        """Append segments to a program, which begins where it is not known yet. Answered like `Enqueue`."""
        program = self._programs.get(message.program_id)
        try:
            if program is None:
                program = self._begin(message)
            elif message.keep >= 0 and program.current is None:
                del program.tokens[message.keep :]
        except RadixrtError as error:
            for segment in message.segments[:1]:
                self._reject(segment.request_id, error)
            return
        for segment in message.segments:
            if segment.constraint is not None:
                self._scheduler.compiler.request(segment.constraint)  # its answer is asked for again when it is needed
        program.queue.extend(message.segments)
        self._advance(program)

    def cancel(self, program_id: int) -> None:
        """The program ends, with all that it runs; an unknown one is ignored."""
        program = self._programs.pop(program_id, None)
        if program is None:
            return
        program.queue.clear()
        program.current = None
        for request in [r for r in self._scheduler.requests.values() if r.program is program]:
            self._scheduler.cancel(request.id)
        self._let_go(program)

    def relieve(self) -> bool:
        """Give up the locks of waiting programs, since slots are short; whether there were any."""
        held = [program for program in self._programs.values() if program.node is not None]
        for program in held:
            self._let_go(program)
        return bool(held)

    # --- called by the scheduler -------------------------------------------------------------------------------------

    def row_ends(self, row: Row) -> None:
        """A row of a program is about to give back what it holds: its path stays the program's."""
        program = self._of(row)
        if program is None:
            return
        program.tokens = row.tokens[: len(row.request.prompt) + row.kept]
        if row.node is not None:
            self._let_go(program)
            program.node = row.node
            self._scheduler.cache.tree.lock(row.node)
        program.seniority = program.seniority or row.admitted

    def row_ended(self, row: Row) -> None:
        """It ended well, and the tokenizer will hear so: what comes next begins."""
        program = self._of(row)
        if program is None:
            return
        program.current = None
        if program.healing is not None:
            self._healed(program, row)
        self._advance(program)

    # --- inside ------------------------------------------------------------------------------------------------------

    def _of(self, row: Row) -> Program | None:
        """The program that waits for this very row."""
        program = row.request.program
        if row.index or not isinstance(program, Program) or program.current is not row.request:
            return None
        return program

    def _begin(self, message: RunSegments) -> Program:
        limits = self._scheduler.limits
        if len(self._programs) >= limits.max_waiting + limits.max_num_seqs:
            raise Overloaded(f"there are {len(self._programs)} open programs: try again later")
        namespace = message.namespace if self._scheduler.prefix_cache else Alone(message.program_id)
        program = Program(message.program_id, namespace, message.priority)
        like = self._programs.get(message.like) if message.like is not None else None
        if like is not None:
            # Its tokens may have grown since; what it has computed of the first `keep` is on this path.
            source = like.current.rows[0].tokens if like.current is not None else like.tokens
            program.tokens = source[: message.keep]
            if namespace == like.namespace:
                node, _ = self._scheduler.cache.tree.match(namespace, program.tokens, len(program.tokens))
                self._scheduler.cache.tree.lock(node)
                program.node = node
        if len(program.tokens) != message.keep:
            raise GenerationFailed("the program that this one goes on from is gone")
        self._programs[program.id] = program
        return program

    def _advance(self, program: Program) -> None:
        if program.advancing:
            return  # a segment that had nothing to compute: the loop below goes on
        program.advancing = True
        try:
            self._run_next(program)
        finally:
            program.advancing = False

    def _run_next(self, program: Program) -> None:
        while program.current is None and program.queue:
            segment = program.queue.popleft()
            tokens = program.tokens + array("i", segment.ids.tolist())
            if segment.heal is not None:
                self._heal(program, segment, segment.heal, tokens)
            else:
                program.tokens = tokens
                self._run(program, segment)

    def _heal(self, program: Program, segment: Segment, heal: Heal, tokens: Ids) -> None:
        """Ask for the token that the model writes in place of the last one."""
        program.healing = segment
        program.tokens = tokens
        request = self._request(program, heal.request_id, tokens[:-1], one_token(segment.sampling))
        if request is not None:
            request.rows[0].matcher = Among(frozenset(heal.allowed.tolist()), most=1)
            self._start(program, request)

    def _healed(self, program: Program, row: Row) -> None:
        """Of the segment that was healed the gen is left; its text ends as the model wants it."""
        segment, program.healing = program.healing, None
        if segment is None or segment.heal is None:
            return
        last = segment.ids.tolist()[-1]
        written = program.tokens[len(row.request.prompt) :]
        taken = bool(written) and written[0] != last and written[0] not in segment.heal.refused
        program.tokens = row.request.prompt + array("i", written[:1] if taken else [last])
        sampling = one_less(segment.sampling) if taken else segment.sampling
        nothing = np.empty(0, dtype=np.int32)
        program.queue.appendleft(msgspec.structs.replace(segment, ids=nothing, heal=None, sampling=sampling))

    def _run(self, program: Program, segment: Segment) -> None:
        request = self._request(program, segment.request_id, program.tokens, segment.sampling, segment)
        if request is None:
            return
        if request.constraint is None:
            self._start(program, request)
            return
        program.current = request
        self._scheduler.compiling[request.id] = request
        self._scheduler.compiled()

    def _request(
        self, program: Program, number: int, tokens: Ids, sampling: SamplingParams, segment: Segment | None = None
    ) -> Request | None:
        """The request of a segment over the program's tokens; None where it was refused."""
        scheduler = self._scheduler
        message = Enqueue(
            request_id=number,
            ids=np.array(tokens, dtype=np.int32),
            sampling=sampling,
            constraint=segment.constraint if segment is not None else None,
            namespace=program.namespace if isinstance(program.namespace, Namespace) else Namespace(),
            priority=program.priority,
        )
        try:
            request = to_request(message, scheduler.limits, scheduler.cache.capacity, scheduler.clock())
        except RadixrtError as error:
            program.queue.clear()
            self._reject(number, error)
            return None
        request.namespace, request.program = program.namespace, program
        scheduler.requests[request.id] = request
        return request

    def _start(self, program: Program, request: Request) -> None:
        """Its first row goes on where the program's last one ended, if there is room; the others queue up."""
        program.current = request
        rows = self._scheduler.rows
        rows.waiting.extend(request.rows)
        row = request.rows[0]
        self._scheduler.tiering.arrived([row], now := self._scheduler.clock())
        started = not (rows.full or rows.waiting.parked(row)) and rows.admit(row, now)
        self._let_go(program)
        if not started:
            return
        if program.seniority:
            row.admitted = program.seniority
            rows.running.sort(key=lambda other: other.admitted)
        if not row.ready and row.state is State.RUNNING:
            self._scheduler.nothing_to_compute(row)

    def _let_go(self, program: Program) -> None:
        if program.node is not None:
            self._scheduler.cache.tree.unlock(program.node)
            program.node = None

    def _reject(self, number: int, error: RadixrtError) -> None:
        self._scheduler.flush()  # what came before it is told before it
        self._scheduler.outbox.append(Rejected(request_id=number, error=error.info()))


def one_token(sampling: SamplingParams) -> SamplingParams:
    """For the token that a boundary is healed with."""
    return msgspec.structs.replace(sampling, max_tokens=1, min_tokens=0, stop=(), stop_token_ids=())


def one_less(sampling: SamplingParams) -> SamplingParams:
    """For the tokens after the first."""
    limit = sampling.max_tokens
    return msgspec.structs.replace(
        sampling, max_tokens=None if limit is None else limit - 1, min_tokens=max(0, sampling.min_tokens - 1)
    )
