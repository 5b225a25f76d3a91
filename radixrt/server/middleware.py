"""ASGI layers around all routes: the key, and a last guard that counts and answers for what went wrong."""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Mapping

from starlette.datastructures import MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from radixrt.errors import Forbidden, RadixrtError, Unauthorized
from radixrt.process import request_id
from radixrt.server.callers import ANYBODY, Caller, Callers, enter
from radixrt.server.errors import LEFT, SHUTTING_DOWN, as_radixrt_error, error_response
from radixrt.server.faults import short
from radixrt.server.http_protocol import until_nothing_more
from radixrt.server.keys import Access
from radixrt.server.metrics import HttpMetrics, route_of
from radixrt.server.running import Requests
from radixrt.server.running import current as running_now
from radixrt.server.sse import ClientGone
from radixrt.server.tracing import Tracing
from radixrt.surface import write_with

access_log = logging.getLogger("radixrt.access")


class RequireKey:
    """Answer only to who has a key, on every path that is not declared open, routes that do not exist included."""

    def __init__(self, app: ASGIApp, *, callers: Callers, access: Mapping[str, Access]) -> None:
        self._app = app
        self._callers = callers
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        # The path that the router goes by, not one put together from headers.
        access = self._access.get(scope["path"], "key")
        try:
            caller = self._caller(scope, access)
        except RadixrtError as error:
            await error_response(error, scope["path"])(scope, receive, send)
            return
        enter(caller)
        if (running := running_now.get()) is not None:
            running.caller = caller
        scope["radixrt.caller"] = caller.name
        left = caller.allowance.headers() if caller.allowance is not None else {}
        await self._app(scope, receive, with_headers(send, left) if left else send)

    def _caller(self, scope: Scope, access: Access) -> Caller:
        if access == "open":
            return ANYBODY
        secrets = [secret for name, value in scope["headers"] if (secret := _secret(name, value)) is not None]
        caller = self._callers.find(secrets)
        if caller is None:
            words = "the API key is wrong" if secrets else "an API key is needed: Authorization: Bearer KEY"
            raise Unauthorized(words, code="invalid_api_key")
        if access == "admin" and not caller.operator:
            raise Forbidden("this route needs an admin key", code="admin_key_needed")
        if access == "key" and scope["method"] == "POST" and caller.allowance is not None:
            caller.allowance.admit()
        return caller


def _secret(name: bytes, value: bytes) -> bytes | None:
    """The key in a header: `Authorization: Bearer KEY`, or `x-api-key: KEY` as Anthropic's clients send it."""
    if name == b"x-api-key":
        return value
    scheme, _, secret = value.partition(b" ")
    return secret.strip() if name == b"authorization" and scheme.lower() == b"bearer" else None


def with_headers(send: Send, headers: Mapping[str, str]) -> Send:
    """`send`, adding headers to the response."""

    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            MutableHeaders(scope=message).update(headers)
        await send(message)

    return sending


class Guard:
    """Give each request an id of our own, count and log it once, by its route's template and never by what the client
    wrote, and turn an unexpected exception into a 500 that hides it."""

    def __init__(
        self, app: ASGIApp, *, metrics: HttpMetrics, requests: Requests, tracing: Tracing | None = None
    ) -> None:
        self._app = app
        self._metrics = metrics
        self._requests = requests
        self._tracing = tracing

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        status, begun, name = 0, time.monotonic(), f"req_{uuid.uuid4().hex}"
        request_id.set(name)
        write_with(short)  # errors speak JSON to who sent it
        span = self._tracing.began(scope["headers"], scope["method"]) if self._tracing is not None else None

        async def watched(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)["x-request-id"] = name
            await send(message)

        async def fail(error: RadixrtError) -> None:
            await error_response(error, scope["path"])(scope, receive, watched)

        try:
            with self._requests.entered(name):
                await self._app(scope, until_nothing_more(receive, scope), watched)
        except (ClientGone, ClientDisconnect):
            if not status:
                await fail(LEFT)  # read by nobody, unless it still listens
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
            method, route = route_of(scope)
            if self._tracing is not None:
                self._tracing.ended(span, route, method, status or 500)
            access_log.info(
                "%s %s %d %.0f ms %s",
                method, route, status or 500, 1000 * (time.monotonic() - begun), scope.get("radixrt.caller") or "-",
            )  # fmt: skip
