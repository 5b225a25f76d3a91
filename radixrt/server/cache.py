"""/cache, /flush_cache, /v1/cache/pin and /v1/cache/unpin; each is about the part of the tree that is the caller's."""

from __future__ import annotations

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from radixrt.errors import InvalidRequest
from radixrt.pinning import checked_ttl
from radixrt.prompts import as_prompt
from radixrt.server.body import decoder, read_body
from radixrt.server.callers import current
from radixrt.server.native import check_timeout
from radixrt.server.native_types import PinRequest, UnpinRequest
from radixrt.server.openai_shapes import json_response
from radixrt.server.sse import cancelled_when_gone
from radixrt.server.state import ServerState

_PIN = decoder(PinRequest)
_UNPIN = decoder(UnpinRequest)


class Flushed(msgspec.Struct, frozen=True):
    freed_tokens: int


async def view(request: Request) -> Response:
    """The prefix tree and its pins, as far as they are of the caller's tenant and of `?cache_salt=`."""
    state: ServerState = request.app.state.radixrt
    unknown = request.query_params.keys() - {"cache_salt"}
    if unknown:
        raise InvalidRequest("the one parameter of /cache is cache_salt", param=min(unknown))
    salt = request.query_params.get("cache_salt")
    seen = await state.engine.acache(cache_salt=salt)
    if current().operator:
        seen = msgspec.structs.replace(seen, tier=(await state.engine.astats()).tier)
    return json_response(seen)


async def pin(request: Request) -> Response:
    """Compute a prompt, as far as it is not cached, and keep it for a time."""
    state: ServerState = request.app.state.radixrt
    body = await read_body(request, _PIN, state.limits.body_bytes)
    try:
        ttl = checked_ttl(body.ttl_s)
    except InvalidRequest as error:
        error.param, error.message = "ttl_s", error.message.replace("ttl", "ttl_s", 1)
        raise
    check_timeout(body.timeout_s)
    engine = state.engine
    async with cancelled_when_gone(request.receive):
        made = await engine.apin(
            as_prompt(body.prompt), ttl, cache_salt=body.cache_salt, priority=body.priority, timeout=body.timeout_s
        )
    return json_response(made)


async def unpin(request: Request) -> Response:
    """End a pin before its time."""
    state: ServerState = request.app.state.radixrt
    body = await read_body(request, _UNPIN, state.limits.body_bytes)
    return json_response(await state.engine.aunpin(body.id, cache_salt=body.cache_salt))


async def flush(request: Request) -> Response:
    """Drop what nobody uses from the prefix tree: the tenant's own, or all where there are no tenants."""
    state: ServerState = request.app.state.radixrt
    return json_response(Flushed(freed_tokens=await state.engine.aflush()))
