"""Waiting for what other processes and threads do: as long as it takes. No test asserts how long that is."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

import psutil

HANG_S = 300.0
"""Seconds after which a test gives up waiting: what it waits for hangs. Machines and the load on them differ a
hundredfold, so that a limit of seconds would say more about them than about the code. Figures of time are in
benchmarks/."""


def until(condition: Callable[[], object], what: str = "") -> None:
    """Return as soon as `condition()` is true, for what sets no event; AssertionError when it hangs."""
    end = time.monotonic() + HANG_S
    while not condition():
        assert time.monotonic() < end, what or "what is waited for does not come about"
        time.sleep(0.01)


def all_end(processes: Iterable[psutil.Process | int]) -> bool:
    """Whether these processes (or ids) end: True, or AssertionError when one hangs. One that its parent has not asked
    about has ended, too."""
    left = list(processes)
    until(lambda: not any(map(_runs, left)), "a process does not end")
    return True


def _runs(process: psutil.Process | int) -> bool:
    try:
        process = psutil.Process(process) if isinstance(process, int) else process
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
