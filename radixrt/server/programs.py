"""POST /v1/programs: a whole program in one request, so that any language can send one."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from starlette.requests import Request
from starlette.responses import Response

from radixrt.errors import InvalidRequest
from radixrt.segments import Chosen, Part, ProgramEvent
from radixrt.server.body import decoder, read_body
from radixrt.server.metered import charge
from radixrt.server.native import check_timeout, json_answer
from radixrt.server.native_types import to_json
from radixrt.server.program_plan import plan
from radixrt.server.program_run import MakesPrograms, ProgramRun
from radixrt.server.program_types import ProgramRequest
from radixrt.server.sse import EventStream, cancelled_when_gone, event
from radixrt.server.state import ServerState

_PROGRAM = decoder(ProgramRequest)


async def programs(request: Request) -> Response:
    """Run a program: what its gens, selects and forks gave, or events as they come."""
    state: ServerState = request.app.state.radixrt
    body = await read_body(request, _PROGRAM, state.limits.body_bytes)
    check_timeout(body.timeout_s)
    engine = state.engine_for(body.model)
    planned = plan(body.items, engine.info)
    able: object = engine
    if not hasattr(able, "aprogram"):
        raise InvalidRequest("this engine runs no programs", code="unsupported")
    maker: MakesPrograms = able
    run = ProgramRun(maker, body, planned)
    if body.stream:
        return await EventStream.open(request, _events(run))
    async with cancelled_when_gone(request.receive), aclosing(run.events()) as events:
        async for happened in events:
            _charge(happened)
    return json_answer(run.answer())


async def _events(run: ProgramRun) -> AsyncGenerator[bytes, None]:
    async with aclosing(run.events()) as events:
        async for happened in events:
            _charge(happened)
            yield event(to_json(happened))


def _charge(happened: ProgramEvent) -> None:
    """To the caller, gen by gen and select by select: one that is cut off is charged for what was done."""
    if isinstance(happened, Part) and happened.delta.usage is not None:
        charge(happened.delta.usage)
    elif isinstance(happened, Chosen):
        charge(happened.selection.usage)
