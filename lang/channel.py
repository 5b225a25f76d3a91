"""A growing text that is written by one thread and read by any number of threads and event loops."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator


class Channel:
    """Pieces of text in order; every reader sees all of them, from the first."""

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._closed = False
        self._error: BaseException | None = None
        self._changed = threading.Condition()
        self._wakers: set[Callable[[], None]] = set()

    @property
    def closed(self) -> bool:
        return self._closed

    def put(self, piece: str) -> None:
        if not piece:
            return
        with self._changed:
            if not self._closed:
                self._pieces.append(piece)
                self._wake()

    def close(self, error: BaseException | None = None) -> None:
        """Readers end after the last piece, with `error` where there is one. Only the first close counts."""
        with self._changed:
            if not self._closed:
                self._closed, self._error = True, error
                self._wake()

    def __iter__(self) -> Iterator[str]:
        position = 0
        while True:
            with self._changed:
                while position == len(self._pieces) and not self._closed:
                    self._changed.wait()
                pieces = self._pieces[position:]
            if not pieces:
                break
            position += len(pieces)
            yield from pieces
        if self._error is not None:
            raise self._error

    async def __aiter__(self) -> AsyncIterator[str]:
        position = 0
        changed = asyncio.Event()
        loop = asyncio.get_running_loop()

        def wake() -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(changed.set)

        with self._changed:
            self._wakers.add(wake)
        try:
            while True:
                changed.clear()
                with self._changed:
                    pieces, closed = self._pieces[position:], self._closed
                position += len(pieces)
                for piece in pieces:
                    yield piece
                if closed and not pieces:
                    break
                if not pieces:
                    await changed.wait()
        finally:
            with self._changed:
                self._wakers.discard(wake)
        if self._error is not None:
            raise self._error

    def _wake(self) -> None:
        self._changed.notify_all()
        for waker in self._wakers:
            waker()
