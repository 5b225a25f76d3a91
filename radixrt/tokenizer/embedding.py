"""Texts to be embedded -> token ids, and what a model that does nothing else answers to the rest."""

from __future__ import annotations

import numpy as np

from radixrt.errors import InvalidRequest, RadixrtError
from radixrt.messages import Embed, EnqueueEmbed, Namespace
from radixrt.params import EMBED_BATCH
from radixrt.tokenizer.encode import PromptEncoder
from radixrt.tokenizer.requests import Open


def to_embed(
    message: Embed, encoder: PromptEncoder, number: int, peer: bytes, model_name: str
) -> tuple[Open, EnqueueEmbed]:
    """The open request of an Embed, and what the scheduler is told. A RadixrtError names the text at fault."""
    if not 1 <= len(message.prompts) <= EMBED_BATCH:
        raise InvalidRequest(f"a message holds 1 to {EMBED_BATCH} texts, not {len(message.prompts)}", param="input")
    texts: list[list[int]] = []
    for index, prompt in enumerate(message.prompts, message.first):
        try:
            texts.append(encoder.text_to_embed(prompt, truncate=message.truncate))
        except InvalidRequest as error:
            raise type(error)(f"input {index}: {error.message}", param="input", code=error.code) from error
    enqueue = EnqueueEmbed(
        request_id=number,
        ids=np.concatenate([np.asarray(ids, dtype=np.int32) for ids in texts]),
        lengths=np.array([len(ids) for ids in texts], dtype=np.int32),
        first=message.first,
        namespace=Namespace(model=model_name, tenant=message.tenant, salt=message.cache_salt),
        priority=message.priority,
    )
    return Open(id=number, peer=peer, client_id=message.request_id), enqueue


def embeddings_alone() -> RadixrtError:
    return InvalidRequest(
        "the served model makes embeddings and generates no text: use /v1/embeddings (engine.embed), or serve a model "
        "that generates",
        param="model",
        code="model_cannot_generate",
    )
