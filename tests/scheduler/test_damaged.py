"""Weights that are damaged give logits that are no numbers, and the runner -1 for a token."""

from __future__ import annotations

import pytest

from tests.scheduler import fakes


def test_who_has_no_constraint_is_not_told_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fakes, "next_token", lambda *_: -1)
    rig = fakes.Rig(1000)
    plain, held = rig.submit([5, 6], max_tokens=1), rig.submit([5, 7], constraint="even 3", max_tokens=1)
    rig.run()
    assert "not finite" in rig.errors[plain] and "constraint" not in rig.errors[plain]
    assert "dead end" in rig.errors[held]
