"""The connections of a client to its server, and radixrt's errors for what goes wrong on them."""

from __future__ import annotations

import asyncio
import json
import threading
import weakref
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
import numpy as np

from radixrt.errors import (
    Aborted,
    EngineDead,
    ErrorInfo,
    InvalidRequest,
    NotFound,
    Overloaded,
    RadixrtError,
    Unauthorized,
)
from radixrt.http_calls import HttpCall
from radixrt.http_failures import http_failures
from radixrt.prompts import token_array
from radixrt.server.native_types import to_json

if TYPE_CHECKING:
    import httpx

T = TypeVar("T")

CONNECT_TIMEOUT_S = 10.0
DONE = b"[DONE]"
KEEP_ALIVE_S = 15.0
"""Shorter than the server's, so that it is never the server who closes a connection that is about to be used."""
GRACE_S = 5.0
"""A timeout is kept by the server; the socket waits this much longer for its words."""

_BY_STATUS = {400: InvalidRequest, 401: Unauthorized, 404: NotFound, 499: Aborted, 503: Overloaded}


class HttpLink:
    """Connections to one server, opened when they are first needed: for all threads, and for each event loop."""

    def __init__(self, base_url: str, headers: dict[str, str]) -> None:
        self._base_url = base_url
        self._headers = headers
        self._lock = threading.Lock()
        self._sync: httpx.Client | None = None
        self._async: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, httpx.AsyncClient] = (
            weakref.WeakKeyDictionary()
        )

    def close(self) -> None:
        """Close the synchronous connections."""
        with self._lock:
            client, self._sync = self._sync, None
        if client is not None:
            client.close()

    async def aclose(self) -> None:
        """Close the connections of the running event loop, and the synchronous ones."""
        with self._lock:
            client = self._async.pop(asyncio.get_running_loop(), None)
        if client is not None:
            await client.aclose()
        self.close()

    def call(self, call: HttpCall[T]) -> T:
        with http_failures(self._base_url):
            response = self._sync_client().request(call.method, call.path, **_arguments(call.body, call.timeout))
        return call.read(_answer(response, call.kind))

    async def acall(self, call: HttpCall[T]) -> T:
        with http_failures(self._base_url):
            client = self._async_client()
            response = await client.request(call.method, call.path, **_arguments(call.body, call.timeout))
        return call.read(_answer(response, call.kind))

    def events(self, path: str, body: Any, timeout: float | None, kind: Any) -> Iterator[Any]:
        """POST and read the answer's events, each of `kind`, up to the last one."""
        with (
            http_failures(self._base_url),
            self._sync_client().stream("POST", path, **_arguments(body, timeout)) as response,
        ):
            if response.status_code != 200:
                response.read()
                raise _error(response)
            lines = _Lines()
            for chunk in response.iter_bytes():
                for line in lines.feed(chunk):
                    if line == DONE:
                        return
                    yield _event(line, kind)
        raise EngineDead("the server ended the stream before the answer was complete")

    async def aevents(self, path: str, body: Any, timeout: float | None, kind: Any) -> AsyncIterator[Any]:
        with http_failures(self._base_url):
            async with self._async_client().stream("POST", path, **_arguments(body, timeout)) as response:
                if response.status_code != 200:
                    await response.aread()
                    raise _error(response)
                lines = _Lines()
                async for chunk in response.aiter_bytes():
                    for line in lines.feed(chunk):
                        if line == DONE:
                            return
                        yield _event(line, kind)
        raise EngineDead("the server ended the stream before the answer was complete")

    def _settings(self) -> dict[str, Any]:
        import httpx

        return {
            "base_url": self._base_url,
            "headers": self._headers,
            # Reading the system's certificates takes 0.2 s; plain http, which follows no redirect, has no use for them.
            "verify": not self._base_url.startswith("http://"),
            "limits": httpx.Limits(max_connections=None, max_keepalive_connections=256, keepalive_expiry=KEEP_ALIVE_S),
        }

    def _sync_client(self) -> httpx.Client:
        import httpx

        with self._lock:
            if self._sync is None:
                self._sync = httpx.Client(**self._settings())
            return self._sync

    def _async_client(self) -> httpx.AsyncClient:
        import httpx

        loop = asyncio.get_running_loop()
        with self._lock:
            # One a loop: a connection belongs to the loop that opened it.
            client = self._async.get(loop)
            if client is None:
                client = self._async[loop] = httpx.AsyncClient(**self._settings())
            return client


def _arguments(body: Any, timeout: float | None) -> dict[str, Any]:
    import httpx

    read = None if timeout is None else timeout + GRACE_S
    limits = httpx.Timeout(connect=CONNECT_TIMEOUT_S, read=read, write=read, pool=None)
    return {"timeout": limits, "content": None if body is None else to_json(body)}


def _answer(response: httpx.Response, kind: type[T]) -> T:
    if response.status_code != 200:
        raise _error(response)
    try:
        return msgspec.json.decode(response.content, type=kind)
    except msgspec.MsgspecError as error:
        raise RadixrtError(f"the server's answer is not one of radixrt's: {error}", code="bad_answer") from error


class _Lines:
    """The data of events. Lines end with a newline and nothing else: JSON text may hold other line separators."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, chunk: bytes) -> list[bytes]:
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        return [line.removeprefix(b"data: ") for line in lines if line]


def _event(data: bytes, kind: Any) -> Any:
    if data.startswith(b'{"error"'):
        raise _rebuilt(json.loads(data)["error"], RadixrtError)
    return msgspec.json.decode(data, type=kind, dec_hook=_ids)


def _ids(kind: type, value: object) -> object:
    """Arrays are lists in JSON."""
    if kind is np.ndarray and isinstance(value, list):
        return token_array(value)
    raise NotImplementedError(f"{kind} does not come in JSON")


def _error(response: httpx.Response) -> RadixrtError:
    """The exception that an error response tells of; its status decides where the body says nothing."""
    kind = _BY_STATUS.get(response.status_code, RadixrtError)
    try:
        detail = json.loads(response.content)["error"]
    except (ValueError, KeyError, TypeError):
        detail = None
    if not isinstance(detail, dict):
        return kind(f"the server answered {response.status_code}: {response.text[:200]}")
    return _rebuilt(detail, kind)


def _rebuilt(detail: dict[str, Any], otherwise: type[RadixrtError]) -> RadixrtError:
    info = ErrorInfo(
        kind=str(detail.get("kind", otherwise.__name__)),
        message=str(detail.get("message", "")),
        param=detail.get("pointer") or detail.get("param"),  # as the engine says it
        code=detail.get("code"),
    )
    return RadixrtError.from_info(info)
