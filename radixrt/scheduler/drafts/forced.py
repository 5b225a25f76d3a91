"""Guesses that the grammar forces."""

from __future__ import annotations

from contextlib import suppress

from radixrt.errors import RadixrtError
from radixrt.scheduler.drafts.guess import NOTHING, Guess
from radixrt.scheduler.drafts.rates import Acceptance
from radixrt.scheduler.requests import Row


class ForcedSource:
    """Tokens that a row's constraint lets nothing else stand for: where it is canonical they hold always."""

    name = "forced"

    def __init__(self) -> None:
        self._acceptance = Acceptance(prior=0.95)

    def admitted(self, row: Row) -> None:
        """Nothing to remember: the matcher knows."""

    def learn(self, row: Row, token: int, *, certain: bool = False) -> None:
        """Nothing to remember: the matcher knows."""

    def ended(self, row: Row) -> None:
        """Nothing to forget."""

    def propose(self, row: Row, most: int) -> Guess:
        if row.matcher is None:
            return NOTHING
        forced = row.matcher.forced()[:most]
        return Guess(self.name, forced, self._acceptance.odds(row)) if forced else NOTHING

    def expect(self, row: Row) -> tuple[float, int]:
        """What is forced behind the token under way: certain where that token is forced itself, and else unknown.

        Nobody waits for the unknown: what begins behind a token of choice is guessed one step later.
        """
        if row.matcher is None or row.pending != 1:
            return 0.0, 0
        with suppress(RadixrtError):  # a constraint that gave up: the row's next mask says so
            return self._acceptance.odds(row), max(len(row.matcher.forced()) - 1, 0)
        return 0.0, 0

    def verified(self, row: Row, proposed: int, accepted: int) -> None:
        self._acceptance.add(row, accepted, accepted + (accepted < proposed))
