"""Ollama's embeddings: /api/embed, and the older /api/embeddings of one text. Vectors have length 1 in both."""

from __future__ import annotations

import time
from typing import ClassVar

import anyio.to_thread
import msgspec
from starlette.requests import Request
from starlette.responses import Response

from radixrt.embedding import Embeddings
from radixrt.server.body import decoder, read_body
from radixrt.server.ollama import engine_of
from radixrt.server.ollama_request import check_context
from radixrt.server.ollama_types import KeepAlive, Options
from radixrt.server.openai_embeddings import LARGE_ANSWER
from radixrt.server.openai_shapes import encode, json_response
from radixrt.server.sse import cancelled_when_gone
from radixrt.server.state import ServerState


class EmbedRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Body of POST /api/embed."""

    ELSEWHERE: ClassVar[dict[str, str]] = {"prompt": "it is for /api/embeddings; here it is the input"}

    model: str
    input: str | list[str] = ""
    """Empty: nothing is embedded, as when a client asks to load the model."""
    truncate: bool | None = None
    """Leave out the end of a text that is longer than the context (the default); false: refuse it."""
    dimensions: int | None = None
    options: Options | None = None
    """Taken and without effect, but for num_ctx, which may not pass the server's context."""
    keep_alive: KeepAlive = None


class EmbedAnswer(msgspec.Struct, kw_only=True):
    """Durations are nanoseconds."""

    model: str
    embeddings: list[list[float]]
    total_duration: int
    load_duration: int = 0
    prompt_eval_count: int = 0


class EmbeddingsRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Body of POST /api/embeddings."""

    ELSEWHERE: ClassVar[dict[str, str]] = {"input": "it is for /api/embed; here it is the prompt"}

    model: str
    prompt: str = ""
    options: Options | None = None
    keep_alive: KeepAlive = None


class EmbeddingsAnswer(msgspec.Struct, kw_only=True):
    embedding: list[float]


_EMBED = decoder(EmbedRequest)
_EMBEDDINGS = decoder(EmbeddingsRequest)


async def embed(request: Request) -> Response:
    """A vector of each text."""
    begun = time.monotonic_ns()
    state: ServerState = request.app.state.radixrt
    body = await read_body(request, _EMBED, state.limits.body_bytes)
    engine = engine_of(state, body.model)
    check_context(body.options, engine.info)
    if not body.input:
        return json_response(EmbedAnswer(model=body.model, embeddings=[], total_duration=time.monotonic_ns() - begun))
    async with cancelled_when_gone(request.receive):
        made = await engine.aembed(body.input, dimensions=body.dimensions, truncate=body.truncate is not False)
    if sum(map(len, made)) > LARGE_ANSWER:
        written = await anyio.to_thread.run_sync(_written, body.model, made, begun)
    else:
        written = _written(body.model, made, begun)
    return Response(written, media_type="application/json")


def _written(model: str, made: Embeddings, begun: int) -> bytes:
    return encode(
        EmbedAnswer(
            model=model,
            embeddings=[vector.tolist() for vector in made],
            total_duration=time.monotonic_ns() - begun,
            prompt_eval_count=made.usage.prompt_tokens,
        )
    )


async def embeddings(request: Request) -> Response:
    """The vector of one text."""
    state: ServerState = request.app.state.radixrt
    body = await read_body(request, _EMBEDDINGS, state.limits.body_bytes)
    engine = engine_of(state, body.model)
    check_context(body.options, engine.info)
    if not body.prompt:
        return json_response(EmbeddingsAnswer(embedding=[]))
    async with cancelled_when_gone(request.receive):
        made = await engine.aembed(body.prompt, truncate=True)
    return json_response(EmbeddingsAnswer(embedding=made[0].tolist()))
