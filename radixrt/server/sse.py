"""Server-sent events, and noticing that a client is gone.

One watcher task a request waits for the client's hang-up and cancels the work; nothing is done per token but the
iteration itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from typing import Self

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from radixrt.errors import Aborted, RadixrtError
from radixrt.server.errors import LEFT, SHUTTING_DOWN, as_radixrt_error, error_body
from radixrt.server.running import current


class ClientGone(Exception):
    """The client closed its connection; nobody reads what is sent now."""


def event(data: bytes) -> bytes:
    """One event; `data` is JSON on one line."""
    return b"data: " + data + b"\n\n"


@asynccontextmanager
async def cancelled_when_gone(receive: Receive) -> AsyncIterator[None]:
    """Cancel the block when the client hangs up, and when the request is aborted; it ends with ClientGone or Aborted.

    The request's body must have been read: after it the only thing that can still come is the disconnect.
    """
    task = asyncio.current_task()
    if task is None:
        raise RuntimeError("cancelled_when_gone needs a running task")
    gone = False

    async def watch() -> None:
        nonlocal gone
        while (await receive())["type"] != "http.disconnect":
            pass
        gone = True
        task.cancel()

    watcher = asyncio.create_task(watch())
    running = current.get()
    try:
        with running.cancelling(task) if running is not None else nullcontext():
            yield
    except asyncio.CancelledError:
        aborted = running is not None and running.aborted
        if not gone and not aborted:
            raise
        task.uncancel()
        if gone:
            raise ClientGone from None
        raise Aborted("the request was aborted", code="aborted") from None
    finally:
        watcher.cancel()


class EventStream(Response):
    """A stream of events; ends with [DONE], or with an error event alone.

    While nothing comes for `keep_alive_s`, a comment is sent, so that neither client nor proxy takes a long prefill for
    a dead connection. The connection is closed at the end, so that a client that waits for that sees it.
    """

    media_type = "text/event-stream"
    keep_alive = b": keep-alive\n\n"
    """A comment, which clients skip."""
    done = b"data: [DONE]\n\n"

    def __init__(
        self, events: AsyncGenerator[bytes, None], first: asyncio.Future[bytes], keep_alive_s: float | None
    ) -> None:
        super().__init__(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no", "Connection": "close"})
        del self.headers["content-length"]
        self._events = events
        self._first = first
        self._keep_alive_s = keep_alive_s

    def failed(self, error: RadixrtError) -> bytes:
        """What ends a stream that cannot be finished."""
        return event(error_body(error))

    @classmethod
    async def open(cls, request: Request, events: AsyncGenerator[bytes, None]) -> Self:
        """Wait for the first event before any header is sent: an error until then is an ordinary response. Where it
        takes longer than the server's keep-alive interval, the headers go first."""
        keep_alive_s: float | None = request.app.state.radixrt.limits.sse_keep_alive_s or None
        first = asyncio.create_task(_next(events))
        try:
            async with cancelled_when_gone(request.receive):
                await asyncio.wait({first}, timeout=keep_alive_s)
            if first.done():
                first.result()
        except BaseException:
            await _ended(first, events)
            raise
        return cls(events, first, keep_alive_s)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        loop = asyncio.get_running_loop()
        written = loop.time()

        async def write(data: bytes, more: bool) -> None:
            nonlocal written
            written = loop.time()
            await send({"type": "http.response.body", "body": data, "more_body": more})

        async def keep_alive(interval_s: float) -> None:
            if not self._first.done():
                await write(self.keep_alive, True)
            while True:
                await asyncio.sleep(written + interval_s - loop.time())
                if loop.time() - written >= interval_s:
                    await write(self.keep_alive, True)

        ticking: asyncio.Task[None] | None = None
        try:
            async with cancelled_when_gone(receive):
                await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
                if self._keep_alive_s is not None and self.keep_alive:
                    ticking = asyncio.create_task(keep_alive(self._keep_alive_s))
                await write(await self._first, True)
                async for data in self._events:
                    await write(data, True)
                await write(self.done, False)
        except ClientGone:
            await _ended(self._first, self._events)
            await write(self.failed(LEFT), False)  # read by nobody, unless it still listens
        except asyncio.CancelledError:
            # The server gives up on draining: say so, for a stream that just stops looks like success.
            await write(self.failed(SHUTTING_DOWN), False)
            raise
        except Exception as error:  # noqa: BLE001 - it is logged, and the client is told
            await write(self.failed(as_radixrt_error(error)), False)
        finally:
            if ticking is not None:
                ticking.cancel()
            await _ended(self._first, self._events)


async def _next(events: AsyncGenerator[bytes, None]) -> bytes:
    return await anext(events)


async def _ended(first: asyncio.Future[bytes], events: AsyncGenerator[bytes, None]) -> None:
    """Stop the generator, wherever it is."""
    if not first.done():
        first.cancel()
        await asyncio.wait({first})
    elif not first.cancelled():
        first.exception()  # seen, wherever it was raised
    await events.aclose()
