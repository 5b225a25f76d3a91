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
        if not self.left(now):
            self._opened = None
            return None
        self._count = 1 if self._served_long(now) else self._count + 1
        self._opened = None
        return min(self._longest_s, self._first_s * 2.0 ** (self._count - 1))

    def left(self, now: float) -> bool:
        """Whether an engine that dies now would be started again."""
        return self._count < self._tries or self._served_long(now)

    def _served_long(self, now: float) -> bool:
        return self._opened is not None and now - self._opened >= self._healthy_s
