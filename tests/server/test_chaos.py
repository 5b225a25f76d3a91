"""A run of `benchmarks/chaos.py`: mixed load on a real server whose processes are killed one after another."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import chaos
from chaos_kinds import KINDS
from chaos_report import show


def test_chaos(tiny_path: Path, tmp_path: Path, long: bool) -> None:
    """`--long`: on a tiny model, which does thousands of requests in two minutes."""
    if not long:
        pytest.skip("takes two minutes: --long")
    report = chaos.run(str(tiny_path), minutes=2.0, clients=64, log=tmp_path / "server.log")
    assert not report.faults, show(report)
    assert set(report.counts) == {kind.__name__ for kind in KINDS}
    assert {outage.victim for outage in report.outages} == set(chaos.VICTIMS)
    assert all(outage.ended is not None for outage in report.outages)
    assert all(outage.noticed < 5 for outage in report.outages)
    assert sum(report.counts.values()) - report.explained > 100, show(report)
