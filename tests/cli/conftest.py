from __future__ import annotations

import pytest
from fake_engine import FakeEngine

import radixrt


@pytest.fixture
def fake_engine(monkeypatch: pytest.MonkeyPatch) -> list[FakeEngine]:
    """The engines that a command makes, all of them fakes."""
    FakeEngine.made = []
    monkeypatch.setitem(vars(radixrt), "Engine", FakeEngine)
    return FakeEngine.made


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine("fake")
