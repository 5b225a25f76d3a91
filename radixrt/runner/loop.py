"""The runner's life: load, say so, then step for step for ever. The lifeline in `radixrt.process` ends it."""

from __future__ import annotations

import logging

import torch

from radixrt.messages import RunnerReady, StepFailed, StepPlan
from radixrt.runner.inbox import Inbox, MasksMissing
from radixrt.runner.rows import PlanError
from radixrt.runner.step import Stepper

log = logging.getLogger(__name__)


def serve(inbox: Inbox, stepper: Stepper, ready: RunnerReady) -> None:
    """Answer every Connect with `ready`, and every plan, in order, with StepResult or StepFailed."""
    with torch.inference_mode():
        while True:
            turn(inbox, stepper, ready)


def turn(inbox: Inbox, stepper: Stepper, ready: RunnerReady) -> None:
    """One turn of the loop: greet a scheduler that has connected, run one plan, or wait for a message."""
    inbox.drain()
    if inbox.connected:
        inbox.connected = False
        stepper.rows.clear()
        inbox.send(ready)
    elif inbox.plans:
        plan = inbox.plans.popleft()
        _run(inbox, stepper, plan)
        inbox.forget_masks(plan.step)
    else:
        inbox.wait()


def _run(inbox: Inbox, stepper: Stepper, plan: StepPlan) -> None:
    try:
        inbox.send(stepper.run(plan, lambda: inbox.masks(plan.step)))
    except Exception as error:
        # Whatever a step raises is that step's failure and nobody else's.
        log.exception("step %d failed", plan.step)
        inbox.send(StepFailed(step=plan.step, message=_describe(error)))


def _describe(error: Exception) -> str:
    """What a stranger may read: our own words, or the kind of error alone."""
    if isinstance(error, PlanError | MasksMissing):
        return f"the step could not be run: {error}"
    if isinstance(error, MemoryError) or "alloc" in str(error):
        return "the step could not be run: not enough memory"
    return f"the step failed inside the model runner ({type(error).__name__}); its log has the details"
