"""ASGI layers around all routes: the key, and a last guard that counts and answers for what went wrong."""

from __future__ import annotations

import asyncio
import hmac

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from radixrt.errors import RadixrtError, Unauthorized
from radixrt.server.errors import SHUTTING_DOWN, as_radixrt_error, error_response
from radixrt.server.metrics import HttpMetrics
from radixrt.server.sse import ClientGone

OPEN_PATHS = frozenset({"/health"})
"""What answers without a key. Everything else needs it, routes that do not exist included."""

CLIENT_CLOSED = 499
"""Counted for a request whose client left before the answer; nobody receives it."""


class RequireKey:
    """Refuse every request without `Authorization: Bearer KEY`."""

    def __init__(self, app: ASGIApp, *, api_key: str) -> None:
        self._app = app
        self._expected = f"Bearer {api_key}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] not in OPEN_PATHS:
            given = b"".join(value for name, value in scope["headers"] if name == b"authorization")
            if not hmac.compare_digest(given, self._expected):
                words = "the API key is wrong" if given else "an API key is needed: Authorization: Bearer KEY"
                await error_response(Unauthorized(words, code="invalid_api_key"))(scope, receive, send)
                return
        await self._app(scope, receive, send)


class Guard:
    """Count each request once, by its route's template; turn an unexpected exception into a 500 that hides it."""

    def __init__(self, app: ASGIApp, *, metrics: HttpMetrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        status = 0

        async def watched(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        async def fail(error: RadixrtError) -> None:
            await error_response(error)(scope, receive, watched)

        try:
            await self._app(scope, receive, watched)
        except (ClientGone, ClientDisconnect):
            status = status or CLIENT_CLOSED
        except asyncio.CancelledError:
            if not status:
                await fail(SHUTTING_DOWN)
            raise
        except Exception as error:
            if status:
                raise
            await fail(as_radixrt_error(error))
        finally:
            self._metrics.count(scope, status or 500)
