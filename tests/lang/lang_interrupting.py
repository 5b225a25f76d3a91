"""Ctrl-C for the main thread, when an event has come."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def interrupted(when: threading.Event) -> Iterator[None]:
    """While the block runs in the main thread, `when` sends it a SIGINT; another one where it goes on: a signal that
    comes just before a thread waits for a lock is seen only once the lock is had."""
    ended = threading.Event()
    main = threading.main_thread().ident

    def interrupt() -> None:
        when.wait(60)
        for _ in range(5):
            if main is not None and not ended.is_set():
                signal.pthread_kill(main, signal.SIGINT)
            if ended.wait(5):
                return

    thread = threading.Thread(target=interrupt)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
