"""What a runner that works ahead asks of a device: work in order, events, graphs, memory that can be copied from.

`CudaDevice` is the real one. Tests have one that puts all work off until somebody waits, which is the latest that a
real device may do it: whatever reads too early, or writes over what is still to be read, shows there.
"""

from __future__ import annotations

import contextlib
import os
import queue
import threading
from collections.abc import Callable
from typing import Any, Protocol

import torch


class Event(Protocol):
    """A point in the device's work."""

    def wait(self) -> None:
        """Until all work before it is done; what that raised is raised here."""
        ...

    def done(self) -> bool: ...


class Graph(Protocol):
    """Work that was recorded, on the tensors that it used then."""

    def replay(self) -> None: ...


class Device(Protocol):
    """`wake` is a descriptor that can be read when an event given to `watch` is done."""

    device: torch.device
    wake: int

    def run(self, work: Callable[[], None]) -> None:
        """Do `work` behind all that was given before."""
        ...

    def upload(self, staged: torch.Tensor) -> torch.Tensor:
        """A copy of `staged`, made beside what is under way; what is given to `run` from now on finds it done."""
        ...

    def bring(self, staged: torch.Tensor) -> torch.Tensor:
        """A copy of `staged`, made beside the steps, none of which waits for it: the caller does, in any thread."""
        ...

    def download(self, make: Callable[[], torch.Tensor], size: int) -> tuple[torch.Tensor, Event]:
        """What `make` gives when its turn comes, as `run` has it, copied to the host beside the work that comes later:
        (uint8[size], valid behind the event)."""
        ...

    def event(self) -> Event:
        """Behind all that was given to `run` so far."""
        ...

    def copied(self) -> Event:
        """Behind all uploads so far."""
        ...

    def watch(self, event: Event) -> None: ...

    def host(self, size: int) -> torch.Tensor:
        """uint8[size] on the host that the device can copy from and to by itself."""
        ...

    def fetch(self, x: torch.Tensor) -> torch.Tensor:
        """Called in `run`: x on the host, valid behind the next event."""
        ...

    def record(self, work: Callable[[], None]) -> Graph:
        """Called in `run`. `work` has run once already; it is recorded, not done."""
        ...


class CudaDevice:
    """One GPU: a stream for steps, one for copies, and a thread that waits for events (without Python's lock). It is to
    be made and used by the thread that runs the steps."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        torch.cuda.set_device(device)
        self._steps = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._copies = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        # Apart from uploads, which steps wait for: a tier's copies are long, each way has its own engine.
        self._downloads = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._arrivals = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        # Weights were loaded in the default stream; from now on this thread works, and allocates, in the steps' own.
        torch.cuda.synchronize(device)
        torch.cuda.set_stream(self._steps)
        self._pool: Any = torch.cuda.graph_pool_handle()
        self.wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._watched: queue.SimpleQueue[Event] = queue.SimpleQueue()
        threading.Thread(target=self._watch, daemon=True, name="device-events").start()

    def run(self, work: Callable[[], None]) -> None:
        work()

    def upload(self, staged: torch.Tensor) -> torch.Tensor:
        # Allocated for the stream that writes it: memory of the steps' stream may still be in use by what is under way.
        with torch.cuda.stream(self._copies):
            copy = staged.to(self.device, non_blocking=True)
        copy.record_stream(self._steps)
        self._steps.wait_stream(self._copies)
        return copy

    def bring(self, staged: torch.Tensor) -> torch.Tensor:
        with torch.cuda.device(self.device), torch.cuda.stream(self._arrivals):
            copy = staged.to(self.device, non_blocking=True)
        _CudaEvent(self._arrivals).wait()
        copy.record_stream(self._steps)
        return copy

    def download(self, make: Callable[[], torch.Tensor], size: int) -> tuple[torch.Tensor, Event]:
        host, made = self.host(size), make()
        self._downloads.wait_stream(self._steps)
        with torch.cuda.stream(self._downloads):
            host.copy_(made.reshape(-1).view(torch.uint8), non_blocking=True)
        made.record_stream(self._downloads)
        return host, _CudaEvent(self._downloads)

    def event(self) -> Event:
        return _CudaEvent(self._steps)

    def copied(self) -> Event:
        return _CudaEvent(self._copies)

    def watch(self, event: Event) -> None:
        self._watched.put(event)

    def host(self, size: int) -> torch.Tensor:
        return torch.empty(size, dtype=torch.uint8, pin_memory=True)

    def fetch(self, x: torch.Tensor) -> torch.Tensor:
        return torch.empty(x.shape, dtype=x.dtype, pin_memory=True).copy_(x, non_blocking=True)

    def record(self, work: Callable[[], None]) -> Graph:
        graph = torch.cuda.CUDAGraph()
        # Other threads (a tier's copies) may use the device meanwhile: only this one must keep to what can be recorded.
        with torch.cuda.graph(graph, pool=self._pool, stream=self._steps, capture_error_mode="thread_local"):
            work()
        return graph

    def _watch(self) -> None:
        while True:
            # What the work raised is told to whoever settles the step, by the same event.
            with contextlib.suppress(RuntimeError):
                self._watched.get().wait()
            os.eventfd_write(self.wake, 1)


class _CudaEvent:
    def __init__(self, stream: torch.cuda.Stream) -> None:
        self._event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
        self._event.record(stream)

    def wait(self) -> None:
        self._event.synchronize()

    def done(self) -> bool:
        return bool(self._event.query())  # type: ignore[no-untyped-call]
