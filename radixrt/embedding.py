"""Texts into vectors, as a caller asks for them: what may be given, and what is made of the answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from radixrt.errors import InvalidRequest
from radixrt.messages import Embedded, Prompt, TextPrompt, TokensPrompt
from radixrt.params import MAX_EMBED_TEXTS
from radixrt.prompts import token_array
from radixrt.results import EmbeddingInfo, ModelInfo, Usage

Vector: TypeAlias = NDArray[np.float32]
TextLike: TypeAlias = str | Sequence[int]
"""Text, or token ids, which are used as they are: nothing is put around them."""


class Embeddings(list[Vector]):
    """A vector a text, float32[d] each, in the order of the texts. `numpy.stack(embeddings)` is float32[n, d]."""

    def __init__(self, vectors: Sequence[Vector], usage: Usage) -> None:
        super().__init__(vectors)
        self.usage = usage
        """Of all texts together."""


def as_texts(texts: TextLike | Sequence[TextLike]) -> list[Prompt]:
    """One text or several as prompts. InvalidRequest (param `input`) for anything else, for none, and for too many."""
    if isinstance(texts, str):
        texts = [texts]
    if isinstance(texts, np.ndarray):
        texts = texts.tolist()
    if not isinstance(texts, Sequence) or isinstance(texts, bytes):
        raise InvalidRequest("input must be a text, token ids, or a list of either", param="input")
    if not texts:
        raise InvalidRequest("input must not be empty", param="input")
    if all(isinstance(item, int) and not isinstance(item, bool) for item in texts):
        return [_ids(texts)]
    if len(texts) > MAX_EMBED_TEXTS:
        raise InvalidRequest(f"input may hold at most {MAX_EMBED_TEXTS} texts, but holds {len(texts)}", param="input")
    return [TextPrompt(text=item) if isinstance(item, str) else _ids(item) for item in texts]


def _ids(item: object) -> TokensPrompt:
    if isinstance(item, np.ndarray):
        item = item.tolist()
    plain = isinstance(item, Sequence) and not isinstance(item, str | bytes)
    if not plain or not all(isinstance(token, int) and not isinstance(token, bool) for token in item):  # type: ignore[attr-defined]
        raise InvalidRequest("input must be a text, token ids, or a list of either", param="input")
    if not item:
        raise InvalidRequest("a text of token ids must hold at least one", param="input")
    return TokensPrompt(ids=token_array(item, "input"))  # type: ignore[arg-type]


def check_size(dimensions: int | None, info: ModelInfo) -> EmbeddingInfo:
    """What the model embeds with. InvalidRequest where it does not, or where its vectors cannot be that short."""
    facts = info.embedding
    if facts is None:
        raise InvalidRequest(
            "the served model makes no embeddings: its files name a way to them that is not supported "
            "(--pooling chooses one)",
            param="model",
            code="embeddings_unavailable",
        )
    if dimensions is None or dimensions == facts.size:
        return facts
    if isinstance(dimensions, bool) or not isinstance(dimensions, int) or not 1 <= dimensions <= facts.size:
        raise InvalidRequest(f"dimensions must be between 1 and {facts.size}", param="dimensions")
    if facts.sizes is None:
        raise InvalidRequest(
            f"this model's vectors have {facts.size} dimensions and lose their meaning when they are cut: leave out "
            "dimensions",
            param="dimensions",
            code="unsupported_parameter",
        )
    if facts.sizes and dimensions not in facts.sizes:
        sizes = ", ".join(map(str, facts.sizes))
        raise InvalidRequest(f"this model's vectors may be cut to {sizes} dimensions", param="dimensions")
    return facts


def embeddings(answers: Sequence[Embedded], *, dimensions: int | None, normalize: bool) -> Embeddings:
    """All answers' vectors, cut to `dimensions`, and of Euclidean length 1 where `normalize`."""
    whole = np.concatenate([answer.vectors for answer in answers]).astype(np.float32)
    if dimensions is not None:
        whole = whole[:, :dimensions]
    if normalize:
        lengths = np.sqrt(np.square(whole, dtype=np.float64).sum(1, keepdims=True))
        whole = (whole / np.maximum(lengths, 1e-12)).astype(np.float32)
    return Embeddings(list(whole), usage_of([answer.usage for answer in answers]))


def usage_of(parts: Sequence[Usage]) -> Usage:
    """Tokens of all parts together; times of the one that took longest, for they run side by side."""
    return Usage(
        prompt_tokens=sum(part.prompt_tokens for part in parts),
        cached_tokens=sum(part.cached_tokens for part in parts),
        restored_tokens=sum(part.restored_tokens for part in parts),
        queue_s=max(part.queue_s for part in parts),
        ttft_s=max(part.ttft_s for part in parts),
        total_s=max(part.total_s for part in parts),
    )
