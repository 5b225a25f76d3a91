"""What is being served, put together from the checkpoint, the runner and the configuration."""

from __future__ import annotations

from typing import cast

from radixrt.checkpoint import Checkpoint, Pooling
from radixrt.config import SchedulerConfig
from radixrt.errors import StartupError
from radixrt.messages import RunnerReady
from radixrt.results import EmbeddingInfo, ModelInfo


def pooling_of(checkpoint: Checkpoint, asked: str) -> tuple[Pooling, str | None]:
    """How hidden states become a vector, and why the model has no such way that is known.

    `asked`: auto, or a kind of pooling, which then counts instead of what the files say. Where they say nothing, an
    encoder's is the mean, as in the sentence-transformers library, and a decoder's the last token, the only one that
    has read the whole text. StartupError where an encoder has no way, or a decoder shall pool its first token.
    """
    facts, encodes = checkpoint.embedding, checkpoint.encoder is not None
    if asked != "auto":
        pooling, fault = cast("Pooling", asked), None
    else:
        pooling, fault = facts.pooling or ("mean" if encodes else "last"), facts.fault
    if not encodes and pooling == "cls":
        why = "the first token of a decoder has read nothing but itself: pooling must be last or mean"
        if asked != "auto":
            raise StartupError(why, param="pooling")
        fault = why
    if encodes and fault is not None:
        raise StartupError(
            f"the model cannot embed: {fault}. --pooling mean, cls or last chooses for it", param="pooling"
        )
    return pooling, fault


def model_info(
    config: SchedulerConfig,
    ready: RunnerReady,
    checkpoint: Checkpoint,
    eos_token_ids: tuple[int, ...],
    context_length: int,
) -> ModelInfo:
    """What clients are told."""
    pooling, fault = pooling_of(checkpoint, config.pooling)
    return ModelInfo(
        name=config.model_name,
        context_length=context_length,
        kv_tokens=ready.kv_tokens,
        vocab_size=ready.vocab_size,
        dtype=ready.dtype,
        kv_dtype=ready.kv_dtype,
        device=ready.device,
        threads=ready.threads,
        description=ready.description,
        slow=ready.slow,
        eos_token_ids=eos_token_ids,
        has_chat_template=checkpoint.chat_template is not None,
        generates=checkpoint.generates,
        embedding=None
        if fault is not None
        else EmbeddingInfo(size=ready.embedding_size, pooling=pooling, sizes=checkpoint.embedding.sizes),
    )
