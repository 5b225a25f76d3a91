"""The trio's watch over its processes, here three that do nothing."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest

import radixrt
from radixrt import launch
from radixrt.config import EngineConfig, TokenizerConfig
from tests.waiting import HANG_S


def _idle(*_: Any) -> subprocess.Popen[bytes]:
    return subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, bufsize=0)


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
        assert first.wait(HANG_S)
        for thread in set(threading.enumerate()) - others:
            thread.join(HANG_S)
        assert told == [("scheduler", -9, True)]
        assert not trio.alive
    finally:
        trio.stop()


def test_a_runner_that_was_started_ahead_becomes_the_engine_s(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    started: list[str] = []

    def spawn(module: str, extra: dict[str, str]) -> subprocess.Popen[bytes]:
        started.append(module)
        return _idle()

    monkeypatch.setattr(launch, "_spawn", spawn)
    ahead = launch.spawn_runner(2)
    trio = launch.Trio(EngineConfig(model=str(tmp_path)), tmp_path, lambda name, code: None, None, ahead)
    try:
        assert trio.processes["runner"] is ahead
        assert sorted(started) == ["radixrt.runner", "radixrt.scheduler", "radixrt.tokenizer"]
    finally:
        trio.stop()
    assert ahead.returncode == 0
    launch.dismiss(ahead)


def test_a_runner_without_an_engine_ends_with_its_stdin() -> None:
    ahead = launch.spawn_runner(1)
    launch.dismiss(ahead)
    assert ahead.returncode == 0


def test_a_process_that_ends_before_it_has_read_its_config_is_a_death_like_another(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A config larger than a pipe holds, so that some of it is still to be written when the process has ended."""
    monkeypatch.setattr(launch.sys, "executable", "/bin/true")
    told = threading.Event()
    config = EngineConfig(model=str(tmp_path), namespace_weights={f"{i:09}": 1.0 for i in range(20_000)})
    trio = launch.Trio(config, tmp_path, lambda name, code: told.set(), None)
    assert told.wait(HANG_S)
    trio.stop()
    trio.stop()


def test_a_process_whose_engine_has_ended_says_nothing(tiny_path: Path, tmp_path: Path) -> None:
    """It reads its config when the directory of its sockets is gone already."""
    gone = tmp_path / "gone"
    config = TokenizerConfig(
        model_path=str(tiny_path), model_name="tiny", tokenizer=None, chat_template=None,
        client_address=f"ipc://{gone}/client", scheduler_in=f"ipc://{gone}/in", scheduler_out=f"ipc://{gone}/out",
        ipc_dir=str(gone), log_level="warning",
    )  # fmt: skip
    command = [sys.executable, "-P", "-m", "radixrt.tokenizer"]
    environment = {**os.environ, "PYTHONPATH": str(Path(radixrt.__file__).parents[1])}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, env=environment) as process:
        assert process.stdin is not None and process.stderr is not None
        process.stdin.write(msgspec.json.encode(config) + b"\n")
        process.stdin.flush()
        assert (process.wait(HANG_S), process.stderr.read()) == (0, b"")
