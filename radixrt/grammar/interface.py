"""What a back end offers: a compiled `Grammar`, and a `Matcher` that follows one row through it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

Bitmask: TypeAlias = NDArray[np.int32]
"""int32[rows, ceil(V / 32)]; bit i of word w (little-endian) set: token 32 * w + i is allowed."""


class Matcher(Protocol):
    """The state of one row. Not safe to share between threads.

    Invariant, for every token t: `accept(t)` succeeds exactly where `fill` sets the bit of t.
    """

    @property
    def may_stop(self) -> bool:
        """The text so far is complete: end tokens are allowed now."""
        ...

    @property
    def must_stop(self) -> bool:
        """The text so far is complete and nothing can follow: end the row without sampling an end token.

        False does not promise that more can follow; `fill` then allows end tokens alone.
        """
        ...

    def fill(self, bitmask: Bitmask, row: int) -> None:
        """Overwrite row `row` of `bitmask` with the tokens that may come next.

        Raises GrammarDeadEnd when there is none, MatcherFailed when the back end gives up; the row is then all zero.
        """
        ...

    def accept(self, token: int, *, guessed: bool = False) -> None:
        """Go one token further. An end token is taken where `may_stop`; nothing can follow it.

        `guessed`: no mask allowed the token, so that a refusal is nothing to look into.

        Raises TokenRefused (state unchanged) or MatcherFailed (the matcher is dead and says so on every later call).
        """
        ...

    def rollback(self, n: int) -> None:
        """Take back the last n accepted tokens. ValueError when there are fewer."""
        ...

    def fork(self) -> Matcher:
        """An independent matcher in the same state."""
        ...

    def required(self) -> int | None:
        """The token that alone is allowed here, where that is known without a look at the mask; an end token never is.

        None says nothing. `fill` then sets one bit, so that nothing need be sampled here.
        """
        ...

    def forced(self) -> list[int]:
        """Tokens that the grammar forces next, in order; none where there is a choice. A hint: `fill` decides."""
        ...


class Grammar(Protocol):
    """A compiled constraint; shared by all rows of the process that use it."""

    @property
    def source_bytes(self) -> int:
        """Size of what it was compiled from, in bytes."""
        ...

    @property
    def backend(self) -> str:
        """Name of the library that enforces it."""
        ...

    @property
    def ignored(self) -> tuple[str, ...]:
        """JSON pointers to the keywords that are not enforced; only with `lax`."""
        ...

    @property
    def added(self) -> tuple[str, ...]:
        """JSON pointers to the keywords that are enforced by being said in other words."""
        ...

    @property
    def passed(self) -> tuple[str, ...]:
        """Of each back end that was asked before and refused: `name: why`."""
        ...

    @property
    def grown_bytes(self) -> int:
        """About what its rows have made it hold since it was compiled."""
        ...

    def matcher(self, end_ids: Sequence[int] = (), *, any_spelling: bool = False) -> Matcher:
        """A matcher at the start of the text.

        Where JSON text is certain, the matcher allows only the tokens that the tokenizer itself would write for it (the
        model's own spelling, and the one that a later prompt with the same text has); with `any_spelling` all that
        spell it.

        `end_ids` are end tokens of this request alone (its stop_token_ids), beside the model's own: they too are
        allowed only where the text may stop, and never as text.
        """
        ...
