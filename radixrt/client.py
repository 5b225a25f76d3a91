"""The client API against a radixrt server: the same calls, values and exceptions as the engine's."""

from __future__ import annotations

import asyncio
import json
import threading
import weakref
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar
from urllib.parse import urlencode

import msgspec
import numpy as np

from radixrt.backend import Tokens
from radixrt.choosing import check_options
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
from radixrt.http_program import HttpProgram
from radixrt.params import ChoicesMethod, Constraint, SamplingParams
from radixrt.pinning import checked_ttl, pin_name
from radixrt.prompts import PromptLike, as_prompt, token_array
from radixrt.results import CacheView, Delta, Generation, ModelInfo, Pin, Scores, Selection
from radixrt.segments import ProgramEvent
from radixrt.server.native_types import (
    Decoded,
    DecodeRequest,
    EncodeRequest,
    GenerateRequest,
    PinRequest,
    ScoreRequest,
    ServerInfo,
    UnpinRequest,
    to_json,
)
from radixrt.server.program_types import ProgramRequest
from radixrt.server.select_types import SelectRequest

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


class Client:
    """A backend over HTTP; a context manager that closes its connections.

    `timeout` is the default of each call in seconds (None: as long as it takes). Connections are opened when they are
    first needed; synchronous calls may come from any thread, asynchronous ones from any event loop.
    """

    def __init__(self, base_url: str, *, api_key: str | None = None, timeout: float | None = None) -> None:
        if not base_url.startswith(("http://", "https://")):
            raise InvalidRequest(f"base_url must begin with http:// or https://, but is {base_url!r}", param="base_url")
        self._base_url = base_url.rstrip("/").removesuffix("/v1")
        self._headers = {"Content-Type": "application/json"}
        if api_key is not None:
            self._headers["Authorization"] = f"Bearer {api_key}"
        self._timeout = timeout
        self._lock = threading.Lock()
        self._sync: httpx.Client | None = None
        self._async: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, httpx.AsyncClient] = (
            weakref.WeakKeyDictionary()
        )
        self._info: ModelInfo | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    def close(self) -> None:
        """Close the synchronous connections; those of an event loop end with `aclose`, or with the loop."""
        if self._sync is not None:
            self._sync.close()
            self._sync = None

    async def aclose(self) -> None:
        """Close the connections of the running event loop, and the synchronous ones."""
        client = self._async.pop(asyncio.get_running_loop(), None)
        if client is not None:
            await client.aclose()
        self.close()

    # --- what the server is -----------------------------------------------------------------------------------------

    @property
    def info(self) -> ModelInfo:
        """The served model; asked once."""
        if self._info is None:
            self._info = self._call("GET", "/server_info", None, ServerInfo, None).model
        return self._info

    # --- generation -------------------------------------------------------------------------------------------------

    def generate(
        self,
        prompt: PromptLike,
        sampling_params: SamplingParams | None = None,
        *,
        constraint: Constraint | None = None,
        cache_salt: str | None = None,
        priority: int = 0,
        timeout: float | None = None,
    ) -> Generation:
        body = self._generate_body(prompt, sampling_params, constraint, cache_salt, priority, timeout, stream=False)
        return self._call("POST", "/generate", body, Generation, body.timeout_s)

    async def agenerate(
        self,
        prompt: PromptLike,
        sampling_params: SamplingParams | None = None,
        *,
        constraint: Constraint | None = None,
        cache_salt: str | None = None,
        priority: int = 0,
        timeout: float | None = None,
    ) -> Generation:
        body = self._generate_body(prompt, sampling_params, constraint, cache_salt, priority, timeout, stream=False)
        return await self._acall("POST", "/generate", body, Generation, body.timeout_s)

    def stream(
        self,
        prompt: PromptLike,
        sampling_params: SamplingParams | None = None,
        *,
        constraint: Constraint | None = None,
        cache_salt: str | None = None,
        priority: int = 0,
        timeout: float | None = None,
    ) -> Iterator[Delta]:
        body = self._generate_body(prompt, sampling_params, constraint, cache_salt, priority, timeout, stream=True)
        return self._stream(body)

    def astream(
        self,
        prompt: PromptLike,
        sampling_params: SamplingParams | None = None,
        *,
        constraint: Constraint | None = None,
        cache_salt: str | None = None,
        priority: int = 0,
        timeout: float | None = None,
    ) -> AsyncIterator[Delta]:
        body = self._generate_body(prompt, sampling_params, constraint, cache_salt, priority, timeout, stream=True)
        return self._astream(body)

    # --- programs ---------------------------------------------------------------------------------------------------

    programs_grow = False
    """A program request takes nothing more once it is sent (HTTP has no way back)."""

    def aprogram(
        self,
        *,
        cache_salt: str | None = None,
        priority: int = 0,
        timeout: float | None = None,
        stream: bool = True,
    ) -> HttpProgram:
        """An empty program request; what is appended goes out as one POST /v1/programs."""
        timeout = self._timeout if timeout is None else timeout

        def post(items: Sequence[Any]) -> AsyncIterator[ProgramEvent]:
            # Events are asked for in any case: they are what a program goes on from.
            body = ProgramRequest(
                items=list(items), cache_salt=cache_salt, priority=priority, stream=True, timeout_s=timeout
            )
            return self._aprogram(body)

        return HttpProgram(post)

    # --- tokens -----------------------------------------------------------------------------------------------------

    def tokenize(self, prompt: PromptLike) -> Tokens:
        return self._call("POST", "/encode", EncodeRequest(prompt=as_prompt(prompt)), Tokens, None)

    async def atokenize(self, prompt: PromptLike) -> Tokens:
        return await self._acall("POST", "/encode", EncodeRequest(prompt=as_prompt(prompt)), Tokens, None)

    def detokenize(self, ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        body = DecodeRequest(ids=_plain_ids(ids), skip_special_tokens=skip_special_tokens)
        return self._call("POST", "/decode", body, Decoded, None).text

    async def adetokenize(self, ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        body = DecodeRequest(ids=_plain_ids(ids), skip_special_tokens=skip_special_tokens)
        return (await self._acall("POST", "/decode", body, Decoded, None)).text

    def score(
        self,
        prompt: PromptLike,
        options: Sequence[Sequence[int]],
        *,
        cache_salt: str | None = None,
        priority: int = 0,
        timeout: float | None = None,
    ) -> Scores:
        body = self._score_body(prompt, options, cache_salt, priority, timeout)
        return self._call("POST", "/score", body, Scores, body.timeout_s)

    async def ascore(
        self,
        prompt: PromptLike,
        options: Sequence[Sequence[int]],
        *,
        cache_salt: str | None = None,
        priority: int = 0,
        timeout: float | None = None,
    ) -> Scores:
        body = self._score_body(prompt, options, cache_salt, priority, timeout)
        return await self._acall("POST", "/score", body, Scores, body.timeout_s)

    def select(
        self,
        prompt: PromptLike,
        options: Sequence[str] | Sequence[Sequence[int]],
        *,
        method: ChoicesMethod = "token_length_normalized",
        text: str = "",
        begins_turn: bool = False,
        return_cache_report: bool = False,
        cache_salt: str | None = None,
        priority: int = 0,
        timeout: float | None = None,
    ) -> Selection:
        body = self._select_body(
            prompt, options, method, text, begins_turn, return_cache_report, cache_salt, priority, timeout
        )
        return self._call("POST", "/v1/select", body, Selection, body.timeout_s)

    async def aselect(
        self,
        prompt: PromptLike,
        options: Sequence[str] | Sequence[Sequence[int]],
        *,
        method: ChoicesMethod = "token_length_normalized",
        text: str = "",
        begins_turn: bool = False,
        return_cache_report: bool = False,
        cache_salt: str | None = None,
        priority: int = 0,
        timeout: float | None = None,
    ) -> Selection:
        body = self._select_body(
            prompt, options, method, text, begins_turn, return_cache_report, cache_salt, priority, timeout
        )
        return await self._acall("POST", "/v1/select", body, Selection, body.timeout_s)

    # --- the cache --------------------------------------------------------------------------------------------------

    def pin(
        self,
        prompt: PromptLike,
        ttl: float,
        *,
        cache_salt: str | None = None,
        priority: int = 0,
        timeout: float | None = None,
    ) -> Pin:
        body = self._pin_body(prompt, ttl, cache_salt, priority, timeout)
        return self._call("POST", "/v1/cache/pin", body, Pin, body.timeout_s)

    async def apin(
        self,
        prompt: PromptLike,
        ttl: float,
        *,
        cache_salt: str | None = None,
        priority: int = 0,
        timeout: float | None = None,
    ) -> Pin:
        body = self._pin_body(prompt, ttl, cache_salt, priority, timeout)
        return await self._acall("POST", "/v1/cache/pin", body, Pin, body.timeout_s)

    def unpin(self, pin: Pin | str, *, cache_salt: str | None = None) -> Pin:
        body = UnpinRequest(id=pin_name(pin), cache_salt=cache_salt)
        return self._call("POST", "/v1/cache/unpin", body, Pin, None)

    async def aunpin(self, pin: Pin | str, *, cache_salt: str | None = None) -> Pin:
        body = UnpinRequest(id=pin_name(pin), cache_salt=cache_salt)
        return await self._acall("POST", "/v1/cache/unpin", body, Pin, None)

    def cache(self, *, cache_salt: str | None = None) -> CacheView:
        """What the server's tree holds of this key's tenant and salt."""
        return self._call("GET", _cache_path(cache_salt), None, CacheView, None)

    async def acache(self, *, cache_salt: str | None = None) -> CacheView:
        return await self._acall("GET", _cache_path(cache_salt), None, CacheView, None)

    # --- the wire ---------------------------------------------------------------------------------------------------

    def _generate_body(
        self,
        prompt: PromptLike,
        sampling: SamplingParams | None,
        constraint: Constraint | None,
        cache_salt: str | None,
        priority: int,
        timeout: float | None,
        *,
        stream: bool,
    ) -> GenerateRequest:
        return GenerateRequest(
            prompt=as_prompt(prompt),
            sampling=sampling or SamplingParams(),
            constraint=constraint,
            cache_salt=cache_salt,
            priority=priority,
            stream=stream,
            timeout_s=self._timeout if timeout is None else timeout,
        )

    def _pin_body(
        self, prompt: PromptLike, ttl: float, cache_salt: str | None, priority: int, timeout: float | None
    ) -> PinRequest:
        return PinRequest(
            prompt=as_prompt(prompt),
            ttl_s=checked_ttl(ttl),
            cache_salt=cache_salt,
            priority=priority,
            timeout_s=self._timeout if timeout is None else timeout,
        )

    def _score_body(
        self,
        prompt: PromptLike,
        options: Sequence[Sequence[int]],
        cache_salt: str | None,
        priority: int,
        timeout: float | None,
    ) -> ScoreRequest:
        return ScoreRequest(
            prompt=as_prompt(prompt),
            options=[_plain_ids(option) for option in options],
            cache_salt=cache_salt,
            priority=priority,
            timeout_s=self._timeout if timeout is None else timeout,
        )

    def _select_body(
        self,
        prompt: PromptLike,
        options: Sequence[str] | Sequence[Sequence[int]],
        method: ChoicesMethod,
        text: str,
        begins_turn: bool,
        return_cache_report: bool,
        cache_salt: str | None,
        priority: int,
        timeout: float | None,
    ) -> SelectRequest:
        check_options(options, method)
        return SelectRequest(
            prompt=as_prompt(prompt),
            options=[option if isinstance(option, str) else _plain_ids(option) for option in options],
            method=method,
            text=text,
            begins_turn=begins_turn,
            return_cache_report=return_cache_report,
            cache_salt=cache_salt,
            priority=priority,
            timeout_s=self._timeout if timeout is None else timeout,
        )

    def _call(self, method: str, path: str, body: object, kind: type[T], timeout: float | None) -> T:
        with self._failures():
            response = self._sync_client().request(method, path, **self._arguments(body, timeout))
        return _answer(response, kind)

    async def _acall(self, method: str, path: str, body: object, kind: type[T], timeout: float | None) -> T:
        with self._failures():
            response = await self._async_client().request(method, path, **self._arguments(body, timeout))
        return _answer(response, kind)

    def _stream(self, body: GenerateRequest) -> Iterator[Delta]:
        arguments = self._arguments(body, body.timeout_s)
        with self._failures(), self._sync_client().stream("POST", "/generate", **arguments) as response:
            if response.status_code != 200:
                response.read()
                raise _error(response)
            lines = _Lines()
            for chunk in response.iter_bytes():
                for line in lines.feed(chunk):
                    if line == DONE:
                        return
                    yield _delta(line)
        raise EngineDead("the server ended the stream before the answer was complete")

    async def _astream(self, body: GenerateRequest) -> AsyncIterator[Delta]:
        arguments = self._arguments(body, body.timeout_s)
        with self._failures():
            async with self._async_client().stream("POST", "/generate", **arguments) as response:
                if response.status_code != 200:
                    await response.aread()
                    raise _error(response)
                lines = _Lines()
                async for chunk in response.aiter_bytes():
                    for line in lines.feed(chunk):
                        if line == DONE:
                            return
                        yield _delta(line)
        raise EngineDead("the server ended the stream before the answer was complete")

    async def _aprogram(self, body: ProgramRequest) -> AsyncIterator[ProgramEvent]:
        arguments = self._arguments(body, body.timeout_s)
        with self._failures():
            async with self._async_client().stream("POST", "/v1/programs", **arguments) as response:
                if response.status_code != 200:
                    await response.aread()
                    raise _error(response)
                lines = _Lines()
                async for chunk in response.aiter_bytes():
                    for line in lines.feed(chunk):
                        if line == DONE:
                            return
                        yield _program_event(line)

    def _arguments(self, body: object, timeout: float | None) -> dict[str, Any]:
        import httpx

        timeout = self._timeout if timeout is None else timeout
        read = None if timeout is None else timeout + GRACE_S
        limits = httpx.Timeout(connect=CONNECT_TIMEOUT_S, read=read, write=read, pool=None)
        return {"timeout": limits, "content": None if body is None else to_json(body)}

    @contextmanager
    def _failures(self) -> Iterator[None]:
        """Turn what httpx raises into radixrt's errors."""
        import httpx

        try:
            yield
        except httpx.ConnectError as error:
            raise EngineDead(f"no server answers at {self._base_url}: {error}", code="unreachable") from error
        except httpx.TimeoutException as error:
            raise Aborted(f"the server at {self._base_url} did not answer in time", code="timeout") from error
        except httpx.HTTPError as error:
            raise EngineDead(f"the connection to {self._base_url} broke: {error}", code="disconnected") from error

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


def _program_event(data: bytes) -> ProgramEvent:
    if data.startswith(b'{"error"'):
        raise _rebuilt(json.loads(data)["error"], RadixrtError)
    event: ProgramEvent = msgspec.json.decode(data, type=ProgramEvent, dec_hook=_ids)
    return event


def _ids(kind: type, value: object) -> object:
    """Arrays are lists in JSON."""
    if kind is np.ndarray and isinstance(value, list):
        return token_array(value)
    raise NotImplementedError(f"{kind} does not come in JSON")


def _delta(data: bytes) -> Delta:
    if data.startswith(b'{"error"'):
        raise _rebuilt(json.loads(data)["error"], RadixrtError)
    return msgspec.json.decode(data, type=Delta)


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
        param=detail.get("param"),
        code=detail.get("code"),
    )
    return RadixrtError.from_info(info)


def _cache_path(cache_salt: str | None) -> str:
    return "/cache" if cache_salt is None else f"/cache?{urlencode({'cache_salt': cache_salt})}"


def _plain_ids(ids: Sequence[int]) -> list[int]:
    return [int(token) for token in ids]
