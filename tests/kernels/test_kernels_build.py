"""Compiling the library: once, whole, and without breaking anything where it cannot be done."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from radixrt import kernels
from radixrt.kernels import build as builds
from radixrt.kernels import compiler, cpu
from radixrt.kernels.cpu.native import binding as libraries
from radixrt.kernels.instruction_sets import InstructionSet


@pytest.fixture(autouse=True)
def _forget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> object:
    monkeypatch.setattr(builds, "PREBUILT", tmp_path / "prebuilt")
    libraries.library.cache_clear()
    yield
    libraries.library.cache_clear()


def fake_compiler(path: Path, script: str) -> str:
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


def test_it_is_compiled_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "calls"
    script = f'echo call >> {log}; while [ "$1" != -o ]; do shift; done; echo made > "$2"'
    monkeypatch.setenv("CXX", fake_compiler(tmp_path / "cxx", script))
    first = builds.build(directory=tmp_path / "cache")
    assert first is not None and first.read_text() == "made\n"
    assert builds.build(directory=tmp_path / "cache") == first
    assert log.read_text() == "call\n"
    assert [path.name for path in (tmp_path / "cache").iterdir()] == [first.name]
    rung = InstructionSet("another", ("-DANOTHER",), frozenset())
    assert builds.build(rung, directory=tmp_path / "cache") not in (None, first)


@pytest.mark.parametrize(
    ("script", "message"), [(None, "no C++ compiler"), ("exit 1", "do not compile"), ("echo x > $0", "loaded")]
)
def test_without_it_the_operators_of_torch_are_used(
    script: str | None, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """No compiler; one that fails; one that makes something that is no library."""
    if script is not None and message == "loaded":
        script = 'while [ "$1" != -o ]; do shift; done; echo made > "$2"'
    compiler = str(tmp_path / "absent") if script is None else fake_compiler(tmp_path / "cxx", script)
    monkeypatch.setenv("CXX", compiler)
    monkeypatch.setenv("RADIXRT_HOME", str(tmp_path / "home"))
    with caplog.at_level(logging.WARNING):
        assert kernels.select("cpu") is cpu
        assert kernels.select("cpu") is cpu
    assert len(caplog.records) == 1 and message in caplog.text  # said once


def test_a_cache_that_cannot_be_written_is_no_error(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("not a directory")
    if compiler.find() is None:
        pytest.skip("there is no C++ compiler")
    assert builds.build(directory=tmp_path / "file" / "kernels") is None
    assert "cannot be compiled" in caplog.text


def test_the_switch_turns_it_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(libraries.SWITCH, "0")
    assert kernels.select("cpu") is cpu
