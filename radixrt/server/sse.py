"""Server-sent events, and noticing that a client is gone.

One watcher task a request waits for the client's hang-up and cancels the work; nothing is done per token but the
iteration itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from radixrt.server.errors import SHUTTING_DOWN, as_radixrt_error, error_body

DONE = b"data: [DONE]\n\n"


class ClientGone(Exception):
    """The client closed its connection; nobody reads what is sent now."""


def event(data: bytes) -> bytes:
    """One event; `data` is JSON on one line."""
    return b"data: " + data + b"\n\n"


@asynccontextmanager
async def cancelled_when_gone(receive: Receive) -> AsyncIterator[None]:
    """Cancel the block when the client hangs up; it ends with ClientGone then.

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
    try:
        yield
    except asyncio.CancelledError:
        if not gone:
            raise
        task.uncancel()
        raise ClientGone from None
    finally:
        watcher.cancel()


class EventStream(Response):
    """A stream of events whose first one is there already; ends with [DONE], or with an error event alone.

    The connection is closed after it, so that a client that waits for the end of the socket sees it too.
    """

    media_type = "text/event-stream"

    def __init__(self, first: bytes, rest: AsyncGenerator[bytes, None]) -> None:
        super().__init__(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no", "Connection": "close"})
        del self.headers["content-length"]
        self._first = first
        self._rest = rest

    @classmethod
    async def open(cls, request: Request, events: AsyncGenerator[bytes, None]) -> EventStream:
        """Wait for the first event before any header is sent: an error until then is an ordinary response."""
        try:
            async with cancelled_when_gone(request.receive):
                first = await anext(events)
        except BaseException:
            await events.aclose()
            raise
        return cls(first, events)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def write(data: bytes, more: bool) -> None:
            await send({"type": "http.response.body", "body": data, "more_body": more})

        try:
            async with cancelled_when_gone(receive):
                await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
                await write(self._first, True)
                async for data in self._rest:
                    await write(data, True)
                await write(DONE, False)
        except ClientGone:
            return
        except asyncio.CancelledError:
            # The server gives up on draining: say so, for a stream that just stops looks like success.
            await write(event(error_body(SHUTTING_DOWN)), False)
            raise
        except Exception as error:  # noqa: BLE001 - it is logged, and the client is told
            await write(event(error_body(as_radixrt_error(error))), False)
        finally:
            await self._rest.aclose()
