"""An engine whose every answer is charged to the caller and drawn into the trace, whichever route asked for it."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, cast

from radixrt.results import Delta, Usage
from radixrt.server import callers, tracing

if TYPE_CHECKING:
    from radixrt.server.state import ServingEngine


def metered(engine: ServingEngine) -> ServingEngine:
    """`engine`, charging what it generates and scores to `callers.current()`."""
    return cast("ServingEngine", _Metered(engine))


class _Metered:
    """Everything that is not written here is the engine's own."""

    def __init__(self, engine: ServingEngine) -> None:
        self._engine = engine

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    async def agenerate(self, *args: Any, **kwargs: Any) -> Any:
        return await _counted(self._engine.agenerate(*args, **kwargs))

    async def apin(self, *args: Any, **kwargs: Any) -> Any:
        pin = await self._engine.apin(*args, **kwargs)
        _charge(pin.tokens)
        return pin

    def for_tenant(self, tenant: str) -> ServingEngine:
        return metered(self._engine.for_tenant(tenant))

    async def ascore(self, *args: Any, **kwargs: Any) -> Any:
        return await _counted(self._engine.ascore(*args, **kwargs))

    async def aembed(self, *args: Any, **kwargs: Any) -> Any:
        return await _counted(self._engine.aembed(*args, **kwargs))

    async def aselect(self, *args: Any, **kwargs: Any) -> Any:
        return await _counted(self._engine.aselect(*args, **kwargs))

    async def astream(self, *args: Any, **kwargs: Any) -> AsyncIterator[Delta]:
        """A stream that is left early is charged for the tokens that came."""
        tokens, began = 0, time.time_ns()
        try:
            async with aclosing(cast("Any", self._engine.astream(*args, **kwargs))) as deltas:
                async for delta in deltas:
                    tokens += len(delta.token_ids)
                    if delta.usage is not None:
                        tokens = _tokens(delta.usage)
                        tracing.answered(began, delta.usage)
                    yield delta
        finally:
            _charge(tokens)


async def _counted(call: Awaitable[Any]) -> Any:
    began = time.time_ns()
    answer = await call
    usage = getattr(answer, "usage", None)
    if isinstance(usage, Usage):
        _charge(_tokens(usage))
        tracing.answered(began, usage)
    return answer


def charge(usage: Usage) -> None:
    """Charge the caller for a part of an answer."""
    _charge(_tokens(usage))


def _tokens(usage: Usage) -> int:
    return usage.prompt_tokens + usage.completion_tokens


def _charge(tokens: int) -> None:
    allowance = callers.current().allowance
    if allowance is not None and tokens:
        allowance.charge(tokens)
