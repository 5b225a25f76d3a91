"""The client API against a radixrt server: the same calls, values and exceptions as the engine's."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar

from radixrt.client_api import ClientApi
from radixrt.client_calls import Call, GenerateCall
from radixrt.errors import InvalidRequest
from radixrt.http_calls import HttpCall, generate_body, http_call
from radixrt.http_link import HttpLink
from radixrt.http_program import HttpProgram
from radixrt.results import Delta, ModelInfo
from radixrt.segments import ProgramEvent
from radixrt.server.native_types import ServerInfo
from radixrt.server.program_types import ProgramRequest

Answer = TypeVar("Answer")


class Client(ClientApi[Iterator[Delta], AsyncIterator[Delta]]):
    """A backend over HTTP; a context manager that closes its connections.

    `timeout` is the default of each call in seconds (None: as long as it takes). Connections are opened when they are
    first needed; synchronous calls may come from any thread, asynchronous ones from any event loop.
    """

    def __init__(self, base_url: str, *, api_key: str | None = None, timeout: float | None = None) -> None:
        if not base_url.startswith(("http://", "https://")):
            raise InvalidRequest(f"base_url must begin with http:// or https://, but is {base_url!r}", param="base_url")
        self._base_url = base_url.rstrip("/").removesuffix("/v1")
        headers = {"Content-Type": "application/json"}
        if api_key is not None:
            headers["Authorization"] = f"Bearer {api_key}"
        self._timeout = timeout
        self._link = HttpLink(self._base_url, headers)
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
        self._link.close()

    async def aclose(self) -> None:
        """Close the connections of the running event loop, and the synchronous ones."""
        await self._link.aclose()

    @property
    def info(self) -> ModelInfo:
        """The served model; asked once."""
        if self._info is None:
            asked: HttpCall[ServerInfo] = HttpCall("/server_info", None, ServerInfo, self._timeout)
            self._info = self._link.call(asked).model
        return self._info

    def _answer(self, call: Call[Answer]) -> Answer:
        return self._link.call(http_call(call, self._timeout))

    async def _aanswer(self, call: Call[Answer]) -> Answer:
        return await self._link.acall(http_call(call, self._timeout))

    def _stream(self, call: GenerateCall) -> Iterator[Delta]:
        body = generate_body(call, self._timeout, stream=True)
        return self._link.events("/generate", body, body.timeout_s, Delta)

    def _astream(self, call: GenerateCall) -> AsyncIterator[Delta]:
        body = generate_body(call, self._timeout, stream=True)
        return self._link.aevents("/generate", body, body.timeout_s, Delta)

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
            return self._link.aevents("/v1/programs", body, timeout, ProgramEvent)

        return HttpProgram(post)
