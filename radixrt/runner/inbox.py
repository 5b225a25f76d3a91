"""What has arrived and is not done yet: plans in order, masks by step. No torch."""

from __future__ import annotations

import logging
from collections import deque
from time import monotonic

from radixrt.messages import Connect, EncodePlan, FromRunner, StepMasks, StepPlan, TierWork, ToRunner
from radixrt.transport import Link

log = logging.getLogger(__name__)

MASK_TIMEOUT_S = 60.0
"""A mask that has not come by then never will: the scheduler gives each mask a deadline far below this."""


class MasksMissing(RuntimeError):
    """A step's token masks did not come, or whoever should have sent them is gone."""


class Inbox:
    """The runner's end of the link. One scheduler at a time: a new Connect makes what came before it void."""

    def __init__(self, link: Link[ToRunner, FromRunner]) -> None:
        self._link = link
        self.peer: bytes | None = None
        """Who sent Connect last."""
        self.connected = False
        """A Connect has come that nobody has taken note of yet; the runner's loop resets it."""
        self.plans: deque[StepPlan | TierWork | EncodePlan] = deque()
        """In order; what a TierWork moves it moves between the plans around it."""
        self._masks: dict[int, StepMasks] = {}

    def drain(self) -> None:
        """Sort what has arrived, without waiting."""
        for peer, message in self._link.receive():
            match message:
                case Connect():
                    self.peer = peer
                    self.connected = True
                    self.plans.clear()
                    self._masks.clear()
                case _ if peer != self.peer:
                    log.warning("dropped a %s from a peer that has not connected", type(message).__name__)
                case StepPlan() | TierWork() | EncodePlan():
                    self.plans.append(message)
                case StepMasks():
                    self._masks[message.step] = message

    def wait(self, timeout_s: float | None = None, also: int | None = None) -> bool:
        """Wait until something arrives, and sort it, or until the descriptor `also` can be read; False on time-out."""
        arrived = self._link.wait(timeout_s, also) if also is not None else self._link.wait(timeout_s)
        self.drain()
        return arrived

    def masks(self, step: int, timeout_s: float = MASK_TIMEOUT_S) -> StepMasks:
        """The token masks of `step`; waits for them. MasksMissing where they do not come."""
        deadline = monotonic() + timeout_s
        self.drain()
        while step not in self._masks:
            left = deadline - monotonic()
            if self.connected or left <= 0 or not self.wait(left):
                raise MasksMissing(f"the token masks of step {step} did not come")
        return self._masks.pop(step)

    def forget_masks(self, upto: int) -> None:
        """Drop masks of steps that are over."""
        for step in [step for step in self._masks if step <= upto]:
            del self._masks[step]

    def send(self, message: FromRunner) -> bool:
        """Answer the connected scheduler; False where there is none, or it is gone."""
        return self.peer is not None and self._link.send(message, self.peer)
