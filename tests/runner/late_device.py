"""A device that puts everything off: work is done when somebody waits for it, and not before.

What a real device may have done by then it has not, so a result that is read too early is poison, and memory that is
written again before it was copied gives the wrong copy.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import torch


class LateEvent:
    def __init__(self, device: LateDevice, upto: int) -> None:
        self._device = device
        self._upto = upto

    def wait(self) -> None:
        self._device.work(self._upto)

    def done(self) -> bool:
        return self._device.worked >= self._upto


class LateGraph:
    def __init__(self, work: Callable[[], None]) -> None:
        self._work = work

    def replay(self) -> None:
        self._work()


class LateDevice:
    def __init__(self) -> None:
        self.device = torch.device("cpu")
        self.wake = os.eventfd(1, os.EFD_NONBLOCK)
        self._queue: list[Callable[[], None]] = []
        self.worked = 0
        self.waits = 0
        self.recorded = 0
        self.replayed = 0

    def work(self, upto: int) -> None:
        self.waits += self.worked < upto
        while self.worked < upto:
            self.worked += 1
            try:
                self._queue[self.worked - 1]()
            except BaseException:
                self.worked = max(self.worked, upto)  # what waited for it cannot be done either
                raise

    def run(self, work: Callable[[], None]) -> None:
        self._queue.append(work)

    def upload(self, staged: torch.Tensor) -> torch.Tensor:
        copy = torch.full_like(staged, 0xAB)
        self._queue.append(lambda: (copy.copy_(staged), None)[1])
        return copy

    def bring(self, staged: torch.Tensor) -> torch.Tensor:
        return staged.clone()

    def download(self, make: Callable[[], torch.Tensor], size: int) -> tuple[torch.Tensor, LateEvent]:
        host = self.host(size)
        self._queue.append(lambda: (host.copy_(make().reshape(-1).view(torch.uint8)), None)[1])
        return host, self.event()

    def event(self) -> LateEvent:
        return LateEvent(self, len(self._queue))

    copied = event

    def watch(self, event: LateEvent) -> None:
        os.eventfd_write(self.wake, 1)

    def host(self, size: int) -> torch.Tensor:
        return torch.full((size,), 0xCD, dtype=torch.uint8)

    def fetch(self, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    def record(self, work: Callable[[], None]) -> LateGraph:
        self.recorded += 1
        return LateGraph(self._replays(work))

    def _replays(self, work: Callable[[], None]) -> Callable[[], None]:
        def replay() -> None:
            self.replayed += 1
            work()

        return replay
