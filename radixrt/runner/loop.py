"""The runner's life: load, say so, then step for step for ever. The lifeline in `radixrt.process` ends it."""

from __future__ import annotations

import logging

import torch

from radixrt.messages import EncodePlan, RunnerReady, StepPlan, TierWork
from radixrt.runner.ahead import AheadStepper
from radixrt.runner.ahead_loop import AheadLoop
from radixrt.runner.failure import fail
from radixrt.runner.inbox import Inbox
from radixrt.runner.step import Stepper
from radixrt.runner.tier import TierWorker

log = logging.getLogger(__name__)


def serve(inbox: Inbox, stepper: Stepper, ready: RunnerReady, tier: TierWorker | None = None) -> None:
    """Answer every Connect with `ready`, and every plan, in order, with StepResult or StepFailed."""
    with torch.inference_mode():
        if isinstance(stepper, AheadStepper):
            ahead = AheadLoop(inbox, stepper, ready, tier)
            while True:
                ahead.turn()
        while True:
            turn(inbox, stepper, ready, tier)


def turn(inbox: Inbox, stepper: Stepper, ready: RunnerReady, tier: TierWorker | None = None) -> None:
    """One turn of the loop: greet a scheduler that has connected, take in what the tier has read, run one plan, or wait
    for a message."""
    inbox.drain()
    moved = tier is not None and tier.advance(inbox.send)
    if inbox.connected:
        inbox.connected = False
        stepper.rows.clear()
        inbox.send(ready)
    elif inbox.plans:
        plan = inbox.plans.popleft()
        if isinstance(plan, EncodePlan):
            raise RuntimeError("a decoder was sent the plan of an encoder")
        if isinstance(plan, TierWork):
            if tier is not None:
                stepper.restores(plan.load_slots)
                tier.take(plan)
            return
        if not _run(inbox, stepper, plan) and tier is not None:
            tier.failed(plan.step)
        inbox.forget_masks(plan.step)
    elif not moved:
        inbox.wait(also=tier.wake if tier is not None else None)


def _run(inbox: Inbox, stepper: Stepper, plan: StepPlan) -> bool:
    """Compute and answer a plan; False where it raised."""
    try:
        inbox.send(stepper.run(plan, lambda: inbox.masks(plan.step)))
        stepper.parts.sent()
    except Exception as error:
        log.exception("step %d failed", plan.step)
        fail(inbox, plan, error)
        return False
    return True
