"""Requests that are being answered, by our own ids, so that one can be aborted from outside."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from radixrt.server import callers


class Running:
    """One request: `abort` cancels what its task waits for, wherever that is."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.caller = callers.ANYBODY
        self.aborted = False
        self._cancel: Callable[[], object] | None = None

    def abort(self) -> None:
        self.aborted = True
        if self._cancel is not None:
            self._cancel()

    @contextmanager
    def cancelling(self, task: asyncio.Task[object]) -> Iterator[None]:
        """Within the block an abort cancels `task`; one that came before cancels it at once."""
        outer, self._cancel = self._cancel, task.cancel
        try:
            if self.aborted:
                task.cancel()
            yield
        finally:
            self._cancel = outer


class Requests:
    """All of a server. Used by one event loop alone."""

    def __init__(self) -> None:
        self._running: dict[str, Running] = {}

    @contextmanager
    def entered(self, name: str) -> Iterator[None]:
        running = self._running[name] = Running(name)
        token = current.set(running)
        try:
            yield
        finally:
            current.reset(token)
            del self._running[name]

    def abort(self, name: str | None, caller: callers.Caller) -> int:
        """Abort the request of that name, or all but the one that asks; only those of the caller's namespace, unless it
        operates the server. Returns how many."""
        named = self._running.values() if name is None else filter(None, [self._running.get(name)])
        found = [
            running
            for running in named
            if running is not current.get() and (caller.operator or running.caller.namespace == caller.namespace)
        ]
        for running in found:
            running.abort()
        return len(found)


current: ContextVar[Running | None] = ContextVar("running", default=None)
"""The request that the current task answers."""
