"""What all policies share: the entry of a waiting row, the questions a policy may ask, the face it shows."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Protocol

from radixrt.cache import Ids
from radixrt.scheduler.requests import Row


@dataclass(eq=False, slots=True)
class Entry:
    """A row while it waits. Only the queue makes entries; policies keep what they know of a row here."""

    row: Row
    number: int
    """Order of entering the queue; breaks ties."""
    tokens: Ids
    """The row's tokens as they were when it came: what it is ordered by may not change while it waits."""
    cached: int = -1
    """How many of its tokens are in the tree or on their way there, as last seen; -1: not looked at yet."""
    listed: bool = False
    """The policy has it: it is neither parked nor set aside nor gone."""
    parked: bool = False
    late: bool = False
    """Its time has come (`due.Due`): it goes before those whose time has not."""

    @property
    def arrived(self) -> float:
        return self.row.request.arrived

    @property
    def deadline(self) -> float:
        """Clock reading by which the request must be done; infinity where it has no timeout."""
        deadline = self.row.request.deadline
        return math.inf if deadline is None else deadline


class View(Protocol):
    """What a policy may ask about the cache."""

    def reach(self, row: Row) -> int:
        """How many of the row's tokens are in the tree, or will be once the rows that compute now have done so."""

    @property
    def tight(self) -> bool:
        """The next admission evicts."""


class Policy(ABC):
    """An order of waiting rows. `first` is the one question; the other methods tell it what happened.

    Policies nest: one that sorts rows into groups holds one policy a group. No method may cost more than
    O(log waiting) and a bounded number of look-ups in the tree, amortized over the rows that pass through.
    """

    strict = False
    """Where the first row does not fit, nobody overtakes it."""

    @abstractmethod
    def add(self, entry: Entry) -> None:
        """The entry waits (again)."""

    @abstractmethod
    def discard(self, entry: Entry) -> None:
        """The entry does not wait any more, or is set aside for a while. An unknown one is ignored."""

    @abstractmethod
    def first(self, now: float) -> Entry | None:
        """Who goes next; None when nobody waits."""

    @abstractmethod
    def __len__(self) -> int: ...

    def changed(self, entry: Entry) -> None:  # noqa: B027 (not every policy cares)
        """`entry.cached` has changed while it waits here."""

    def admitted(self, entry: Entry) -> None:  # noqa: B027
        """The entry, discarded before, runs now."""

    def charge(self, row: Row, tokens: int) -> None:  # noqa: B027
        """A running row computes so many tokens in the step that is being planned."""
