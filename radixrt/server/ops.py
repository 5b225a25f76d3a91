"""Watching and steering: /health, /ready, /metrics, /server_info."""

from __future__ import annotations

import msgspec
from starlette.requests import Request
from starlette.responses import Response

import radixrt
from radixrt.errors import InvalidRequest, NotFound, RadixrtError
from radixrt.server import callers
from radixrt.server.body import decoder, read_body
from radixrt.server.metrics import exposition
from radixrt.server.native_types import ServerInfo
from radixrt.server.openai_shapes import json_response
from radixrt.server.state import ServerState, Stage


class Status(msgspec.Struct, frozen=True):
    status: Stage


async def health(request: Request) -> Response:
    """Liveness: 503 once a process of the engine is dead and until it is started again; 200 before, also while loading.
    Asks no queue."""
    stage = request.app.state.radixrt.stage
    return _status(stage, 200 if stage in ("loading", "serving") else 503)


async def ready(request: Request) -> Response:
    """Readiness: 200 when requests can be taken, 503 while loading and after a death."""
    state: ServerState = request.app.state.radixrt
    return _status(state.stage, 200 if state.stage == "serving" and not state.draining else 503)


async def metrics(request: Request) -> Response:
    """Prometheus text: the engine's counters at this moment, and the HTTP requests so far."""
    state: ServerState = request.app.state.radixrt
    try:
        stats = await state.engine.astats()
    except RadixrtError:
        stats = None  # not there yet, or no more: radixrt_up says so, and the HTTP counters still count
    body, content_type = exposition(request.app.state.http_metrics, stats)
    return Response(body, headers={"Content-Type": content_type})


async def server_info(request: Request) -> Response:
    """What is being served, and how."""
    state: ServerState = request.app.state.radixrt
    info = state.engine.info
    return json_response(
        ServerInfo(
            version=radixrt.__version__,
            served_model_name=state.served_name or info.name,
            model=info,
            tier=(await state.engine.astats()).tier if callers.current().operator else None,
        )
    )


class AbortRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Exactly one of the two."""

    request_id: str | None = None
    """The `x-request-id` of the answer that is to end."""
    all: bool = False
    """Every running request: of the caller's namespace, or with an operator's key of all."""


class AbortAnswer(msgspec.Struct, frozen=True, kw_only=True):
    aborted: int


_ABORT = decoder(AbortRequest)


async def abort(request: Request) -> Response:
    """End running requests: each gets an error with code `aborted`, and what it held is free."""
    state: ServerState = request.app.state.radixrt
    body = await read_body(request, _ABORT, state.limits.body_bytes)
    if (body.request_id is None) != body.all:
        raise InvalidRequest("give request_id, or all: true", param="request_id")
    count = state.requests.abort(body.request_id, callers.current())
    if not count and not body.all:
        raise NotFound("no running request has this id", param="request_id", code="request_not_found")
    return json_response(AbortAnswer(aborted=count))


def _status(stage: Stage, code: int) -> Response:
    return Response(msgspec.json.encode(Status(stage)), code, media_type="application/json")
