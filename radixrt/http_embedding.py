"""Embeddings over HTTP, for `radixrt.Client`: what is sent to /v1/embeddings, and the vectors in its answer."""

from __future__ import annotations

import base64
from typing import Any

import msgspec
import numpy as np

from radixrt.client_calls import EmbedCall
from radixrt.embedding import Embeddings, as_texts
from radixrt.errors import InvalidRequest, RadixrtError
from radixrt.messages import TextPrompt, TokensPrompt
from radixrt.results import Usage


class _Embedding(msgspec.Struct):
    embedding: str


class _Usage(msgspec.Struct):
    prompt_tokens: int


class EmbeddingAnswer(msgspec.Struct):
    """What of the answer counts here; vectors are base64 of little-endian float32."""

    data: list[_Embedding]
    usage: _Usage


def embed_body(call: EmbedCall) -> dict[str, Any]:
    """The request's body. InvalidRequest for what is no text."""
    return {
        "input": [_plain(prompt) for prompt in as_texts(call.texts)],
        "dimensions": call.dimensions,
        "normalize": call.normalize,
        "truncate_prompt_tokens": -1 if call.truncate else None,
        "cache_salt": call.cache_salt,
        "priority": call.priority,
        "encoding_format": "base64",
    }


def _plain(prompt: object) -> str | list[int]:
    if isinstance(prompt, TextPrompt):
        if prompt.parse_special or not prompt.add_special_tokens:
            raise InvalidRequest("a text is embedded over HTTP as it is: give token ids instead", param="texts")
        return prompt.text
    if isinstance(prompt, TokensPrompt):
        ids: list[int] = prompt.ids.tolist()
        return ids
    raise TypeError(f"a {type(prompt).__name__} is no text")


def embeddings_of(answer: EmbeddingAnswer) -> Embeddings:
    """The vectors. RadixrtError where they are not what the server promises."""
    try:
        vectors = [np.frombuffer(base64.b64decode(item.embedding), dtype="<f4") for item in answer.data]
    except ValueError as error:
        raise RadixrtError(f"the server's vectors cannot be read: {error}", code="bad_answer") from error
    return Embeddings(vectors, Usage(prompt_tokens=answer.usage.prompt_tokens))
