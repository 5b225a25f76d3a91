"""The implementations of the kernels room, each of which must pass the same tests."""

from __future__ import annotations

import platform
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from radixrt import kernels
from radixrt.kernels import Kernels
from radixrt.kernels.build import build
from radixrt.kernels.cpu.native import binding as libraries

# The tests of whole models are built like those of the models' own room.
sys.path.append(str(Path(__file__).parents[1] / "models"))

collect_ignore_glob = [] if find_spec("triton") else ["test_triton_*.py"]

TARGETS = ["native", "x86-64-v3", "x86-64"]
"""Compiled for this CPU; for AVX2; for any x86-64, where the code is the one that other architectures get."""


@pytest.fixture(scope="session", params=TARGETS)
def target(request: pytest.FixtureRequest) -> Iterator[str]:
    """The library compiled for a target, in the place of the one for this CPU."""
    if request.param != "native" and platform.machine() != "x86_64":
        pytest.skip("it is a target for x86-64")
    path = build(request.param)
    if path is None:
        pytest.skip("there is no C++ compiler")
    loaded = libraries.load(path)
    if request.param == "x86-64-v3" and "avx2" not in Path("/proc/cpuinfo").read_text():
        pytest.skip("this CPU lacks AVX2")
    patch = pytest.MonkeyPatch()
    for module in ("ops", "packed", "decoder"):
        patch.setattr(f"radixrt.kernels.cpu.native.{module}.library", lambda: loaded)
    yield request.param
    patch.undo()


@pytest.fixture(scope="session", params=["torch", "composed"])
def plain(request: pytest.FixtureRequest) -> Kernels:
    """The two implementations in torch."""
    return kernels.select("cpu", reference=request.param == "torch", native=False)
