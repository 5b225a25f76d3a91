"""The lexer states that all matchers of one grammar share in llguidance, and a fresh store where they are used up.

Copies of a matcher build states together, and together they may build so many; once these are used up no copy goes on,
nor does one that is made from then on. So a row that has not used them up alone begins again over a fresh store, where
it takes the tokens that it has once more, and whoever comes later begins there too. What a row costs stays bounded: by
the same number of states, and by `Limits.max_row_s`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from llguidance import LLMatcher

USED_UP = "lexer error"
"""How the library's words begin then: "too many states", "too many expressions constructed"."""

WASTE_S = 0.05
"""CPU seconds of fresh stores that were used up at once, after which the rows there are get no more of them: a request
may have many rows, and all of a hostile one's would try."""


@dataclass(eq=False)
class Store:
    """A matcher before its first token, whose copies share its states."""

    start: LLMatcher
    rows: int = 0
    """How many have begun on it, or moved to it."""

    def behind(self, tokens: Sequence[int]) -> LLMatcher | None:
        """A copy that has taken the tokens; None where the states do not suffice for them."""
        inner = self.start.deep_copy()
        return inner if inner.try_consume_tokens(list(tokens)) == len(tokens) else None


class Stores:
    """The store that rows of one grammar begin on. Any thread may ask."""

    def __init__(self, start: LLMatcher, make: Callable[[], LLMatcher] | None) -> None:
        """`make`: another matcher like `start`; None where that costs too much to be done while others wait."""
        self._make = make
        self._lock = threading.Lock()
        self._current = Store(start)
        self._wasted_s = 0.0

    def begin(self) -> Store:
        """For one more row."""
        with self._lock:
            self._wasted_s = 0.0
            self._current.rows += 1
            return self._current

    def others(self, used_up: Store) -> Iterator[Store]:
        """Where a row may go on whose store is used up: where others begin by now, then on a fresh one of its own."""
        with self._lock:
            current, alone = self._current, used_up is self._current and used_up.rows < 2
            may = not alone and self._wasted_s < WASTE_S
        if current is not used_up:
            yield current
        if may and self._make is not None:
            begun = time.thread_time()
            yield Store(self._make())
            with self._lock:
                self._wasted_s += time.thread_time() - begun

    def moved(self, store: Store) -> None:
        """A row goes on there, and new ones begin there."""
        with self._lock:
            store.rows += 1
            self._current = store
