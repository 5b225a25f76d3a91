"""Guesses that the grammar forces."""

from __future__ import annotations

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

    def learn(self, row: Row, token: int) -> None:
        """Nothing to remember: the matcher knows."""

    def ended(self, row: Row) -> None:
        """Nothing to forget."""

    def propose(self, row: Row, most: int) -> Guess:
        if row.matcher is None:
            return NOTHING
        forced = row.matcher.forced()[:most]
        return Guess(self.name, forced, self._acceptance.odds(row)) if forced else NOTHING

    def expect(self, row: Row) -> tuple[float, int]:
        # What is forced next is known only behind the token under way, and saves more than planning ahead does.
        return (self._acceptance.odds(row), 4) if row.matcher is not None else (0.0, 0)

    def verified(self, row: Row, proposed: int, accepted: int) -> None:
        self._acceptance.add(row, accepted, accepted + (accepted < proposed))
