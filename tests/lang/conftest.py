"""Fixtures of the language's tests."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from fake_backend import FakeBackend

from tests.waiting import HANG_S


@pytest.fixture
def backend() -> FakeBackend:
    return FakeBackend()


@pytest.fixture(autouse=True)
def no_thread_left() -> Iterator[None]:
    """After every test all threads are gone but the one loop that all programs share."""
    before = set(threading.enumerate())
    yield
    for thread in set(threading.enumerate()) - before:
        if thread.name.startswith("radixrt") and thread.name != "radixrt-lang":
            thread.join(HANG_S)
            assert not thread.is_alive(), f"{thread.name} was left behind"
    assert sum(thread.name == "radixrt-lang" for thread in threading.enumerate()) <= 1
