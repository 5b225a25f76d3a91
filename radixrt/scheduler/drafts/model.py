"""Guesses of a small draft model: the runner makes them behind the tokens of a step, and sends them with its result."""

from __future__ import annotations

from dataclasses import dataclass, field

from radixrt.scheduler.drafts.cost import StepCost
from radixrt.scheduler.drafts.guess import NOTHING, Guess
from radixrt.scheduler.drafts.rates import Acceptance, best_length
from radixrt.scheduler.requests import Row

QUIET = 32, 1024
"""Tokens until a row for which the model does not pay tries again: at first, and at most (each time twice as many)."""


@dataclass(eq=False)
class _Ask:
    """What is under way for a row, or has arrived."""

    asked: bool = False
    at: int = -1
    """Tokens that the row had when `tokens` came: they stand behind these."""
    tokens: list[int] = field(default_factory=list)
    again: int = 0
    """The row's length at which the model is tried again."""
    pause: int = QUIET[0]


class ModelSource:
    """Asks for guesses with a row's step where they pay, and proposes what came."""

    name = "model"

    def __init__(self, cost: StepCost) -> None:
        self._cost = cost
        self._acceptance = Acceptance(prior=0.7)
        self._asks: dict[Row, _Ask] = {}

    def admitted(self, row: Row) -> None:
        self._asks.setdefault(row, _Ask())

    def learn(self, row: Row, token: int, *, certain: bool = False) -> None:
        """Nothing to remember: the runner knows the row's tokens."""

    def ended(self, row: Row) -> None:
        self._asks.pop(row, None)

    def wanted(self, row: Row, most: int, rows: int) -> int:
        """How many tokens to ask for with the row's next step, in steps of `rows` rows."""
        ask = self._asks.get(row)
        if ask is None or most < 1:
            return 0
        price = self._cost.price(rows) + self._cost.draft_price(rows)
        length = best_length(self._acceptance.odds(row), price, most)
        if not length:
            if len(row.tokens) < ask.again:
                return 0
            # It does not pay now: see from time to time whether it still does not.
            ask.again, ask.pause = len(row.tokens) + ask.pause, min(2 * ask.pause, QUIET[1])
            length = 1 if price < 1 else 0
        ask.asked = length > 0
        return length

    def receive(self, row: Row, tokens: list[int]) -> None:
        """What the runner guesses behind the row's tokens, all of which are known now."""
        ask = self._asks.get(row)
        if ask is not None:
            ask.asked, ask.at, ask.tokens = False, len(row.tokens), tokens

    def propose(self, row: Row, most: int) -> Guess:
        ask = self._asks.get(row)
        if ask is None or not 0 <= ask.at <= len(row.tokens):
            return NOTHING
        since = row.tokens[ask.at :].tolist()  # certain tokens, which the model may have foretold
        if ask.tokens[: len(since)] != since:
            return NOTHING
        chain = ask.tokens[len(since) :][:most]
        return Guess(self.name, chain, self._acceptance.odds(row)) if chain else NOTHING

    def expect(self, row: Row) -> tuple[float, int]:
        ask = self._asks.get(row)
        return (self._acceptance.odds(row), 4) if ask is not None and ask.asked else (0.0, 0)

    def verified(self, row: Row, proposed: int, accepted: int) -> None:
        self._acceptance.add(row, accepted, accepted + (accepted < proposed))
        ask = self._asks.get(row)
        if ask is not None and accepted == proposed:
            ask.pause = QUIET[0]
