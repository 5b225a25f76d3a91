"""A constraint whose mask does not come beside others: its row fails with words of its own, the others hold."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from radixrt.grammar import MaskFiller
from tests.scheduler.fakes import EvenMatcher, Rig, expected


@pytest.mark.parametrize("max_drafts", [0, 8])
def test_a_row_whose_mask_is_late_fails_alone(monkeypatch: pytest.MonkeyPatch, max_drafts: int) -> None:
    release, fill = threading.Event(), EvenMatcher.fill

    def slow(self: EvenMatcher, bitmask: np.ndarray, row: int) -> None:
        if self.length == 31 and self.seen >= 5:
            release.wait()
        fill(self, bitmask, row)

    monkeypatch.setattr(EvenMatcher, "fill", slow)
    rig = Rig(2000, max_drafts=max_drafts)
    rig.scheduler.filler = MaskFiller(0.02)
    hostile = rig.submit([7, 0], constraint="even 31", max_tokens=90, seed=1)
    ordinary = rig.submit([7, 1], constraint="even 12", max_tokens=60, seed=1)
    plain = rig.submit([7, 2], max_tokens=12, seed=9)
    rig.run()
    release.set()
    assert "too busy to compute the constraint's mask within 0.4 s" in rig.errors[hostile]
    assert len(rig.texts[hostile, 0]) >= 5
    assert (rig.texts[ordinary, 0], rig.reasons[ordinary, 0]) == expected([7, 1], 60, 1, "even 12")
    assert (rig.texts[plain, 0], rig.reasons[plain, 0]) == expected([7, 2], 12, 9)
    assert set(rig.errors) == {hostile}
    rig.scheduler.rows.check()
    assert not rig.scheduler.requests and not rig.scheduler.rows.running
