"""The methods that an Engine and a Client share: each makes a value of the call and has it answered."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Generic, TypeVar

from radixrt.backend import Backend, Tokens
from radixrt.client_calls import (
    CacheCall,
    Call,
    DetokenizeCall,
    EmbedCall,
    GenerateCall,
    PinCall,
    ScoreCall,
    SelectCall,
    TokenizeCall,
    UnpinCall,
)
from radixrt.embedding import Embeddings, TextLike
from radixrt.params import ChoicesMethod, Constraint, SamplingParams
from radixrt.prompts import PromptLike
from radixrt.results import CacheView, Delta, Generation, Pin, Scores, Selection

Answer = TypeVar("Answer")
Stream = TypeVar("Stream", bound=Iterator[Delta], covariant=True)
AsyncStream = TypeVar("AsyncStream", bound=AsyncIterator[Delta], covariant=True)


class ClientApi(Backend, Generic[Stream, AsyncStream]):
    """A Backend (see `radixrt.backend`, which says what each call does) for whoever can answer calls as values.

    `Stream` and `AsyncStream`: what its streams are, beside iterators of Delta.
    """

    # --- how calls are answered -------------------------------------------------------------------------------------

    @abstractmethod
    def _answer(self, call: Call[Answer]) -> Answer: ...

    @abstractmethod
    async def _aanswer(self, call: Call[Answer]) -> Answer: ...

    @abstractmethod
    def _stream(self, call: GenerateCall) -> Stream: ...

    @abstractmethod
    def _astream(self, call: GenerateCall) -> AsyncStream: ...

    # --- generation -------------------------------------------------------------------------------------------------

    def generate(
        self,
        prompt: PromptLike,
        sampling_params: SamplingParams | None = None,
        *,
        constraint: Constraint | None = None,
        cache_salt: str | None = None,
        priority: int = 0,
        timeout: float | None = None,
    ) -> Generation:
        return self._answer(GenerateCall(prompt, sampling_params, constraint, cache_salt, priority, timeout))

    async def agenerate(
        self,
        prompt: PromptLike,
        sampling_params: SamplingParams | None = None,
        *,
        constraint: Constraint | None = None,
        cache_salt: str | None = None,
        priority: int = 0,
        timeout: float | None = None,
    ) -> Generation:
        return await self._aanswer(GenerateCall(prompt, sampling_params, constraint, cache_salt, priority, timeout))

    def stream(
        self,
        prompt: PromptLike,
        sampling_params: SamplingParams | None = None,
        *,
        constraint: Constraint | None = None,
        cache_salt: str | None = None,
        priority: int = 0,
        timeout: float | None = None,
    ) -> Stream:
        return self._stream(GenerateCall(prompt, sampling_params, constraint, cache_salt, priority, timeout))

    def astream(
        self,
        prompt: PromptLike,
        sampling_params: SamplingParams | None = None,
        *,
        constraint: Constraint | None = None,
        cache_salt: str | None = None,
        priority: int = 0,
        timeout: float | None = None,
    ) -> AsyncStream:
        return self._astream(GenerateCall(prompt, sampling_params, constraint, cache_salt, priority, timeout))

    # --- text and tokens --------------------------------------------------------------------------------------------

    def tokenize(self, prompt: PromptLike) -> Tokens:
        return self._answer(TokenizeCall(prompt))

    async def atokenize(self, prompt: PromptLike) -> Tokens:
        return await self._aanswer(TokenizeCall(prompt))

    def detokenize(self, ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        return self._answer(DetokenizeCall(ids, skip_special_tokens))

    async def adetokenize(self, ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        return await self._aanswer(DetokenizeCall(ids, skip_special_tokens))

    # --- options ----------------------------------------------------------------------------------------------------

    def score(
        self,
        prompt: PromptLike,
        options: Sequence[Sequence[int]],
        *,
        cache_salt: str | None = None,
        priority: int = 0,
        timeout: float | None = None,
    ) -> Scores:
        return self._answer(ScoreCall(prompt, options, cache_salt, priority, timeout))

    async def ascore(
        self,
        prompt: PromptLike,
        options: Sequence[Sequence[int]],
        *,
        cache_salt: str | None = None,
        priority: int = 0,
        timeout: float | None = None,
    ) -> Scores:
        return await self._aanswer(ScoreCall(prompt, options, cache_salt, priority, timeout))

    def select(
        self,
        prompt: PromptLike,
        options: Sequence[str] | Sequence[Sequence[int]],
        *,
        method: ChoicesMethod = "token_length_normalized",
        text: str = "",
        begins_turn: bool = False,
        return_cache_report: bool = False,
        cache_salt: str | None = None,
        priority: int = 0,
        timeout: float | None = None,
    ) -> Selection:
        return self._answer(
            SelectCall(prompt, options, method, text, begins_turn, return_cache_report, cache_salt, priority, timeout)
        )

    async def aselect(
        self,
        prompt: PromptLike,
        options: Sequence[str] | Sequence[Sequence[int]],
        *,
        method: ChoicesMethod = "token_length_normalized",
        text: str = "",
        begins_turn: bool = False,
        return_cache_report: bool = False,
        cache_salt: str | None = None,
        priority: int = 0,
        timeout: float | None = None,
    ) -> Selection:
        return await self._aanswer(
            SelectCall(prompt, options, method, text, begins_turn, return_cache_report, cache_salt, priority, timeout)
        )

    # --- embeddings -------------------------------------------------------------------------------------------------

    def embed(
        self,
        texts: TextLike | Sequence[TextLike],
        *,
        dimensions: int | None = None,
        normalize: bool = True,
        truncate: bool = False,
        cache_salt: str | None = None,
        priority: int = 0,
        timeout: float | None = None,
    ) -> Embeddings:
        """A vector of each text: a list of float32[d] arrays, with `usage` beside it.

        Args:
            texts: one text, or token ids, or a list of either (2048 at most). Token ids are used as they are.
            dimensions: cut the vectors to so many numbers; only where the model was trained for that
                (`info.embedding.sizes`).
            normalize: bring each vector to Euclidean length 1, after the cut; else pooled hidden states as they are.
            truncate: leave out the end of a text that is longer than `info.context_length` tokens; else it is refused.

        How hidden states are pooled is `info.embedding.pooling`. Raises InvalidRequest (param `input`, `dimensions`).
        """
        return self._answer(EmbedCall(texts, dimensions, normalize, truncate, cache_salt, priority, timeout))

    async def aembed(
        self,
        texts: TextLike | Sequence[TextLike],
        *,
        dimensions: int | None = None,
        normalize: bool = True,
        truncate: bool = False,
        cache_salt: str | None = None,
        priority: int = 0,
        timeout: float | None = None,
    ) -> Embeddings:
        return await self._aanswer(EmbedCall(texts, dimensions, normalize, truncate, cache_salt, priority, timeout))

    # --- the cache --------------------------------------------------------------------------------------------------

    def pin(
        self,
        prompt: PromptLike,
        ttl: float,
        *,
        cache_salt: str | None = None,
        priority: int = 0,
        timeout: float | None = None,
    ) -> Pin:
        return self._answer(PinCall(prompt, ttl, cache_salt, priority, timeout))

    async def apin(
        self,
        prompt: PromptLike,
        ttl: float,
        *,
        cache_salt: str | None = None,
        priority: int = 0,
        timeout: float | None = None,
    ) -> Pin:
        return await self._aanswer(PinCall(prompt, ttl, cache_salt, priority, timeout))

    def unpin(self, pin: Pin | str, *, cache_salt: str | None = None) -> Pin:
        return self._answer(UnpinCall(pin, cache_salt))

    async def aunpin(self, pin: Pin | str, *, cache_salt: str | None = None) -> Pin:
        return await self._aanswer(UnpinCall(pin, cache_salt))

    def cache(self, *, cache_salt: str | None = None) -> CacheView:
        """The prefix tree with its pins and totals, as far as it is of this tenant (the key's) and salt."""
        return self._answer(CacheCall(cache_salt))

    async def acache(self, *, cache_salt: str | None = None) -> CacheView:
        return await self._aanswer(CacheCall(cache_salt))
