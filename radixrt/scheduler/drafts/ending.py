"""How likely a row's next sample is its last, from the rows that the same constraint has held so far."""

from __future__ import annotations

from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

from radixrt.grammar import Grammar
from radixrt.scheduler.drafts.rates import Rate
from radixrt.scheduler.requests import Row

FIRST_CHOICE = 0.5
"""Of a choice, before any row of it has ended: labels mostly part with their first token."""
KEEP = 0.98


@dataclass
class Endings:
    """Of a choice among labels nearly every sample is the last, of a record one in forty. Free text is not counted: it
    ends rarely, and nothing tells when."""

    rates: WeakKeyDictionary[Grammar, Rate] = field(default_factory=WeakKeyDictionary)
    """Of the samples of a grammar's rows, those behind which there was no other."""

    def odds(self, row: Row) -> float:
        """That the row ends with the sample that is under way."""
        grammar = row.request.grammar
        if grammar is None:
            return 0.0
        constraint = row.request.constraint
        prior = FIRST_CHOICE if constraint is not None and constraint.kind == "choice" else 0.0
        rate = self.rates.get(grammar)
        return prior if rate is None else min(rate.value(prior, 1.0), 1.0)

    def sampled(self, row: Row) -> None:
        """A sample of the row has come."""
        grammar = row.request.grammar
        if grammar is not None:
            rate = self.rates.get(grammar)
            if rate is None:
                rate = self.rates[grammar] = Rate(KEEP)
            rate.add(0, 1)

    def ended(self, row: Row) -> None:
        """There is no other sample behind the row's last."""
        rate = self.rates.get(row.request.grammar) if row.request.grammar is not None else None
        if rate is not None and row.output:
            rate.hits += 1.0
