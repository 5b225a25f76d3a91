"""The order in which the process's loop sends plans and what is new."""

from __future__ import annotations

from typing import cast

from radixrt.messages import StepPlan, TokenBatch
from radixrt.scheduler.loop import SchedulerProcess
from tests.scheduler.fakes import Rig


class Sent:
    """A link that writes down what leaves by which."""

    def __init__(self, name: str, log: list[tuple[str, object]]) -> None:
        self.name = name
        self.log = log

    def send(self, message: object) -> bool:
        self.log.append((self.name, message))
        return True


def looped(rig: Rig) -> tuple[SchedulerProcess, list[tuple[str, object]]]:
    process = cast(SchedulerProcess, object.__new__(SchedulerProcess))
    log: list[tuple[str, object]] = []
    vars(process).update(_scheduler=rig.scheduler, _runner=Sent("runner", log), _outward=Sent("told", log))
    return process, log


def test_what_is_new_goes_first_only_while_newcomers_are_planned_and_nothing_runs() -> None:
    rig = Rig(4000, lookahead=0)
    process, log = looped(rig)

    def settled() -> None:
        rig.runner.plans.append(cast(StepPlan, log[0][1]))
        log.clear()
        rig.scheduler.settle(rig.runner.run())

    for i in range(2):
        rig.submit([7, i], max_tokens=4, seed=i, ignore_eos=True)
    process._advance()
    assert [name for name, _ in log] == ["runner"]
    settled()
    process._advance()  # those who run wait for their plan
    assert [name for name, _ in log] == ["runner", "told"]
    del log[1:]
    rig.submit([9, 9, 9], max_tokens=4, seed=5)
    settled()
    process._advance()  # a newcomer is planned: the others' tokens do not wait for it
    assert [name for name, _ in log] == ["told", "runner"]
    assert len(cast(StepPlan, log[1][1]).opens) == 1 and len(cast(TokenBatch, log[0][1]).items) == 2
    assert not rig.scheduler.outbox
