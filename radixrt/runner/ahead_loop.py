"""The runner's loop over a device that works ahead: `loop.turn`, with one step in flight while the next is launched."""

from __future__ import annotations

import contextlib
import logging
import os

from radixrt.messages import EncodePlan, RunnerReady, StepPlan, TierWork
from radixrt.runner.ahead import AheadStepper, Flight
from radixrt.runner.failure import fail
from radixrt.runner.inbox import Inbox
from radixrt.runner.tier import TierWorker

log = logging.getLogger(__name__)


class AheadLoop:
    """A step is launched when its plan comes, the one before it is then settled and answered, and what that brings (its
    tokens, and with them the masks) goes into the draw of the one that was launched."""

    def __init__(self, inbox: Inbox, stepper: AheadStepper, ready: RunnerReady, tier: TierWorker | None = None) -> None:
        self._inbox = inbox
        self._stepper = stepper
        self._ready = ready
        self._tier = tier
        self._flight: Flight | None = None

    def turn(self) -> None:
        """Greet, take in what the tier has read, or take a plan; else settle what is in flight once it is done, or wait
        for whatever comes first."""
        inbox, tier = self._inbox, self._tier
        inbox.drain()
        moved = tier is not None and tier.advance(inbox.send)
        if inbox.connected:
            inbox.connected = False
            self._settle(answered=False)
            self._stepper.rows.clear()
            inbox.send(self._ready)
        elif inbox.plans:
            self._take(inbox.plans.popleft())
        elif self._flight is not None:
            self._wait_for(self._flight)
        elif not moved:
            inbox.wait(also=tier.wake if tier is not None else None)

    def _take(self, plan: StepPlan | TierWork | EncodePlan) -> None:
        if isinstance(plan, EncodePlan):
            raise RuntimeError("a decoder was sent the plan of an encoder")
        if isinstance(plan, TierWork):
            self._settle()
            if self._tier is not None:
                self._stepper.restores(plan.load_slots)
                self._tier.take(plan)
            return
        try:
            flight = self._stepper.launch(plan)
        except Exception as error:
            log.exception("step %d failed", plan.step)
            self._settle()  # answers go out in order
            self._failed(plan, error)
            return
        if not self._settle():
            # Launched on tokens that the device did not come to make.
            self._stepper.drop(flight)
            log.error("step %d failed with the one before it", plan.step)
            self._failed(plan, RuntimeError("the step before this one failed on the device"))
            return
        try:
            self._stepper.draw(flight, lambda: self._inbox.masks(plan.step))
        except Exception as error:
            log.exception("step %d failed", plan.step)
            self._failed(plan, error)
            return
        self._flight = flight
        if flight.done is not None:
            self._stepper.device.watch(flight.done)

    def _wait_for(self, flight: Flight) -> None:
        if flight.done is not None and not flight.done.done():
            self._inbox.wait(also=self._stepper.device.wake)
            with contextlib.suppress(BlockingIOError):  # it may have been read for a step before this one
                os.eventfd_read(self._stepper.device.wake)
            if not flight.done.done():
                return
        if not self._inbox.plans and not self._inbox.connected:  # else the next turn settles it, behind a launch
            self._settle()

    def _settle(self, *, answered: bool = True) -> bool:
        """Finish what is in flight; `answered` false: for nobody. False where it failed."""
        flight, self._flight = self._flight, None
        if flight is None:
            return True
        try:
            result = self._stepper.settle(flight)
        except Exception as error:
            log.exception("step %d failed", flight.plan.step)
            self._failed(flight.plan, error, answered=answered)
            return False
        if answered:
            self._inbox.send(result)
        self._inbox.forget_masks(flight.plan.step)
        return True

    def _failed(self, plan: StepPlan, error: Exception, *, answered: bool = True) -> None:
        if answered:
            fail(self._inbox, plan, error)
        if self._tier is not None:
            self._tier.failed(plan.step)
        self._inbox.forget_masks(plan.step)
