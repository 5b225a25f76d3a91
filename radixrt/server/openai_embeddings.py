"""POST /v1/embeddings: texts or token ids into vectors of length 1."""

from __future__ import annotations

import base64
from typing import ClassVar, Literal, cast

import anyio.to_thread
import msgspec
from starlette.requests import Request
from starlette.responses import Response

from radixrt.embedding import Embeddings, TextLike
from radixrt.errors import InvalidRequest
from radixrt.server.body import decoder, read_body
from radixrt.server.native_types import Priority, TokenId
from radixrt.server.openai_shapes import encode
from radixrt.server.sse import cancelled_when_gone
from radixrt.server.state import ServerState

LARGE_ANSWER = 65_536
"""Numbers from which on an answer is written in a thread, so that other requests are not held up."""


class EmbeddingRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Body of POST /v1/embeddings. A field that is null counts as absent; one that is not here is refused."""

    ELSEWHERE: ClassVar[dict[str, str]] = {name: "use input" for name in ("prompt", "messages", "text")}

    input: str | list[str | TokenId | list[TokenId]]
    """A text, its token ids (used as they are, so with what stands around a text), or a list of either."""
    model: str | None = None
    dimensions: int | None = None
    """Only where the model's vectors may be cut."""
    encoding_format: Literal["float", "base64"] | None = None
    """base64: of a vector's little-endian float32 numbers."""
    user: str | None = None
    """Harmless: it changes no answer."""

    # vLLM's names.
    normalize: bool | None = None
    """False: pooled hidden states as they are."""
    truncate_prompt_tokens: Literal[-1] | None = None
    """-1: leave out the end of a text that is longer than the context; absent: it is refused."""
    priority: Priority | None = None
    cache_salt: str | None = None


class Embedding(msgspec.Struct, kw_only=True):
    index: int
    embedding: list[float] | str
    object: Literal["embedding"] = "embedding"


class EmbeddingUsage(msgspec.Struct, kw_only=True):
    prompt_tokens: int
    total_tokens: int


class EmbeddingList(msgspec.Struct, kw_only=True):
    data: list[Embedding]
    model: str
    usage: EmbeddingUsage
    object: Literal["list"] = "list"


_DECODER = decoder(EmbeddingRequest)


async def embeddings(request: Request) -> Response:
    """A vector of each text."""
    state: ServerState = request.app.state.radixrt
    body = await read_body(request, _DECODER, state.limits.body_bytes)
    engine = state.engine_for(body.model)
    _check_empty(body.input)
    async with cancelled_when_gone(request.receive):
        made = await engine.aembed(
            cast("TextLike | list[TextLike]", body.input),  # a list that mixes kinds is refused there
            dimensions=body.dimensions,
            normalize=body.normalize is not False,
            truncate=body.truncate_prompt_tokens is not None,
            cache_salt=body.cache_salt,
            priority=body.priority or 0,
        )
    name, as_text = state.served_name or engine.info.name, body.encoding_format == "base64"
    if sum(map(len, made)) > LARGE_ANSWER:
        return _response(await anyio.to_thread.run_sync(_written, made, name, as_text))
    return _response(_written(made, name, as_text))


def _check_empty(given: str | list[str | TokenId | list[TokenId]]) -> None:
    """As OpenAI does: no text may be empty."""
    empty = not given
    where = "input"
    if not empty and isinstance(given, list):
        first = next((index for index, item in enumerate(given) if item in ("", [])), None)
        empty, where = first is not None, f"input[{first}]"
    if empty:
        raise InvalidRequest(f"{where} must not be empty", param="input")


def _written(made: Embeddings, name: str, as_text: bool) -> bytes:
    data = [
        Embedding(
            index=index,
            embedding=base64.b64encode(vector.astype("<f4").tobytes()).decode() if as_text else vector.tolist(),
        )
        for index, vector in enumerate(made)
    ]
    count = made.usage.prompt_tokens
    usage = EmbeddingUsage(prompt_tokens=count, total_tokens=count)
    return encode(EmbeddingList(data=data, model=name, usage=usage))


def _response(body: bytes) -> Response:
    return Response(body, media_type="application/json")
