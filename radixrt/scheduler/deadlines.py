"""Which requests ran out of time."""

from __future__ import annotations

import heapq

from radixrt.scheduler.requests import Request


class Deadlines:
    """Requests with a deadline, soonest first. O(log n) each; finished ones drop out by themselves."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Request]] = []

    def add(self, request: Request) -> None:
        if request.deadline is not None:
            heapq.heappush(self._heap, (request.deadline, request.id, request))

    def expired(self, now: float) -> list[Request]:
        """Unfinished requests whose deadline has passed; each is told of once."""
        gone = []
        while self._heap and (self._heap[0][0] <= now or self._heap[0][2].finished):
            request = heapq.heappop(self._heap)[2]
            if not request.finished:
                gone.append(request)
        return gone

    def seconds_left(self, now: float) -> float | None:
        """Until the next deadline; None when there is none."""
        return max(self._heap[0][0] - now, 0.0) if self._heap else None
