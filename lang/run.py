"""`Run`: one call of a program, its time, and how it ends. `executor.py` has its branches."""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import Future
from typing import TYPE_CHECKING

from radixrt.backend import Backend
from radixrt.errors import InvalidRequest
from radixrt.lang.channel import Channel
from radixrt.lang.compiled import Feeder, RunsPrograms
from radixrt.lang.errors import ProgramError
from radixrt.lang.loop import loop_thread, post
from radixrt.lang.options import RunOptions
from radixrt.lang.services import OpenAI

if TYPE_CHECKING:
    from radixrt.lang.executor import Branch


class Run:
    """One call of a program."""

    def __init__(
        self,
        program: str,
        backend: Backend | OpenAI | None,
        *,
        streaming: bool = False,
        options: RunOptions | None = None,
    ) -> None:
        self.program = program
        self.service = backend if isinstance(backend, OpenAI) else None
        """Set where the run has no token ids."""
        self._backend = None if isinstance(backend, OpenAI) else backend
        self.streaming = streaming
        """Take deltas from the backend as they come, rather than whole results."""
        self.options = options or RunOptions()
        self.request_options = self.options.of_requests()
        """What goes with every request of the run."""
        self.timed_out: ProgramError | None = None
        self.changed = threading.Condition()
        """Guards the queues, `busy`, `ended` and the names of variables."""
        self.busy: set[Branch] = set()
        self.cancelled: ProgramError | None = None
        self.ended = False
        """The body has returned or raised."""
        self.body_error: ProgramError | None = None
        self.body_thread: int | None = None
        self.branches: list[Branch] = []
        """The trunk first."""
        self._begun = time.monotonic()
        self._over_s: float | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._idle_waiters: list[Future[None]] = []
        self._end_texts: list[tuple[Branch, Channel]] = []

    def seconds(self) -> float:
        """Since the run began; once its work is done, how long that took."""
        return self._over_s if self._over_s is not None else time.monotonic() - self._begun

    def feeder(self) -> Feeder | None:
        """What sends a branch's operations ahead; None where the backend takes no programs."""
        if self._backend is None or not isinstance(self._backend, RunsPrograms):
            return None
        return Feeder(self._backend, self.request_options, streaming=self.streaming)

    @property
    def has_backend(self) -> bool:
        """A plan may have none."""
        return self._backend is not None

    @property
    def over(self) -> bool:
        """Its body has ended, and nothing is left to do."""
        return self.ended and not self.busy

    def release(self) -> None:
        """Close what the run has open; on the loop thread."""
        for branch in list(self.branches):
            branch.release()

    @property
    def backend(self) -> Backend:
        if self._backend is None:
            raise InvalidRequest("this needs token ids, which a service does not give", code="unsupported")
        return self._backend

    def start_timer(self) -> None:
        """From now on the run has `options.timeout` seconds; `stop_timer` must follow."""
        if self.options.timeout is not None:
            post(self._arm, self.options.timeout)

    def stop_timer(self) -> None:
        if self.options.timeout is not None:
            post(self._disarm)

    def overdue(self) -> ProgramError:
        return ProgramError(
            f"the run took longer than {self.options.timeout} s and was cancelled", program=self.program, code="timeout"
        )

    def _arm(self, timeout_s: float) -> None:
        self._timer = loop_thread().loop.call_later(timeout_s, self._expire)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _expire(self) -> None:
        self.timed_out = self.overdue()
        self.cancel(self.timed_out)

    def idle(self) -> Future[None]:
        """Settled when no branch has work."""
        future: Future[None] = Future()
        with self.changed:
            if self.busy:
                self._idle_waiters.append(future)
                return future
        future.set_result(None)
        return future

    def end(self, error: ProgramError | None = None) -> None:
        """The body is over: nothing more will be appended by it."""
        with self.changed:
            self.ended, self.body_error = True, error
            if not self.busy:
                self._over_s = time.monotonic() - self._begun
            ends, self._end_texts = self._end_texts, []
            over = self.over
            self.changed.notify_all()
        if over and self._backend is not None:
            post(self.release)
        for branch, channel in ends:
            branch.end_text(channel)

    def cancel(self, error: ProgramError) -> None:
        """Ends all branches' work: requests are aborted, and whoever waits gets `error`."""
        with self.changed:
            self.cancelled = self.cancelled or error
            busy = list(self.busy)
        for branch in busy:
            branch.cancel(error)

    def close_at_end(self, branch: Branch, channel: Channel) -> None:
        """Ends a growing text with the body, or with what is queued where the body itself reads it."""
        with self.changed:
            own = self.body_thread == threading.get_ident()
            if not self.ended and not own:
                self._end_texts.append((branch, channel))
                return
        branch.end_text(channel)

    def became_idle(self) -> list[Future[None]]:
        """To be called with `changed` held; the futures are settled by the caller after it let go."""
        if self.busy:
            return []
        if self.ended and self._over_s is None:
            self._over_s = time.monotonic() - self._begun
        waiters, self._idle_waiters = self._idle_waiters, []
        return waiters
