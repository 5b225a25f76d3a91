"""The calls of the client API as values: what `ClientApi` makes of a call, and what an engine or a server is asked.

They hold what the caller gave, in the order of the methods' parameters; who answers one checks it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from radixrt.backend import Tokens
from radixrt.embedding import Embeddings, TextLike
from radixrt.params import ChoicesMethod, Constraint, SamplingParams
from radixrt.prompts import PromptLike
from radixrt.results import CacheView, Generation, Pin, Scores, Selection

Answer = TypeVar("Answer")


class Call(Generic[Answer]):
    """One call; `Answer` is what it returns."""


@dataclass(frozen=True)
class GenerateCall(Call[Generation]):
    """`generate`, and `stream`, which gets the same in pieces."""

    prompt: PromptLike
    sampling: SamplingParams | None
    constraint: Constraint | None
    cache_salt: str | None
    priority: int
    timeout: float | None


@dataclass(frozen=True)
class ScoreCall(Call[Scores]):
    prompt: PromptLike
    options: Sequence[Sequence[int]]
    cache_salt: str | None
    priority: int
    timeout: float | None


@dataclass(frozen=True)
class SelectCall(Call[Selection]):
    prompt: PromptLike
    options: Sequence[str] | Sequence[Sequence[int]]
    method: ChoicesMethod
    text: str
    begins_turn: bool
    return_cache_report: bool
    cache_salt: str | None
    priority: int
    timeout: float | None


@dataclass(frozen=True)
class EmbedCall(Call[Embeddings]):
    texts: TextLike | Sequence[TextLike]
    dimensions: int | None
    normalize: bool
    truncate: bool
    cache_salt: str | None
    priority: int
    timeout: float | None


@dataclass(frozen=True)
class PinCall(Call[Pin]):
    prompt: PromptLike
    ttl: float
    cache_salt: str | None
    priority: int
    timeout: float | None


@dataclass(frozen=True)
class UnpinCall(Call[Pin]):
    pin: Pin | str
    cache_salt: str | None


@dataclass(frozen=True)
class CacheCall(Call[CacheView]):
    cache_salt: str | None


@dataclass(frozen=True)
class TokenizeCall(Call[Tokens]):
    prompt: PromptLike


@dataclass(frozen=True)
class DetokenizeCall(Call[str]):
    ids: Sequence[int]
    skip_special_tokens: bool
