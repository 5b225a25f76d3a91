"""Streams of deltas: one request's, and several requests' as one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing

from radixrt.backend import Backend
from radixrt.messages import Prompt
from radixrt.params import Constraint, SamplingParams
from radixrt.results import Delta


async def open_stream(
    engine: Backend,
    prompt: Prompt,
    sampling: SamplingParams,
    constraint: Constraint | None = None,
    cache_salt: str | None = None,
    priority: int = 0,
    timeout: float | None = None,
) -> AsyncGenerator[Delta, None]:
    """The engine's stream as a generator that can be closed, which cancels the request."""
    deltas = engine.astream(
        prompt, sampling, constraint=constraint, cache_salt=cache_salt, priority=priority, timeout=timeout
    )
    try:
        async for delta in deltas:
            yield delta
    finally:
        close = getattr(deltas, "aclose", None)
        if close is not None:
            await close()


async def merged(streams: Sequence[AsyncGenerator[Delta, None]]) -> AsyncGenerator[tuple[int, Delta], None]:
    """Deltas of several requests as they come, each with the position of its request.

    The first error ends all of them; closing this generator closes all of them.
    """
    if len(streams) == 1:
        async with aclosing(streams[0]) as only:
            async for delta in only:
                yield 0, delta
        return
    arrived: asyncio.Queue[tuple[int, Delta] | Exception | None] = asyncio.Queue(maxsize=1024)
    pumps = [asyncio.create_task(_pump(i, stream, arrived)) for i, stream in enumerate(streams)]
    try:
        running = len(pumps)
        while running:
            item = await arrived.get()
            if item is None:
                running -= 1
            elif isinstance(item, Exception):
                raise item
            else:
                yield item
    finally:
        for pump in pumps:
            pump.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)


async def _pump(
    position: int, stream: AsyncIterator[Delta], arrived: asyncio.Queue[tuple[int, Delta] | Exception | None]
) -> None:
    try:
        async for delta in stream:
            await arrived.put((position, delta))
        await arrived.put(None)
    except Exception as error:  # noqa: BLE001 - it is raised where the deltas are read
        await arrived.put(error)
