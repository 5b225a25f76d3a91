"""The masks of a step, filled in threads and waited for until a deadline, and no longer.

Libraries free the GIL while they fill. One thread is enough while masks are cheap (handing work over costs more than a
mask does), others help where they are not, and a fill that takes too long is left alone: its row fails, the thread
goes when it is done, and the other rows' masks have been filled by other threads meanwhile. A fill whose thread a busy
machine does not let run is waited for longer. What holds the GIL (`accept`) is bounded by the library's own limits and
by `Limits.max_step_s`.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from itertools import count
from queue import SimpleQueue

from radixrt.errors import Overloaded, RadixrtError
from radixrt.grammar.errors import MatcherFailed, TooComplex
from radixrt.grammar.wording import GAVE_UP

log = logging.getLogger(__name__)

HELP_AFTER_S = 0.001
"""Another thread helps where the masks are not there by then, up to one a CPU."""
PATIENCE = 20
"""Deadlines that a fill is given whose thread has hardly run: on a busy machine threads wait for a core."""
WORKED = 0.4
"""Of a deadline, in CPU seconds: a fill that has worked for so long is late by itself. An ordinary one takes 0.001, and
what `Limits.max_step_s` allows one step is no more than this."""
STUCK_AFTER_S = 0.02
"""Another thread than that many is taken where all seem to be held up."""


class _Round:
    """The jobs of one step; several threads work on them."""

    def __init__(self, jobs: Sequence[Callable[[], None]]) -> None:
        self.jobs = jobs
        self.open = list(range(len(jobs)))
        """Jobs that are not done."""
        self.begun: dict[int, _Clock] = {}
        """Jobs that have begun, and what their threads have worked since."""
        self.errors: dict[int, Exception] = {}
        self.done = threading.Event()
        self.closed = False
        self._next = count()
        self._lock = threading.Lock()

    def work(self) -> None:
        while True:
            with self._lock:
                index = next(self._next)
                if self.closed or index >= len(self.jobs):
                    return
                self.begun[index] = _Clock()
            error: Exception | None = None
            try:
                self.jobs[index]()
            except Exception as raised:  # noqa: BLE001 - told to whoever waits
                error = raised
            except BaseException as panic:  # noqa: BLE001 - pyo3's, of a library's own fault
                log.error("a library failed over a mask: %r", panic)
                error = MatcherFailed(f"the constraint cannot be followed further: {GAVE_UP}")
            with self._lock:
                if self.closed:
                    return
                if error is not None:
                    self.errors[index] = error
                self.open.remove(index)
                if not self.open:
                    self.done.set()

    def starved(self, deadline_s: float) -> bool:
        """A job under way has hardly had the CPU: the machine is busy with others, and it would fail for no fault."""
        with self._lock:
            begun = [self.begun[index] for index in self.open if index in self.begun]
            return any(clock.seconds() < WORKED * deadline_s for clock in begun)

    def close(self) -> dict[int, float]:
        """Take no more results, begin nothing more; what the jobs that have begun and are not done have worked."""
        with self._lock:
            self.closed = True
            return {index: self.begun[index].seconds() for index in self.open if index in self.begun}


class _Clock:
    """CPU seconds of the thread that made it, since then; any thread may ask while that one lives."""

    def __init__(self) -> None:
        known = hasattr(time, "pthread_getcpuclockid")
        self._id = time.pthread_getcpuclockid(threading.get_ident()) if known else None
        self._start = self._now()

    def seconds(self) -> float:
        return self._now() - self._start

    def _now(self) -> float:
        return time.clock_gettime(self._id) if self._id is not None else time.monotonic()


class _Threads:
    """Threads that work on rounds. They know nothing of the filler, and end with it."""

    def __init__(self) -> None:
        self._inbox: SimpleQueue[_Round | None] = SimpleQueue()
        self._idle = 0
        self._lock = threading.Lock()

    def end(self) -> None:
        """Nothing is added any more: each thread that takes this word passes it on."""
        self._inbox.put(None)

    def add(self, work: _Round) -> None:
        """One more thread for the round: one that waits for work, or a new one."""
        with self._lock:
            waits = self._idle > 0
            self._idle -= waits
        self._inbox.put(work)
        if not waits:
            threading.Thread(target=self._serve, name="masks", daemon=True).start()

    def _serve(self) -> None:
        while (work := self._inbox.get()) is not None:
            work.work()
            if work.closed and work.open:
                return  # it was given up: another has its place
            with self._lock:
                self._idle += 1
        self.end()


class MaskFiller:
    """Runs jobs that each fill one row's masks. One caller at a time."""

    def __init__(self, deadline_s: float = 0.5) -> None:
        """`deadline_s`: wall seconds after which a row whose fill is not done fails (400); PATIENCE times as many where
        the machine has not let it run (503)."""
        self.deadline_s = deadline_s
        self._cpus = max(1, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
        self._threads = _Threads()
        weakref.finalize(self, self._threads.end).atexit = False

    def run(self, jobs: Sequence[Callable[[], None]]) -> list[RadixrtError | None]:
        """Run all jobs; for each its error, or None. Returns after `deadline_s` at the latest, unless the machine does
        not let a job run, or so many are held up that others could not even begin: these are then given as long again.

        Raises what a job raised beside RadixrtError.
        """
        errors: list[RadixrtError | None] = [None] * len(jobs)
        places = list(range(len(jobs)))
        while places:
            places = self._round(jobs, places, errors)
        return errors

    def _round(
        self, jobs: Sequence[Callable[[], None]], places: list[int], errors: list[RadixrtError | None]
    ) -> list[int]:
        """Run the jobs at `places`; the places of those that could not begin."""
        work = _Round([jobs[place] for place in places])
        now = time.monotonic()
        end, last = now + self.deadline_s, now + PATIENCE * self.deadline_s
        threads = 0
        while not work.done.is_set():
            now = time.monotonic()
            if now >= end:
                if now >= last or not work.starved(self.deadline_s):
                    break
                end = min(now + self.deadline_s / PATIENCE, last)
            left = end - now
            if len(work.begun) < len(places):
                self._threads.add(work)
                threads += 1
            patience = HELP_AFTER_S if threads < min(self._cpus, len(places)) else STUCK_AFTER_S
            work.done.wait(min(patience if threads < len(places) else left, left))
        late = work.close()
        for index, error in work.errors.items():
            if not isinstance(error, RadixrtError):
                raise error
            errors[places[index]] = error
        for index, worked in late.items():
            errors[places[index]] = self._late(worked)
        return [places[index] for index in work.open if index not in late]

    def _late(self, worked_s: float) -> RadixrtError:
        """The constraint's doing, or the machine's."""
        if worked_s < WORKED * self.deadline_s:
            waited = f"{PATIENCE * self.deadline_s:g} s"
            return Overloaded(
                f"the machine was too busy to compute the constraint's mask within {waited}: try again later",
                code="constraint_mask_late",
            )
        return TooComplex(
            f"the constraint cannot be followed further: its mask was not there within {self.deadline_s:g} s, "
            "for which everybody would wait; a less ambiguous constraint would do"
        )
