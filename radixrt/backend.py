"""The client API: what an Engine and a Client both offer, and all that a program (`radixrt.lang`) knows of either."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Protocol, runtime_checkable

import msgspec

from radixrt.params import ChoicesMethod, Constraint, SamplingParams
from radixrt.prompts import PromptLike
from radixrt.results import Delta, Generation, ModelInfo, Pin, Scores, Selection


class Tokens(msgspec.Struct, frozen=True, kw_only=True):
    """A tokenized prompt: its ids, its rendered text, and the exact bytes of each token (joined: the text)."""

    ids: tuple[int, ...]
    text: str
    pieces: tuple[bytes, ...]


@runtime_checkable
class Backend(Protocol):
    """Synchronous calls and their async twins (an `a` in front), safe to use from any thread or event loop.

    All raise a subclass of RadixrtError; `timeout` is in seconds and raises Aborted after the request was cancelled.
    Leaving a stream before its end (closing the iterator) cancels the request.
    """

    @property
    def info(self) -> ModelInfo: ...

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
        """What the model writes behind the prompt.

        Args:
            prompt: text, token ids, or chat messages (see `radixrt.prompts`).
            sampling_params: how tokens are chosen, how many, and what ends them.
            constraint: what the text must be: JSON of a schema, a regex, a grammar, one of some choices.
            cache_salt: cached prefixes are shared only with requests of the same salt.
            priority: the lower number goes first among waiting requests.
            timeout: seconds.
        """
        ...

    def stream(
        self,
        prompt: PromptLike,
        sampling_params: SamplingParams | None = None,
        *,
        constraint: Constraint | None = None,
        cache_salt: str | None = None,
        priority: int = 0,
        timeout: float | None = None,
    ) -> Iterator[Delta]:
        """The same in pieces, as they come."""
        ...

    async def agenerate(
        self,
        prompt: PromptLike,
        sampling_params: SamplingParams | None = None,
        *,
        constraint: Constraint | None = None,
        cache_salt: str | None = None,
        priority: int = 0,
        timeout: float | None = None,
    ) -> Generation: ...

    def astream(
        self,
        prompt: PromptLike,
        sampling_params: SamplingParams | None = None,
        *,
        constraint: Constraint | None = None,
        cache_salt: str | None = None,
        priority: int = 0,
        timeout: float | None = None,
    ) -> AsyncIterator[Delta]: ...

    def tokenize(self, prompt: PromptLike) -> Tokens:
        """The ids that a prompt becomes, and what each of them stands for."""
        ...

    async def atokenize(self, prompt: PromptLike) -> Tokens: ...

    def detokenize(self, ids: Sequence[int], *, skip_special_tokens: bool = False) -> str: ...

    async def adetokenize(self, ids: Sequence[int], *, skip_special_tokens: bool = False) -> str: ...

    def score(
        self,
        prompt: PromptLike,
        options: Sequence[Sequence[int]],
        *,
        cache_salt: str | None = None,
        priority: int = 0,
        timeout: float | None = None,
    ) -> Scores:
        """Log-probability of each token of each option (token ids) as the continuation of the prompt."""
        ...

    async def ascore(
        self,
        prompt: PromptLike,
        options: Sequence[Sequence[int]],
        *,
        cache_salt: str | None = None,
        priority: int = 0,
        timeout: float | None = None,
    ) -> Scores: ...

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
        """The best of some options as what the prompt goes on with: one request, one step where it fits.

        Args:
            options: texts, or token ids.
            method: how they are compared (see `radixrt.choosing`).
            text: stands between prompt and options, and is tokenized together with each text option, as the text of
                a prompt that is text is.
            begins_turn: nothing but `text` stands in the turn, so that each option is scored with and without a
                leading space; a chat prompt that ends with the generation prompt says so itself.
            return_cache_report: `usage.cache` says what the prefix tree had of the prompt, and why not more.
        """
        ...

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
    ) -> Selection: ...

    def pin(
        self,
        prompt: PromptLike,
        ttl: float,
        *,
        cache_salt: str | None = None,
        priority: int = 0,
        timeout: float | None = None,
    ) -> Pin:
        """Compute the prompt, as far as it is not cached, and keep it cached for `ttl` seconds.

        Pinning the same prompt again prolongs the pin. Kept against other cached text, not against a request that could
        not run otherwise: then pins give way, the soonest to expire first. InvalidRequest with code `pin_quota` when
        more would be pinned than may be.
        """
        ...

    async def apin(
        self,
        prompt: PromptLike,
        ttl: float,
        *,
        cache_salt: str | None = None,
        priority: int = 0,
        timeout: float | None = None,
    ) -> Pin: ...

    def unpin(self, pin: Pin | str, *, cache_salt: str | None = None) -> Pin:
        """End a pin (or the pin of that id) before its time; the text stays cached as any other. NotFound where there
        is none any more."""
        ...

    async def aunpin(self, pin: Pin | str, *, cache_salt: str | None = None) -> Pin: ...
