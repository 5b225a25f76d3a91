"""llguidance's matcher as the steps of a row. It never raises: every call is followed by a look at its error."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from radixrt.grammar.stores import USED_UP, Store, Stores
from radixrt.grammar.tables import Bits, words
from radixrt.grammar.token_matcher import DEAD_END
from radixrt.grammar.wording import first_words

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

_CONTEXT = 8
"""Tokens before forced text that its tokenization may depend on."""


class LlguidanceSteps:
    """The library's matcher; see `token_matcher.Steps`."""

    def __init__(
        self, tokenizer: LLTokenizer, stores: Stores, store: Store, inner: LLMatcher, tokens: Sequence[int] = ()
    ) -> None:
        self._tokenizer = tokenizer
        self._stores = stores
        self._store = store
        self._inner = inner
        self._tokens = list(tokens)
        """What it has taken."""

    @classmethod
    def at_start(cls, tokenizer: LLTokenizer, stores: Stores) -> LlguidanceSteps:
        store = stores.begin()
        return cls(tokenizer, stores, store, store.start.deep_copy())

    @property
    def failure(self) -> str | None:
        if not self._inner.is_error():
            return None
        words = first_words(self._inner.get_error())
        return DEAD_END if words.startswith("NoExtension") else words

    def fill(self, mask: Bits) -> None:
        self._try(lambda inner: inner.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes))

    def _try(self, ask: Callable[[LLMatcher], object]) -> None:
        """Ask the matcher, and where the states are used up that it shares one over another store."""
        ask(self._inner)
        if not self._inner.is_error() or not self._inner.get_error().startswith(USED_UP):
            return
        for store in self._stores.others(self._store):
            inner = store.behind(self._tokens)
            if inner is not None:
                ask(inner)
                if not inner.is_error():
                    self._inner, self._store = inner, store
                    self._stores.moved(store)
                    return

    def accept(self, token: int) -> bool:
        taken: bool = self._inner.try_consume_tokens([token]) == 1
        if taken:
            self._tokens.append(token)
        return taken

    def accepting(self) -> bool:
        return bool(self._inner.is_accepting())

    def stopped(self) -> bool:
        return bool(self._inner.is_stopped())

    def rollback(self, n: int) -> None:
        self._inner.rollback(n)
        del self._tokens[len(self._tokens) - n :]

    def copy(self) -> LlguidanceSteps:
        if not self._tokens:
            return LlguidanceSteps.at_start(self._tokenizer, self._stores)
        return LlguidanceSteps(self._tokenizer, self._stores, self._store, self._inner.deep_copy(), self._tokens)

    def forced(self, before: Sequence[int]) -> Sequence[int]:
        found: list[bytes] = []
        self._try(lambda inner: found.append(bytes(inner.compute_ff_bytes())))
        text = found[-1]
        if self._inner.is_error():
            return []
        # The last bytes may belong to a token that goes on beyond what is forced: those are left to the model.
        tokens, _ = self._tokenizer.tokenize_partial(text, list(before[-_CONTEXT:]))
        return tokens[: self._inner.validate_tokens(tokens)] or self._last(text)

    def _last(self, text: bytes) -> list[int]:
        """How the tokenizer goes on with certain text that no token may go beyond, so that none can join it to what
        follows (`":"` before a string). The mask tells; few tokens are possible here, so it costs little."""
        if not text or self._inner.is_accepting():
            return []
        mask = np.zeros(words(self._tokenizer.vocab_size), dtype=np.int32)
        self._inner.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
        filled = np.flatnonzero(mask)
        if self._inner.is_error() or len(filled) > len(text):  # the beginnings of a text are as many as its bytes
            return []
        bits = zip(filled.tolist(), mask.view(np.uint32)[filled].tolist(), strict=True)
        allowed = [32 * word + i for word, set_ in bits for i in range(32) if set_ >> i & 1]
        if any(len(text) < len(self._tokenizer.decode_bytes([token])) for token in allowed):
            return []
        first = self._tokenizer.tokenize_bytes(text)[:1]
        return first if first and first[0] in allowed else []
