"""Constraints -> grammars without ever making the caller wait: the face that the scheduler's loop uses.

    request(c) -> Grammar | RadixrtError | None             None: being compiled
    fileno() becomes readable -> completed() -> [c, ...]    request(c) now answers at once

Behind it a thread for each worker takes constraints from a queue, has its worker process try them out under the limits
(compile and first mask), and builds the grammar in this process only when that went well (about 1 ms, without the GIL).
Everything else is the caller's thread: no locks, the queues are the only meeting places.
"""

from __future__ import annotations

import logging
import os
import queue
import tempfile
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from typing import IO, TYPE_CHECKING

import msgspec

from radixrt.errors import ConstraintError, RadixrtError
from radixrt.grammar.cache import GrammarCache, Refusals
from radixrt.grammar.child import UNABLE, Child, WorkerLost, out_of_order, refusal
from radixrt.grammar.interface import Grammar
from radixrt.grammar.limits import Limits
from radixrt.grammar.sources import check_size, source_bytes
from radixrt.grammar.wire import Answer, Setup
from radixrt.params import Constraint

if TYPE_CHECKING:
    from radixrt.grammar.backends import Backends
    from radixrt.grammar.llguidance_backend import VocabularySource

log = logging.getLogger(__name__)


BRIEFLY_S = 1.0
"""How long a refusal is kept that is not the constraint's doing."""


class ServiceLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What the service keeps, and for how long."""

    workers: int = 2
    """Worker processes at most; the second is started when the first is busy."""
    preferred: str = "auto"
    """The back end that a constraint which names none is given first."""
    cache_entries: int = 512
    cache_bytes: int = 256 * 1024 * 1024
    refusal_entries: int = 1024
    refusal_keep_s: float = 60.0


class Outcome(msgspec.Struct, frozen=True):
    """What became of one constraint; passed from a worker's thread to the caller's."""

    constraint: Constraint
    result: Grammar | RadixrtError
    seconds: float
    size: int


class CompileService:
    """See the module. Start-up costs a file and a thread; importing the library and building its tables happens behind.

    Attributes (for metrics): compiles, cache_hits, refusals, workers_lost, compile_seconds.
    """

    def __init__(
        self,
        vocabulary: VocabularySource,
        vocab_size: int,
        limits: Limits | None = None,
        *,
        service_limits: ServiceLimits | None = None,
        clock: Callable[[], float] = time.monotonic,
        start: bool = True,
    ) -> None:
        """
        Args:
            vocabulary: of the model (`radixrt.checkpoint.Vocabulary`).
            vocab_size: V, the width of the logits and so of the masks.
            limits: of one constraint.
            service_limits: of the service.
            clock: seconds, monotonic; only refusals' age depends on it.
            start: start a worker at once; else with the first constraint, or when `start` is called.
        """
        self.limits = limits or Limits()
        kept = service_limits or ServiceLimits()
        self.compiles = 0
        self.by_backend: Counter[str] = Counter()
        """Compiles by the back end that took them."""
        self.cache_hits = 0
        self.refusals = 0
        self.workers_lost = 0
        self.compile_seconds = 0.0
        self._grammars = GrammarCache(kept.cache_entries, kept.cache_bytes)
        self._refused = Refusals(kept.refusal_entries, kept.refusal_keep_s, clock)
        self._pending: set[Constraint] = set()
        self._fresh: set[Constraint] = set()
        """Compiled, and not yet fetched by whoever asked first: that is no cache hit."""
        self._shop = _Shop(vocabulary, vocab_size, self.limits, kept.preferred)
        self._max_workers = kept.workers
        self._threads: list[_WorkerThread] = []
        if start:
            self.start()

    @property
    def started(self) -> bool:
        """There is a worker, or one is being started."""
        return bool(self._threads)

    def start(self) -> None:
        """Start a worker where there is none, so that the first constraint does not wait for that (half a second)."""
        if not self.started:
            self._start_worker()

    def request(self, constraint: Constraint) -> Grammar | RadixrtError | None:
        """The grammar, the refusal, or None while it is being compiled (then `completed` will name the constraint)."""
        found = self._grammars.get(constraint)
        if found is not None:
            if constraint in self._fresh:
                self._fresh.discard(constraint)
            else:
                self.cache_hits += 1
            return found
        refused = self._refused.get(constraint)
        if refused is not None:
            return refused
        if constraint in self._pending:
            return None
        if self._shop.closing:
            raise RuntimeError("the compile service is closed")
        try:
            check_size(constraint, self.limits)
        except ConstraintError as error:
            self.refusals += 1
            return error
        self._pending.add(constraint)
        if len(self._pending) > len(self._threads) < self._max_workers:
            self._start_worker()
        self._shop.todo.put(constraint)
        return None

    def fileno(self) -> int:
        """A descriptor that is readable while `completed` has something to give (for poll and zmq.Poller)."""
        return self._shop.bell_out

    def completed(self) -> list[Constraint]:
        """Constraints that were answered since the last call; never waits."""
        done: list[Constraint] = []
        for outcome in self._shop.drain():
            self._pending.discard(outcome.constraint)
            done.append(outcome.constraint)
            self.compile_seconds += outcome.seconds
            if isinstance(outcome.result, RadixrtError):
                self.refusals += 1
                # What the constraint has no part in may be well again in a moment.
                keep_s = BRIEFLY_S if outcome.result.code == UNABLE else None
                self._refused.put(outcome.constraint, outcome.result, keep_s)
            else:
                self.compiles += 1
                self.by_backend[outcome.result.backend] += 1
                self._fresh.add(outcome.constraint)
                self._grammars.put(outcome.constraint, outcome.result, outcome.size)
        self.workers_lost = self._shop.lost
        return done

    def close(self) -> None:
        """Kill the workers and wait until they are gone; what is pending is never answered. May be called twice."""
        self._shop.closing = True
        for thread in self._threads:
            thread.stop()
        for thread in self._threads:
            thread.join()
        self._threads.clear()
        self._shop.close()

    def worker_pids(self) -> list[int]:
        """Processes that are running now."""
        return [pid for thread in self._threads if (pid := thread.pid) is not None]

    def _start_worker(self) -> None:
        thread = _WorkerThread(self._shop)
        self._threads.append(thread)
        thread.start()


class _Shop:
    """What the worker threads share with each other and with the caller."""

    def __init__(self, vocabulary: VocabularySource, vocab_size: int, limits: Limits, preferred: str) -> None:
        self.todo: queue.SimpleQueue[Constraint | None] = queue.SimpleQueue()
        self.closing = False
        self.lost = 0
        self.limits = limits
        self._done: deque[Outcome] = deque()
        self.bell_out, self._bell_in = os.pipe()
        os.set_blocking(self.bell_out, False)
        os.set_blocking(self._bell_in, False)
        self._vocabulary = vocabulary
        self._vocab_size = vocab_size
        self._preferred = preferred
        self._backends: Backends | None = None
        self._tokenizer: IO[bytes] | None = None
        self._building = threading.Lock()

    def child(self) -> Child:
        """A fresh worker process."""
        with self._building:
            if self._tokenizer is None:
                self._tokenizer = tempfile.TemporaryFile()  # noqa: SIM115 - closed in close()
                self._tokenizer.write(self._vocabulary.tokenizer_json().encode())
                self._tokenizer.flush()
        return Child(self._tokenizer, self._setup, self.limits)

    def backends(self) -> Backends:
        """This process's own tables, built once; the back ends are imported here, which is no part of a start."""
        from radixrt.grammar.backends import Backends

        with self._building:
            if self._backends is None:
                self._backends = Backends(
                    self._vocabulary.tokenizer_json(),
                    size=self._vocabulary.size,
                    eos_ids=self._vocabulary.eos_ids,
                    vocab_size=self._vocab_size,
                    limits=self.limits,
                    preferred=self._preferred,
                )
            return self._backends

    def _setup(self, descriptor: int) -> Setup:
        return Setup(
            tokenizer_fd=descriptor,
            size=self._vocabulary.size,
            eos_ids=self._vocabulary.eos_ids,
            vocab_size=self._vocab_size,
            limits=self.limits,
            preferred=self._preferred,
        )

    def finish(self, outcome: Outcome) -> None:
        self._done.append(outcome)
        try:
            os.write(self._bell_in, b"!")
        except BlockingIOError:
            return  # it rings already

    def drain(self) -> list[Outcome]:
        if self.bell_out < 0:
            return []
        try:
            while os.read(self.bell_out, 4096):
                continue
        except BlockingIOError:
            return [self._done.popleft() for _ in range(len(self._done))]
        return []

    def close(self) -> None:
        if self._tokenizer is not None:
            self._tokenizer.close()
            self._tokenizer = None
        for descriptor in (self.bell_out, self._bell_in):
            if descriptor >= 0:
                os.close(descriptor)
        self.bell_out = self._bell_in = -1


class _WorkerThread(threading.Thread):
    """Owns one worker process: one constraint at a time; a process that dies is replaced."""

    def __init__(self, shop: _Shop) -> None:
        super().__init__(name="grammar-compile", daemon=True)
        self._shop = shop
        self._child: Child | None = None

    @property
    def pid(self) -> int | None:
        child = self._child
        return None if child is None else child.pid

    def stop(self) -> None:
        """Ask the thread to end now (`_Shop.closing` is set before)."""
        self._shop.todo.put(None)
        child = self._child
        if child is not None:
            child.kill()

    def run(self) -> None:
        try:
            self._warm_up()
            while (constraint := self._shop.todo.get()) is not None:
                outcome = self._handle(constraint)
                if self._shop.closing:
                    return
                self._shop.finish(outcome)
        finally:
            self._drop_child()

    def _warm_up(self) -> None:
        """Start the worker and build this process's tables before anybody asks; faults come up again with a task."""
        try:
            self._worker()
            self._shop.backends()
        except (RadixrtError, OSError, WorkerLost) as error:
            log.warning("the compile worker cannot start: %s", error)

    def _handle(self, constraint: Constraint) -> Outcome:
        start = time.monotonic()
        result: Grammar | RadixrtError
        size = source_bytes(constraint)
        try:
            answer = self._ask(constraint)
            size = max(answer.grown_bytes, 16 * size)
            result = self._build(constraint, answer)
        except WorkerLost as lost:
            self._drop_child()
            if not self._shop.closing:
                self._shop.lost += 1
                log.warning("a compile worker was lost: %s", lost.message)
            result = refusal(lost, constraint)
            self._replace_child()
        except Exception:  # whatever it is, the request must hear of it, and this thread take the next one
            log.exception("a constraint could not be compiled")
            self._drop_child()
            result = out_of_order()
        if self._child is not None and self._child.is_bloated:
            self._drop_child()
            self._replace_child()
        return Outcome(constraint, result, time.monotonic() - start, size)

    def _ask(self, constraint: Constraint) -> Answer:
        """The worker's answer; one that ended by itself, or by a stranger's hand, is replaced and asked once more."""
        try:
            return self._worker().ask(constraint)
        except WorkerLost as lost:
            if not lost.by_itself or self._shop.closing:
                raise
            self._shop.lost += 1
            log.warning("a compile worker was lost, and the constraint is tried again: %s", lost.message)
            self._drop_child()
            return self._worker().ask(constraint)

    def _build(self, constraint: Constraint, answer: Answer) -> Grammar | ConstraintError:
        if answer.error is not None:
            return ConstraintError(
                answer.error.message, param=answer.error.param or constraint.kind, code=answer.error.code
            )
        if answer.plan is None:
            return ConstraintError("the compile worker gave no answer", param=constraint.kind)
        try:
            return self._shop.backends().build(constraint, answer.plan)
        except ConstraintError as error:
            return error

    def _worker(self) -> Child:
        if self._child is None:
            child = self._child = self._shop.child()
            if self._shop.closing:
                child.kill()
        return self._child

    def _replace_child(self) -> None:
        """Start the next process at once, so that the next constraint does not wait for it."""
        try:
            self._worker()
        except (OSError, WorkerLost) as error:  # the next task tries again
            log.warning("the compile worker cannot start: %s", error)

    def _drop_child(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            child.close()
