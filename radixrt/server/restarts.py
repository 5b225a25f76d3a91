"""When to start an engine again after a process of it died: soon the first time, later and later if it keeps dying."""

from __future__ import annotations


class Restarts:
    """Exponential back-off with a bounded number of tries; times are seconds of one monotonic clock."""

    def __init__(
        self, *, tries: int = 5, first_s: float = 0.5, longest_s: float = 30.0, healthy_s: float = 120.0
    ) -> None:
        self._tries = tries
        self._first_s = first_s
        self._longest_s = longest_s
        self._healthy_s = healthy_s
        self._count = 0
        self._opened: float | None = None

    def opened(self, now: float) -> None:
        """The engine serves (again)."""
        self._opened = now

    def after_death(self, now: float) -> float | None:
        """Seconds to wait before the next try, None when enough were made. One that served long enough starts anew."""
        if self._opened is not None and now - self._opened >= self._healthy_s:
            self._count = 0
        self._opened = None
        if self._count >= self._tries:
            return None
        self._count += 1
        return min(self._longest_s, self._first_s * 2.0 ** (self._count - 1))
