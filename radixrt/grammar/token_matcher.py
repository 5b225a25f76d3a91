"""One row's state over any back end: end tokens, budgets and errors are here, the language is in the `Steps`.

End tokens are kept out of the libraries: not all of them take an end token back, or know those of one request.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from itertools import takewhile
from typing import Protocol, Self

import numpy as np

from radixrt.grammar.errors import GrammarDeadEnd, MatcherFailed, TokenRefused, TooComplex
from radixrt.grammar.interface import Bitmask
from radixrt.grammar.limits import Limits
from radixrt.grammar.tables import Bits, Ends, Tables, bit, words
from radixrt.grammar.wording import GAVE_UP, TOO_MANY_WAYS, running_words

DEAD_END = "no token can follow within the constraint: it leaves no way to complete the text so far"


class Steps(Protocol):
    """A back end's own state. It never raises; what went wrong for good is in `failure`."""

    @property
    def failure(self) -> str | None:
        """Why the back end gave up; DEAD_END where nothing can follow."""
        ...

    def fill(self, mask: Bits) -> None:
        """Set the bits of tokens that may come next; other bits may be set where no text token (and no control token of
        the grammar's) is."""
        ...

    def accept(self, token: int) -> bool:
        """Go on by a text token, or one of the grammar's control tokens; False: refused, nothing changed."""
        ...

    def accepting(self) -> bool: ...

    def stopped(self) -> bool:
        """Nothing can follow; False does not promise that something can."""
        ...

    def rollback(self, n: int) -> None: ...
    def copy(self) -> Self: ...
    def forced(self, before: Sequence[int]) -> Sequence[int]:
        """Tokens that are forced next, after the tokens `before`."""
        ...


SLOW_S = 0.001
"""CPU seconds from which on a step counts as one that builds states of the back end; to find them takes 0.0001."""
BYTES_A_SECOND = 250e6
"""What llguidance builds in a CPU second of such steps: 50 MB in 0.2 s, measured on a regex of 100,000 states."""


@dataclass(eq=False)
class Growth:
    """What rows of a grammar have made it hold, about: a back end does not tell."""

    bytes: int = 0


class Start:
    """What each matcher with the same end tokens finds before its first token; whoever comes first finds it for all."""

    run: tuple[list[int], int] | None = None
    mask: Bits | None = None


class TokenGrammar:
    """A compiled constraint: steps at the start, whose copies share nothing that changes."""

    def __init__(
        self,
        tables: Tables,
        limits: Limits,
        start: Steps,
        *,
        backend: str,
        source_bytes: int,
        ignored: tuple[str, ...] = (),
        added: tuple[str, ...] = (),
        passed: tuple[str, ...] = (),
        canonical: bool = False,
        controls: frozenset[int] = frozenset(),
    ) -> None:
        """
        Args:
            canonical: where the text is certain, only the tokens that the tokenizer itself would write are allowed.
            controls: the control tokens that the steps may allow.
        """
        self.backend = backend
        self.source_bytes = source_bytes
        self.ignored = ignored
        self.added = added
        self.passed = passed
        self._tables = tables
        self._limits = limits
        self._start = start
        self._canonical = canonical
        self._controls = controls
        self._growth = Growth()
        self._starts = Start(), Start()
        """Of matchers with the model's own end tokens, in any spelling and in the tokenizer's."""

    @property
    def grown_bytes(self) -> int:
        return self._growth.bytes

    def matcher(self, end_ids: Sequence[int] = (), *, any_spelling: bool = False) -> TokenMatcher:
        ends = self._tables.ends_with(end_ids) if end_ids else self._tables.ends
        canonical = self._canonical and not any_spelling
        controls = self._controls - ends.ids
        return TokenMatcher(
            self._tables,
            self._limits,
            self._start.copy(),
            ends,
            canonical=canonical,
            controls=controls,
            start=None if end_ids else self._starts[canonical],
            growth=self._growth,
        )

    def behind(self, marker: bytes, opened_by: bytes = b"", most: int | None = None) -> TokenGrammar:
        """The same behind free text (of `most` tokens), a marker and an empty line. With `opened_by` all that stands
        behind this mark, and the text may do without it."""
        from radixrt.grammar.behind import Behind, Marker
        from radixrt.grammar.first_thought import FirstThought, opening_mark

        twin = copy(self)
        twin._starts = Start(), Start()
        twin._start = thought = Behind(Marker(marker, self._tables), self._start.copy(), most=most)
        if opened_by:
            twin._start = FirstThought(opening_mark(opened_by, self._tables), thought, self._start.copy())
        return twin

    def first_mask(self) -> None:
        """Fill a mask on the original, so that copies start with what it builds. Raises what `fill` raises."""
        mask = np.zeros((1, words(self._tables.vocab_size)), dtype=np.int32)
        TokenMatcher(self._tables, self._limits, self._start, self._tables.ends, controls=self._controls).fill(mask, 0)


class TokenMatcher:
    """See `interface.Matcher`."""

    def __init__(
        self,
        tables: Tables,
        limits: Limits,
        steps: Steps,
        ends: Ends,
        *,
        canonical: bool = False,
        controls: frozenset[int] = frozenset(),
        start: Start | None = None,
        growth: Growth | None = None,
    ) -> None:
        """`controls`: the control tokens that the steps may allow; `start`: shared by matchers that begin alike;
        `growth`: by all of the grammar."""
        self._growth = growth or Growth()
        self._tables = tables
        self._limits = limits
        self._steps = steps
        self._ends = ends
        self._tokens: list[int] = []
        self._ended = False
        self._failure: str | None = None
        self._spent_s = 0.0
        self._canonical = canonical
        self._controls = controls
        self._start = start
        self._may_be = ends.text
        for token in controls:
            self._may_be = self._may_be | bit(token, tables.width)
        self._run: tuple[list[int], int] | None = None
        """Tokens that are forced, and how many of them are taken; None where nobody has asked yet."""
        self._runs: list[tuple[list[int], int] | None] = []
        """Of each token what stood there before it: a run is found once, and holds to its end."""

    @property
    def may_stop(self) -> bool:
        return not self._failure and (self._ended or self._steps.accepting())

    @property
    def must_stop(self) -> bool:
        return self._ended or (self.may_stop and self._steps.stopped())

    @property
    def spent_s(self) -> float:
        """CPU seconds that the back end took for this row so far."""
        return self._spent_s

    def fill(self, bitmask: Bitmask, row: int) -> None:
        target = bitmask[row]
        count = words(self._tables.vocab_size)
        if bitmask.dtype != np.int32 or target.shape != (count,):
            raise ValueError(f"the bitmask must be int32[rows, {count}]")
        target[:] = 0
        self._check()
        required = self.required()
        if required is not None:
            mask = bit(required, self._tables.width)
        elif self.must_stop:
            mask = self._ends.bits
        elif (known := self._at_start) is not None and known.mask is not None:
            mask = known.mask
        else:
            mask = np.zeros(words(self._tables.width), dtype=np.int32)
            start = time.thread_time()
            self._steps.fill(mask)
            self._clock(start)
            # A back end that gave up may have set bits all the same.
            self._check()
            mask &= self._may_be
            if self.may_stop:
                mask |= self._ends.bits
            if known is not None:
                known.mask = mask
        target[:] = mask[:count]
        if not target.any():
            raise GrammarDeadEnd(DEAD_END)

    def accept(self, token: int, *, guessed: bool = False) -> None:
        self._check()
        if self._ended:
            raise TokenRefused(f"token {token} comes after the end")
        if token in self._ends.ids:
            if not self.may_stop:
                raise TokenRefused(f"the end token {token} comes before the text is complete")
            self._ended = True
        else:
            required = self.required()
            if required is not None and token != required:
                raise TokenRefused(f"token {token} spells what is certain here in another way than the tokenizer")
            start = time.thread_time()
            possible = self._is_possible(token)
            taken = possible and self._steps.accept(token)
            if possible and not taken and not guessed:
                # Other rows of the grammar may have used up its states: a back end tells so in a mask, not here, and
                # there it may find others.
                mask = np.zeros(words(self._tables.width), dtype=np.int32)
                self._steps.fill(mask)
                if self._steps.failure is None and _holds(mask, token):
                    taken = self._steps.accept(token)
                    self._failure = None if taken else TOO_MANY_WAYS
            self._clock(start)
            self._check()
            if not taken:
                raise TokenRefused(f"token {token} is not allowed by the constraint here")
        self._tokens.append(token)
        self._runs.append(self._run)
        self._run = self._behind(token)

    def rollback(self, n: int) -> None:
        if not 0 <= n <= len(self._tokens):
            raise ValueError(f"cannot take back {n} of {len(self._tokens)} tokens")
        self._check()
        if n:
            self._run = self._runs[-n]
            del self._tokens[-n:], self._runs[-n:]
        if n and self._ended:
            self._ended = False
            n -= 1
        if n:
            self._steps.rollback(n)
            self._check()

    def fork(self) -> TokenMatcher:
        self._check()
        twin = TokenMatcher(
            self._tables,
            self._limits,
            self._steps.copy(),
            self._ends,
            canonical=self._canonical,
            controls=self._controls,
            start=self._start,
            growth=self._growth,
        )
        twin._tokens, twin._ended, twin._spent_s = list(self._tokens), self._ended, self._spent_s
        twin._run, twin._runs = self._run, list(self._runs)
        return twin

    def forced(self) -> list[int]:
        run, at = self._forced()
        return run[at:]

    def _forced(self) -> tuple[list[int], int]:
        self._check()
        if self._run is None:
            known = self._at_start
            self._run = known.run if known is not None else None
            if self._run is None:
                self._run = ([] if self.must_stop else self._find_forced()), 0
                if known is not None:
                    known.run = self._run
        return self._run

    @property
    def _at_start(self) -> Start | None:
        return None if self._tokens else self._start

    def _behind(self, token: int) -> tuple[list[int], int] | None:
        """What is left of the run of forced tokens behind one more token; None where it has come to its end."""
        if self._run is None:
            return None
        run, at = self._run
        return (run, at + 1) if at + 1 < len(run) and run[at] == token else None

    def _find_forced(self) -> list[int]:
        start = time.thread_time()
        found = self._steps.forced(self._tokens)
        self._clock(start)
        self._check()
        return list(takewhile(self._is_possible, found))

    def required(self) -> int | None:
        """The one token that is allowed where the text is certain; None where there is a choice, or any spelling does.

        A model that did not expect the text would spell it in scraps: tokens that it has not learned from and that the
        same text, tokenized again in the next turn, does not find in the prefix tree.
        """
        if not self._canonical or self.may_stop:
            return None
        run, at = self._forced()
        return run[at] if run else None

    def _is_possible(self, token: int) -> bool:
        """Whether it is text, or one of the control tokens that may come."""
        return 0 <= token < self._tables.vocab_size and _holds(self._may_be, token)

    def _clock(self, start: float) -> None:
        """Fail when the step since `start`, or all steps together, cost too much: everybody waits for them."""
        used = time.thread_time() - start
        self._spent_s += used
        if used > SLOW_S:
            self._growth.bytes += int(used * BYTES_A_SECOND)
        if used > self._limits.max_step_s:
            self._failure = f"one step took {used:.2f} s, the limit is {self._limits.max_step_s:g} s"
        elif self._spent_s > self._limits.max_row_s:
            self._failure = f"its steps took {self._spent_s:.2f} s together, the limit is {self._limits.max_row_s:g} s"

    def _check(self) -> None:
        if self._failure is None and (words := self._steps.failure) is not None:
            self._failure = words if words == DEAD_END else running_words(words)
        if self._failure is None:
            return
        if self._failure == DEAD_END:
            raise GrammarDeadEnd(DEAD_END)
        kind = MatcherFailed if self._failure == GAVE_UP else TooComplex
        raise kind(f"the constraint cannot be followed further: {self._failure}")


def _holds(mask: Bits, token: int) -> bool:
    return bool(mask[token >> 5] >> (token & 31) & 1)
