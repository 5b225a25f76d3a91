"""Memory of a process, with and without /proc."""

from __future__ import annotations

import os

import pytest

from radixrt.grammar import memory


def test_both_ways_to_ask_agree() -> None:
    for field in (0, 1):
        told, asked = memory._statm(os.getpid(), field), memory._asked(os.getpid(), field)
        assert told > 10 * 2**20
        assert told == pytest.approx(asked, rel=0.1)
    assert memory.resident_bytes() == pytest.approx(memory.resident_bytes(os.getpid()), rel=0.1)
    assert memory.virtual_bytes() >= memory.resident_bytes()


def test_a_process_that_is_gone_holds_nothing() -> None:
    assert memory.resident_bytes(2**22 + 12345) == memory.virtual_bytes(2**22 + 12345) == 0
