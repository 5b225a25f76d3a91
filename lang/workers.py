"""Threads for program bodies: no more at once than a limit, and none left when there is nothing to do."""

from __future__ import annotations

import contextvars
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future

_inside = threading.local()


class Workers:
    """Runs functions in daemon threads, first come first served.

    A function that submits to the same workers and waits for the answer would wait for itself once the limit is
    reached; such a nested call gets a thread beyond the limit.
    """

    def __init__(self, limit: int, name: str) -> None:
        self._limit = limit
        self._name = name
        self._lock = threading.Lock()
        self._active = 0
        self._jobs: deque[Callable[[], None]] = deque()

    def submit(self, function: Callable[[], None]) -> Future[None]:
        """The future of the call; an exception, even KeyboardInterrupt, becomes the future's."""
        future: Future[None] = Future()
        context = contextvars.copy_context()

        def job() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                context.run(function)
            except BaseException as error:  # noqa: BLE001 - the one who waits for the future gets it
                future.set_exception(error)
            else:
                future.set_result(None)

        with self._lock:
            nested = getattr(_inside, "workers", None) is self
            if self._active >= self._limit and not nested:
                self._jobs.append(job)
                return future
            self._active += 1
        threading.Thread(target=self._run, args=(job,), name=self._name, daemon=True).start()
        return future

    def _run(self, job: Callable[[], None]) -> None:
        _inside.workers = self
        while True:
            job()
            with self._lock:
                if not self._jobs or self._active > self._limit:
                    self._active -= 1
                    return
                job = self._jobs.popleft()


bodies = Workers(limit=64, name="radixrt-program")
"""For the bodies of `stream` and `arun`; `run_batch` has its own, sized by its caller."""
