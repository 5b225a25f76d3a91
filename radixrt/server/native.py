"""The native protocol: the client API (`radixrt.backend`) over HTTP, typed on both ends."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence

from starlette.requests import Request
from starlette.responses import Response

from radixrt.errors import InvalidRequest
from radixrt.messages import Prompt
from radixrt.params import Constraint
from radixrt.prompts import as_prompt
from radixrt.results import ModelInfo
from radixrt.server.body import decoder, read_body
from radixrt.server.native_types import (
    Decoded,
    DecodeRequest,
    EncodeRequest,
    GenerateRequest,
    ScoreRequest,
    to_json,
)
from radixrt.server.sse import EventStream, cancelled_when_gone, event
from radixrt.server.state import ServerState, ServingEngine
from radixrt.server.streams import open_stream

_GENERATE = decoder(GenerateRequest)
_SCORE = decoder(ScoreRequest)
_ENCODE = decoder(EncodeRequest)
_DECODE = decoder(DecodeRequest)


async def generate(request: Request) -> Response:
    """Generate: a Generation, or a stream of Deltas."""
    state: ServerState = request.app.state.radixrt
    body = await read_body(request, _GENERATE, state.limits.body_bytes)
    check_timeout(body.timeout_s)
    engine, prompt = state.engine, as_prompt(body.prompt)
    check_constraint(body.constraint, engine.info, "constraint")
    if body.stream:
        return await EventStream.open(request, _deltas(engine, prompt, body))
    async with cancelled_when_gone(request.receive):
        generation = await engine.agenerate(
            prompt,
            body.sampling,
            constraint=body.constraint,
            cache_salt=body.cache_salt,
            priority=body.priority,
            timeout=body.timeout_s,
        )
    return json_answer(generation)


async def _deltas(engine: ServingEngine, prompt: Prompt, body: GenerateRequest) -> AsyncGenerator[bytes, None]:
    stream = open_stream(
        engine, prompt, body.sampling, body.constraint, body.cache_salt, body.priority, body.timeout_s
    )  # fmt: skip
    try:
        async for delta in stream:
            yield event(to_json(delta))
    finally:
        await stream.aclose()


def check_constraint(constraint: Constraint | None, info: ModelInfo, param: str) -> None:
    """Of all control tokens a client may allow those with which the model writes its calls (programs with tools do)."""
    for text in constraint.controls if constraint is not None else ():
        if text not in info.tool_controls:
            allowed = ", ".join(info.tool_controls) or "none"
            raise InvalidRequest(
                f"{param}.controls holds {text[:40]!r}; of this model's control tokens it may hold {allowed}",
                param=f"{param}.controls",
            )


async def score(request: Request) -> Response:
    """Log-probabilities of options as continuations of a prompt."""
    state: ServerState = request.app.state.radixrt
    body = await read_body(request, _SCORE, state.limits.body_bytes)
    check_timeout(body.timeout_s)
    check_count(body.options, state)
    engine, prompt = state.engine, as_prompt(body.prompt)
    async with cancelled_when_gone(request.receive):
        scores = await engine.ascore(
            prompt,
            body.options,
            cache_salt=body.cache_salt,
            priority=body.priority,
            timeout=body.timeout_s,
        )
    return json_answer(scores)


async def encode(request: Request) -> Response:
    """The tokens of a prompt, with their exact bytes."""
    state: ServerState = request.app.state.radixrt
    body = await read_body(request, _ENCODE, state.limits.body_bytes)
    return json_answer(await state.engine.atokenize(as_prompt(body.prompt)))


async def decode(request: Request) -> Response:
    """The text of token ids."""
    state: ServerState = request.app.state.radixrt
    body = await read_body(request, _DECODE, state.limits.body_bytes)
    text = await state.engine.adetokenize(body.ids, skip_special_tokens=body.skip_special_tokens)
    return json_answer(Decoded(text=text))


def check_count(options: Sequence[object], state: ServerState) -> None:
    if len(options) > state.limits.options:
        raise InvalidRequest(
            f"options may hold at most {state.limits.options} entries, but holds {len(options)}", param="options"
        )


def check_timeout(timeout_s: float | None) -> None:
    if timeout_s is not None and not timeout_s > 0:
        raise InvalidRequest(f"timeout_s must be a number of seconds above 0, but is {timeout_s:g}", param="timeout_s")


def json_answer(value: object) -> Response:
    return Response(to_json(value), media_type="application/json")
