"""The implementations of the kernels room, each of which must pass the same tests."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from radixrt import kernels
from radixrt.kernels import Kernels, instruction_sets
from radixrt.kernels.build import build
from radixrt.kernels.cpu.native import binding as libraries

# The tests of whole models are built like those of the models' own room.
sys.path.append(str(Path(__file__).parents[1] / "models"))

collect_ignore_glob = [] if find_spec("triton") else ["test_triton_*.py"]

RUNGS = [rung.name for rung in instruction_sets.LADDERS[instruction_sets.architecture()]]
"""Instruction sets of this architecture, lowest first."""


@pytest.fixture(scope="session", params=RUNGS)
def target(request: pytest.FixtureRequest) -> Iterator[str]:
    """The library compiled for a rung, in the place of the one for this CPU."""
    rung = next((rung for rung in instruction_sets.available() if rung.name == request.param), None)
    if rung is None:
        pytest.skip("this CPU lacks it")
    path = build(rung)
    if path is None:
        pytest.skip("there is no C++ compiler")
    loaded = libraries.load(path)
    patch = pytest.MonkeyPatch()
    for module in ("ops", "packed", "decoder"):
        patch.setattr(f"radixrt.kernels.cpu.native.{module}.library", lambda: loaded)
    yield request.param
    patch.undo()


@pytest.fixture(scope="session", params=["torch", "composed"])
def plain(request: pytest.FixtureRequest) -> Kernels:
    """The two implementations in torch."""
    return kernels.select("cpu", reference=request.param == "torch", native=False)
