"""The order in which a tenant's requests run does not tell what another tenant has cached."""

from __future__ import annotations

import pytest

from radixrt.messages import Namespace
from tests.scheduler.fakes import Rig
from tests.scheduler.tier_rig import prompt

ANA, BEN = Namespace(tenant="ana"), Namespace(tenant="ben")
WARM, COLD = prompt(1, 60), prompt(2, 60)


def order(policy: str, fair: bool, warmed: Namespace | None, running: bool) -> tuple[list[int], list[int]]:
    """Order of ben's answers, and what each found, after (or while) `warmed` computes the last one's prompt."""
    rig = Rig(4000, max_num_seqs=2, policy=policy, fair=fair)
    if warmed is not None:
        rig.submit([*WARM, 1], namespace=warmed, max_tokens=2, seed=1)
        for _ in range(1 if running else 50):
            rig.step()
    asked = [rig.submit([*start, n], namespace=BEN, max_tokens=3, seed=n) for n, start in enumerate([COLD, COLD, WARM])]
    rig.run()
    ended = [number for number, _ in rig.reasons if number in asked]
    return [asked.index(number) for number in ended], [rig.usage[number].cached_tokens for number in asked]  # type: ignore[attr-defined]


@pytest.mark.parametrize("running", [False, True])
@pytest.mark.parametrize(("policy", "fair"), [("lpm", True), ("lpm", False), ("fcfs", True)])
def test_order_and_hits_are_the_same_whatever_another_tenant_has_cached(policy: str, fair: bool, running: bool) -> None:
    alone = order(policy, fair, None, running)
    assert order(policy, fair, ANA, running) == alone
    assert order(policy, fair, Namespace(tenant="ben", salt="s"), running) == alone
    if policy == "lpm" and not running:
        own = order(policy, fair, BEN, running)
        assert own[0][0] == 2 and own[1][2] >= 60, "what is one's own is found, and goes first"
