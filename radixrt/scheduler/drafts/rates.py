"""How often guesses hold: rates that forget, and the length of a guess that pays."""

from __future__ import annotations

from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

from radixrt.scheduler.requests import Row


@dataclass
class Rate:
    """A share of trials that held, of which the latest 1 / (1 - keep) count."""

    keep: float
    hits: float = 0.0
    tries: float = 0.0

    def add(self, hits: int, tries: int) -> None:
        kept = self.keep**tries
        self.hits = self.hits * kept + hits
        self.tries = self.tries * kept + tries

    def value(self, prior: float, weight: float) -> float:
        """The rate, as if `weight` more trials had held at `prior`."""
        return (self.hits + weight * prior) / (self.tries + weight)


@dataclass
class Acceptance:
    """Rates by row over rates of all: a new row begins where the others stand."""

    prior: float
    """Before anything was seen."""
    common: dict[int, Rate] = field(default_factory=dict)
    """By kind of guess; a source says what a kind is."""
    rows: WeakKeyDictionary[Row, Rate] = field(default_factory=WeakKeyDictionary)

    def odds(self, row: Row, kind: int = 0) -> float:
        """How likely the next token of a guess of this kind holds for the row."""
        common = self.common.get(kind)
        prior = common.value(self.prior, 4.0) if common is not None else self.prior
        rate = self.rows.get(row)
        return rate.value(prior, 4.0) if rate is not None else prior

    def add(self, row: Row, hits: int, tries: int, kind: int = 0) -> None:
        if tries:
            self.common.setdefault(kind, Rate(0.99)).add(hits, tries)
            self.rows.setdefault(row, Rate(0.9)).add(hits, tries)


def best_length(odds: float, price: float, most: int) -> int:
    """How many tokens to guess, 0..most, when each holds with `odds` given those before it.

    A step yields 1 + odds + odds^2 + ... + odds^k tokens a row and costs 1 + k * price, in steps without guesses:
    the k with the best ratio (Leviathan et al., arXiv 2211.17192, section 3.3, with a price that grows with the
    batch). The first k at which it stops rising is the best one, since what each further token adds only falls.
    """
    best, length, gained, power = 1.0, 0, 1.0, 1.0
    for k in range(1, most + 1):
        power *= odds
        gained += power
        ratio = gained / (1.0 + k * price)
        if ratio <= best:
            break
        best, length = ratio, k
    return length
