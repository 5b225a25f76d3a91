"""Which policy: the one place where the small ones are put together."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from radixrt.errors import StartupError
from radixrt.scheduler.policies.arrival import Arrival
from radixrt.scheduler.policies.bands import Bands
from radixrt.scheduler.policies.base import Policy, View
from radixrt.scheduler.policies.due import Due
from radixrt.scheduler.policies.fair import Fair
from radixrt.scheduler.policies.neighbours import Neighbours
from radixrt.scheduler.policies.prefix import LongestPrefix


@dataclass(frozen=True, kw_only=True)
class PolicyOptions:
    """What a user may choose about the order of waiting requests. Raises StartupError for what cannot be meant."""

    name: str = "lpm"
    """lpm: longest cached prefix first. fcfs: first come, first served."""
    max_wait_s: float = 10.0
    fair: bool = True
    namespace_weights: dict[str, float] = field(default_factory=dict)
    quantum: int = 512
    """Computed tokens that a share of weight 1 gets in a round."""

    def __post_init__(self) -> None:
        if self.name not in ("lpm", "fcfs"):
            raise StartupError(f"unknown policy {self.name!r}: lpm or fcfs")
        if not self.max_wait_s >= 0:
            raise StartupError(f"max_wait_s must be 0 or more, but is {self.max_wait_s}")
        for name, weight in self.namespace_weights.items():
            if not 0 < weight < math.inf:
                raise StartupError(f"the weight of namespace {name!r} must be a number above 0, but is {weight}")


def make_policy(options: PolicyOptions, view: View, neighbours: Neighbours) -> Policy:
    """Priorities, in them shares, in them whose time has come, and then the order that the option names."""

    def inner() -> Policy:
        return Arrival() if options.name == "fcfs" else LongestPrefix(view, neighbours)

    def due() -> Policy:
        # First come, first served is bounded by itself; only deadlines remain.
        return Due(inner, math.inf if options.name == "fcfs" else options.max_wait_s)

    def shares() -> Policy:
        return Fair(due, options.namespace_weights, options.quantum) if options.fair else due()

    within: Callable[[], Policy] = shares
    return Bands(within)
