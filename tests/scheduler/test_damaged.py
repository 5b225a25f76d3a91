"""Weights that are damaged give logits that are no numbers, and the runner -1 for a token."""

from __future__ import annotations

import numpy as np
import pytest

from radixrt.grammar import GrammarDeadEnd, TokenRefused
from tests.scheduler import fakes


def test_who_has_no_constraint_is_not_told_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fakes, "next_token", lambda *_: -1)
    rig = fakes.Rig(1000)
    plain, held = rig.submit([5, 6], max_tokens=1), rig.submit([5, 7], constraint="even 3", max_tokens=1)
    rig.run()
    assert "not finite" in rig.errors[plain] and "constraint" not in rig.errors[plain]
    assert rig.errors[held] == rig.errors[plain], "nor is one who has: the constraint left it tokens"


def test_a_constraint_that_leaves_nothing_behind_a_guess_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    masks = []

    def fill(self: fakes.EvenMatcher, bitmask: np.ndarray, row: int) -> None:
        masks.append(row)
        if len(masks) > 1:
            raise GrammarDeadEnd("no way on")
        bitmask[row] = 0  # as behind a guess

    monkeypatch.setattr(fakes, "next_token", lambda *_: -1)
    monkeypatch.setattr(fakes.EvenMatcher, "fill", fill)
    rig = fakes.Rig(1000)
    held = rig.submit([5, 7], constraint="even 3", max_tokens=1)
    rig.run()
    assert rig.errors[held] == "no way on"


def test_a_constraint_that_refuses_what_it_allowed_is_for_its_sender_to_mend(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def accept(self: fakes.EvenMatcher, token: int, *, guessed: bool = False) -> None:
        raise TokenRefused(f"token {token} is not allowed")

    monkeypatch.setattr(fakes.EvenMatcher, "accept", accept)
    rig = fakes.Rig(1000)
    held, plain = rig.submit([5, 7], constraint="even 3", max_tokens=4), rig.submit([5, 6], max_tokens=1)
    rig.run()
    assert "name another backend" in rig.errors[held] and set(rig.errors) == {held}
    assert "refuses the token that its mask allowed" in caplog.text
    assert plain not in rig.errors
