"""Signals to a command that has not begun to serve: nothing is running that could be drained."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

STOPPING = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def stops_cleanly() -> Iterator[None]:
    """SIGINT and SIGTERM end the command with exit code 0, as they do once it serves (then the server has handlers of
    its own in place of these). What was started until then is stopped on the way out."""
    before = {number: signal.signal(number, _end) for number in STOPPING}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _end(number: int, frame: FrameType | None) -> None:
    raise SystemExit(0)
