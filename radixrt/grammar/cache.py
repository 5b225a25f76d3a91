"""What is already known of constraints: grammars by least recent use, refusals for a while."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from radixrt.errors import RadixrtError
from radixrt.grammar.interface import Grammar
from radixrt.params import Constraint


class GrammarCache:
    """Grammars, at most `max_entries` of at most `max_bytes` together; the newest is always kept.

    A grammar grows while its rows run, and may grow far beyond what it was: the largest of these go first.
    """

    def __init__(self, max_entries: int, max_bytes: int) -> None:
        self._max_entries = max_entries
        self._max_bytes = max_bytes
        self._items: OrderedDict[Constraint, tuple[Grammar, int]] = OrderedDict()
        self.total_bytes = 0

    def __len__(self) -> int:
        return len(self._items)

    def get(self, constraint: Constraint) -> Grammar | None:
        found = self._items.get(constraint)
        if found is None:
            return None
        self._items.move_to_end(constraint)
        return found[0]

    def put(self, constraint: Constraint, grammar: Grammar, size: int) -> None:
        """`size` is what the grammar holds in bytes, as far as is known."""
        old = self._items.pop(constraint, None)
        self.total_bytes += size - (old[1] if old else 0)
        self._items[constraint] = (grammar, size)
        while len(self._items) > 1 and self._held > self._max_bytes and self._drop_largest():
            continue
        while len(self._items) > 1 and (len(self._items) > self._max_entries or self.total_bytes > self._max_bytes):
            self.total_bytes -= self._items.popitem(last=False)[1][1]

    @property
    def _held(self) -> int:
        """With what the grammars have grown by."""
        return self.total_bytes + sum(grammar.grown_bytes for grammar, _ in self._items.values())

    def _drop_largest(self) -> bool:
        """Of those that have grown, the newest aside; False where none has."""
        *others, _ = self._items.items()
        constraint, (grammar, size) = max(others, key=lambda item: item[1][0].grown_bytes)
        if grammar.grown_bytes:
            del self._items[constraint]
            self.total_bytes -= size
        return grammar.grown_bytes > 0


class Refusals:
    """Refused constraints, at most `max_entries`, each for `keep_s` seconds of `clock`."""

    def __init__(self, max_entries: int, keep_s: float, clock: Callable[[], float]) -> None:
        self._max_entries = max_entries
        self._keep_s = keep_s
        self._clock = clock
        self._items: OrderedDict[Constraint, tuple[RadixrtError, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._items)

    def get(self, constraint: Constraint) -> RadixrtError | None:
        found = self._items.get(constraint)
        if found is None:
            return None
        error, until = found
        if self._clock() >= until:
            del self._items[constraint]
            return None
        return RadixrtError.from_info(error.info())

    def put(self, constraint: Constraint, error: RadixrtError, keep_s: float | None = None) -> None:
        self._items.pop(constraint, None)
        self._items[constraint] = (error, self._clock() + (self._keep_s if keep_s is None else keep_s))
        while len(self._items) > self._max_entries:
            self._items.popitem(last=False)
