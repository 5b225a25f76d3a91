"""POST /v1/programs: a whole program in one request, so that any language can send one."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Protocol

from starlette.requests import Request
from starlette.responses import Response

from radixrt.errors import InvalidRequest
from radixrt.programs import AsyncProgram
from radixrt.segments import MAX_ITEMS, Chosen, Gen, Part, ProgramEvent, Select
from radixrt.server.body import decoder, read_body
from radixrt.server.metered import charge
from radixrt.server.native import check_constraint, check_timeout, json_answer
from radixrt.server.native_types import to_json
from radixrt.server.program_types import GenResult, ProgramAnswer, ProgramRequest, SelectResult
from radixrt.server.sse import EventStream, cancelled_when_gone, event
from radixrt.server.state import ServerState

_PROGRAM = decoder(ProgramRequest)


class _MakesPrograms(Protocol):
    def aprogram(
        self, *, cache_salt: str | None, priority: int, timeout: float | None, stream: bool
    ) -> AsyncProgram: ...


async def programs(request: Request) -> Response:
    """Run a program: its gens' results, or events as they come."""
    state: ServerState = request.app.state.radixrt
    body = await read_body(request, _PROGRAM, state.limits.body_bytes)
    check_timeout(body.timeout_s)
    if len(body.items) > MAX_ITEMS:
        raise InvalidRequest(f"items may hold at most {MAX_ITEMS} entries", param="items")
    engine = state.engine_for(body.model)
    for i, item in enumerate(body.items):
        if isinstance(item, Gen):
            check_constraint(item.constraint, engine.info, f"items[{i}].constraint")
    gens = [item.index for item in body.items if isinstance(item, Gen)]
    selects = [item.index for item in body.items if isinstance(item, Select)]
    if not gens and not selects:
        raise InvalidRequest("a program must hold at least one Gen or Select", param="items")
    if len({*gens, *selects}) < len(gens) + len(selects):
        raise InvalidRequest("each Gen and each Select needs an index of its own", param="items")
    able: object = engine
    if not hasattr(able, "aprogram"):
        raise InvalidRequest("this engine runs no programs", code="unsupported")
    maker: _MakesPrograms = able
    if body.stream:
        return await EventStream.open(request, _events(maker, body))
    async with cancelled_when_gone(request.receive), _open(maker, body) as program:
        async for happened in program:
            _charge(happened)
        results = [GenResult(index=index, generation=program.track(index).collector.generation()) for index in gens]
        found = [(index, program.track_select(index).selection) for index in selects]
        choices = [SelectResult(index=index, selection=chosen) for index, chosen in found if chosen is not None]
    return json_answer(ProgramAnswer(gens=results, selects=choices))


def _open(engine: _MakesPrograms, body: ProgramRequest) -> AsyncProgram:
    program = engine.aprogram(
        cache_salt=body.cache_salt, priority=body.priority, timeout=body.timeout_s, stream=body.stream
    )
    try:
        program.append(*body.items)
        program.send(closed=True)
    except BaseException:
        program.cancel()
        raise
    return program


async def _events(engine: _MakesPrograms, body: ProgramRequest) -> AsyncGenerator[bytes, None]:
    async with _open(engine, body) as program:
        async for happened in program:
            _charge(happened)
            yield event(to_json(happened))


def _charge(happened: ProgramEvent) -> None:
    """To the caller, gen by gen and select by select: one that is cut off is charged for what was done."""
    if isinstance(happened, Part) and happened.delta.usage is not None:
        charge(happened.delta.usage)
    elif isinstance(happened, Chosen):
        charge(happened.selection.usage)
