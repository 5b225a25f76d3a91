"""The deltas of one request as an iterator, for a thread or for a task. Closing it early cancels the request."""

from __future__ import annotations

import time

from radixrt.connection import AsyncInbox, Connection, SyncInbox
from radixrt.errors import Aborted, RadixrtError
from radixrt.messages import Abort
from radixrt.results import Delta


class _Request:
    """What both kinds share: when it is over, and what leaving it early does."""

    def __init__(self, connection: Connection, number: int, samples: int, timeout_s: float | None) -> None:
        self._over = False
        self._connection = connection
        self._number = number
        self._open_samples = samples
        self._deadline = None if timeout_s is None else time.monotonic() + timeout_s
        self._timeout_s = timeout_s

    @property
    def _left_s(self) -> float | None:
        return None if self._deadline is None else max(self._deadline - time.monotonic(), 0.0)

    def _take(self, item: object) -> Delta:
        if isinstance(item, Delta):
            if item.finish_reason is not None:
                self._open_samples -= 1
                if not self._open_samples:
                    self._end()
            return item
        self._end()
        if isinstance(item, RadixrtError):
            raise item
        raise RadixrtError(f"unexpected answer {type(item).__name__} to a generation")

    def _end(self) -> None:
        self._over = True
        self._connection.forget(self._number)

    def _cancel(self) -> None:
        """Stop the work for this request, unless it is over."""
        if not self._over:
            self._end()
            self._connection.send(Abort(request_id=self._number))

    def _timed_out(self) -> Aborted:
        self._cancel()
        return Aborted(f"the request took longer than {self._timeout_s} s and was cancelled", code="timeout")

    def __del__(self) -> None:
        self._cancel()


class DeltaStream(_Request):
    """Iterator over Delta for a thread."""

    def __init__(
        self, connection: Connection, number: int, inbox: SyncInbox, samples: int, timeout_s: float | None
    ) -> None:
        super().__init__(connection, number, samples, timeout_s)
        self._inbox = inbox

    def __iter__(self) -> DeltaStream:
        return self

    def __next__(self) -> Delta:
        if self._over:
            raise StopIteration
        try:
            item = self._inbox.get(self._left_s)
        except TimeoutError:
            raise self._timed_out() from None
        except BaseException:
            self._cancel()  # Ctrl-C while waiting
            raise
        return self._take(item)

    def close(self) -> None:
        self._cancel()


class AsyncDeltaStream(_Request):
    """Async iterator over Delta for a task; a cancelled task cancels the request."""

    def __init__(
        self, connection: Connection, number: int, inbox: AsyncInbox, samples: int, timeout_s: float | None
    ) -> None:
        super().__init__(connection, number, samples, timeout_s)
        self._inbox = inbox

    def __aiter__(self) -> AsyncDeltaStream:
        return self

    async def __anext__(self) -> Delta:
        if self._over:
            raise StopAsyncIteration
        try:
            item = await self._inbox.get(self._left_s)
        except TimeoutError:
            raise self._timed_out() from None
        except BaseException:
            self._cancel()
            raise
        return self._take(item)

    async def aclose(self) -> None:
        self._cancel()
