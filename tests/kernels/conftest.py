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
from radixrt.kernels.instruction_sets import InstructionSet

# The tests of whole models are built like those of the models' own room.
sys.path.append(str(Path(__file__).parents[1] / "models"))

collect_ignore_glob = [] if find_spec("triton") else ["test_triton_*.py"]

RUNGS = [rung.name for rung in instruction_sets.LADDERS[instruction_sets.architecture()]]
"""Instruction sets of this architecture, lowest first."""


def runnable(name: str) -> InstructionSet | None:
    """The rung, where this CPU can run its code.

    AVX-VNNI is AVX-512's byte product in another encoding: the code that is written for it can be compiled to the one
    that this CPU has, with the compiler told to hide the rest of AVX-512 from that code.
    """
    rungs = {rung.name: rung for rung in instruction_sets.available()}
    if name == "avx_vnni" and name not in rungs and "avx512_vnni" in rungs:
        hidden = ("F", "BW", "CD", "DQ", "VL", "VNNI")
        flags = [f"-U__AVX512{part}__" for part in hidden]
        same = {f"_mm256_{name}_avx_epi32": f"_mm256_{name}_epi32" for name in ("dpbusd", "dpbusds", "dpwssd")}
        flags += ["-D__AVXVNNI__=1", *(f"-D{old}={new}" for old, new in same.items())]
        return InstructionSet(name, (*rungs["avx512_vnni"].flags, *flags), frozenset())
    return rungs.get(name)


@pytest.fixture(scope="session", params=RUNGS)
def target(request: pytest.FixtureRequest) -> Iterator[str]:
    """The library compiled for a rung, in the place of the one for this CPU."""
    rung = runnable(request.param)
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
