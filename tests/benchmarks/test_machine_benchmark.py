"""The benchmark of the machine's limits: its C++ code does what it says, on every instruction set that is here."""

from __future__ import annotations

import ctypes
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import machine

from radixrt.kernels import instruction_sets

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")


@pytest.mark.parametrize("rung", instruction_sets.available(), ids=lambda rung: rung.name)
def test_what_is_read_and_copied_is_all_of_it(rung: instruction_sets.InstructionSet) -> None:
    library = machine.compiled(rung.flags)
    words = np.random.default_rng(0).integers(0, 2**40, 3 * 8192, dtype=np.uint64)
    copy = np.zeros_like(words)
    source, target = ctypes.c_void_p(words.ctypes.data), ctypes.c_void_p(copy.ctypes.data)
    for threads in (1, 2, 5):
        assert library.read_words(source, ctypes.c_int64(len(words)), threads) == words.sum()
        copy[:] = 0
        library.copy_bytes(target, source, ctypes.c_int64(words.nbytes), threads)
        assert np.array_equal(copy, words)


def test_every_limit_is_a_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "BYTES", 2**20)
    monkeypatch.setattr(machine, "TURNS", 1000)
    rung = instruction_sets.current()
    found = machine.limits(machine.compiled(rung.flags), threads=2)
    assert {"read, GB/s", "copy, GB/s", "float32 multiply-adds, G/s"} <= set(found)
    assert all(rate > 0 for rate in found.values())
