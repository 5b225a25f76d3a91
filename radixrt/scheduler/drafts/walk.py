"""A guess along a constraint: what it requires is put in, what it refuses cuts the guess off, and so does its end.

A token is guessed for what is sampled behind it. Where a token is certain or the text must end, nothing is: a guess
that leads there goes no further than to the last choice before it. Of a choice among labels that begin differently
nothing is guessed, however well it is foretold: the sample that is due decides it.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from radixrt.errors import RadixrtError
from radixrt.grammar import Matcher, TokenRefused


@dataclass
class Walk:
    """Tokens that the constraint takes, and how many of them, from the first on, are the guess's own."""

    chain: list[int] = field(default_factory=list)
    own: int = 0


def walk(matcher: Matcher, guess: Sequence[int], odds: float, price: float, most: int, *, jumps: bool) -> Walk:
    """Up to `most` tokens of which each pays: a token of the guess holds with `odds` given those before it, one that is
    required with certainty. `jumps`: what is certain is taken without a sample.

    The rule is that of `rates.best_length`: what a further token adds only falls, so the first that does not raise the
    tokens of a step over its cost ends the walk. The matcher comes back where it was.

    Where the constraint gives up (a limit), that is for the row's next mask to say: here it takes nothing more.
    """
    found, straight, worth = Walk(), True, 0
    best, gained, power = 1.0, 1.0, 1.0
    with suppress(RadixrtError):
        while not matcher.must_stop:
            required = matcher.required()
            if required is None or not jumps:
                worth = len(found.chain)
            if len(found.chain) >= most:
                break
            ours = guess[len(found.chain)] if straight and len(found.chain) < len(guess) else None
            token = ours if required is None else required
            if token is None:
                break
            power *= odds if required is None else 1.0
            straight = straight and required in (None, ours)
            gained += power
            ratio = gained / (1.0 + (len(found.chain) + 1) * price)
            if ratio <= best:
                break
            best = ratio
            try:
                matcher.accept(token, guessed=True)
            except TokenRefused:
                break
            found.chain.append(token)
            found.own += straight
    with suppress(RadixrtError):
        matcher.rollback(len(found.chain))
    return Walk(found.chain[:worth], min(found.own, worth))


def useful(matcher: Matcher, tokens: Sequence[int], before: Sequence[int] = (), *, jumps: bool) -> int:
    """How many of `tokens`, behind `before`, the constraint takes and are worth a guess; the matcher comes back.

    Where the constraint gives up (a limit), that is for the row's next mask to say: here it takes nothing.
    """
    taken = worth = 0
    with suppress(RadixrtError):
        for token in (*before, *tokens):
            matcher.accept(token, guessed=True)
            taken += 1
            if taken > len(before):
                if matcher.must_stop:
                    break
                if not jumps or matcher.required() is None:
                    worth = taken - len(before)
    with suppress(RadixrtError):
        matcher.rollback(taken)
        return worth
    return 0
