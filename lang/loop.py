"""The one event loop on which all programs' requests run.

Program bodies are plain Python and run in their caller's thread; what they ask for is done here, as coroutines. So a
program with a thousand forks costs no thread, and no pool can run out: nothing on this loop ever waits for a thread.
The loop's thread is started when it is first needed and ends with the interpreter.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from collections.abc import Callable
from typing import Any

from radixrt.errors import InvalidRequest

_THREAD_NAME = "radixrt-lang"


class LoopThread:
    """An event loop in a thread of its own."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=_THREAD_NAME, daemon=True)
        self._thread.start()
        atexit.register(self.stop)

    @property
    def is_current(self) -> bool:
        return threading.current_thread() is self._thread

    def stop(self) -> None:
        """Cancels what runs and ends the thread."""
        if self.pid != os.getpid() or not self._thread.is_alive():
            return
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(timeout=5)

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
            tasks = asyncio.all_tasks(self.loop)
            for task in tasks:
                task.cancel()
            if tasks:
                self.loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
            self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        finally:
            self.loop.close()


_current: LoopThread | None = None
_lock = threading.Lock()


def loop_thread() -> LoopThread:
    """The loop of this process (a forked child gets its own: threads do not survive a fork)."""
    global _current
    with _lock:
        if _current is None or _current.pid != os.getpid():
            _current = LoopThread()
        return _current


def post(function: Callable[..., object], *args: Any) -> None:
    """Has `function(*args)` called on the loop, soon; from any thread, in the order of the calls."""
    loop_thread().loop.call_soon_threadsafe(function, *args)


def refuse_on_loop(instead: str) -> None:
    """InvalidRequest on the loop's own thread, which would wait for itself."""
    current = _current
    if current is not None and current.is_current:
        raise InvalidRequest(f"this thread does the programs' work and cannot wait for it: use {instead}")
