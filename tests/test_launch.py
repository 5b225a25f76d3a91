"""The trio's watch over its processes, here three that do nothing."""

from __future__ import annotations

import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest

from radixrt import launch
from radixrt.config import EngineConfig


def _idle(*_: Any) -> subprocess.Popen[bytes]:
    return subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)


def test_a_death_is_told_before_the_trio_looks_dead_and_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(launch, "_spawn", _idle)
    told: list[tuple[str, int, bool]] = []
    first = threading.Event()

    def died(name: str, code: int) -> None:
        told.append((name, code, trio.alive))  # whoever saw it dead here could close it before its requests are told
        for process in trio.processes.values():
            process.kill()
        first.set()

    others = set(threading.enumerate())
    trio = launch.Trio(EngineConfig(model=str(tmp_path)), tmp_path, died, None)
    try:
        assert trio.alive
        trio.processes["scheduler"].kill()
        assert first.wait(10)
        for thread in set(threading.enumerate()) - others:
            thread.join(10)
        assert told == [("scheduler", -9, True)]
        assert not trio.alive
    finally:
        trio.stop()
