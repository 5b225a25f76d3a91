"""Random histories with faults: every request that ends well has the tokens of a fresh engine, nobody starves, nothing
is left over. `--long`: 100,000 steps."""

from __future__ import annotations

import pytest

from tests.scheduler.histories import EVENTS, History

SEEDS = 8


@pytest.mark.parametrize("seed", range(SEEDS))
def test_random_histories_with_faults(seed: int, long: bool) -> None:
    steps = 100_000 // SEEDS + 1 if long else 1_000
    history = History(seed)
    history.run(steps, EVENTS)
    assert history.finished > steps / 40
    assert set(history.faults) == set(EVENTS), "every kind of event happened"
