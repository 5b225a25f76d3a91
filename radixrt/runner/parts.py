"""Where the time of a step goes, by part.

wait          from the last answer to the moment at which this plan was there
plan          checking the plan and laying it out
embed         embedding, rotary tables, and what else surrounds the compiled layers
products, attention, pointwise   in the compiled layers; a model that takes another path has `layers` alone
head          logits of the lines that are sampled, and scores
adjust        log-probabilities that are asked for, biases, penalties, bans
mask wait     for token masks
sample        masks applied, tokens drawn
send          the last answer into its socket
"""

from __future__ import annotations

from time import perf_counter

NAMES = (
    "wait", "plan", "embed", "products", "attention", "pointwise", "layers", "head", "adjust", "mask wait", "sample",
    "send",
)  # fmt: skip


class Parts:
    """A stopwatch over one step; what lies between two steps is given to the next one."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}
        self._last = perf_counter()
        self._ended = self._last

    def begin(self) -> None:
        """A step begins; the time since `sent` was spent waiting for it."""
        now = perf_counter()
        self._seconds = {"wait": now - self._last, "send": self._last - self._ended}
        self._last = now

    def lap(self, name: str, within: dict[str, float] | None = None) -> None:
        """What was done since the last lap is part `name`, apart from what `within` says of other parts."""
        now = perf_counter()
        known = within or {}
        self._seconds |= known
        self._seconds[name] = self._seconds.get(name, 0.0) + max(0.0, now - self._last - sum(known.values()))
        self._last = now

    def end(self) -> dict[str, float]:
        """The step's parts."""
        self._ended = self._last = perf_counter()
        return self._seconds

    def sent(self) -> None:
        """Its answer is on the way."""
        self._last = perf_counter()
