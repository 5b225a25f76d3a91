"""A step that raised: that step's failure and nobody else's, but where the device itself is lost."""

from __future__ import annotations

from radixrt.messages import EncodePlan, StepFailed, StepPlan
from radixrt.runner.inbox import Inbox, MasksMissing
from radixrt.runner.rows import PlanError


def fail(inbox: Inbox, plan: StepPlan | EncodePlan, error: Exception) -> None:
    """Answer StepFailed; the caller logs. SystemExit where no later step could succeed either."""
    inbox.send(StepFailed(step=plan.step, message=_describe(error)))
    if "CUDA error" in str(error) and "out of memory" not in str(error):
        raise SystemExit(1) from error  # the context is beyond repair: the engine must start again


def _describe(error: Exception) -> str:
    """What a stranger may read: our own words, or the kind of error alone."""
    if isinstance(error, PlanError | MasksMissing):
        return f"the step could not be run: {error}"
    if isinstance(error, MemoryError) or "alloc" in str(error):
        return "the step could not be run: not enough memory"
    return f"the step failed inside the model runner ({type(error).__name__}); its log has the details"
