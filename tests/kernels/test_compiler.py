"""How the compiler is found and called on each operating system; what this machine is not is mocked."""

from __future__ import annotations

import ctypes
import logging
from pathlib import Path

import pytest

from radixrt.kernels import build as builds
from radixrt.kernels import compiler, instruction_sets
from radixrt.kernels.cpu.native import binding

V3 = instruction_sets.LADDERS["x86-64"][1]


def test_the_flags_of_each_system() -> None:
    linux, mac, windows = (compiler.flags(V3, name) for name in ("linux", "darwin", "win32"))
    for flags in (linux, mac, windows):
        assert flags[-len(V3.flags) :] == V3.flags and "-shared" in flags
        assert not any(flag.endswith("=native") for flag in flags)
    assert "-fopenmp" in linux and "-fPIC" in linux
    # Apple's clang++ takes OpenMP in two words, and finds the functions in the library that torch has loaded.
    assert mac[mac.index("-fopenmp") - 1] == "-Xpreprocessor" and mac[mac.index("-undefined") + 1] == "dynamic_lookup"
    # Code for Windows always lies where it is loaded to.
    assert "-fPIC" not in windows


@pytest.mark.parametrize(("platform", "suffix"), [("linux", ".so"), ("darwin", ".dylib"), ("win32", ".dll")])
def test_names_of_libraries(platform: str, suffix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert compiler.suffix(platform) == suffix
    monkeypatch.setattr(compiler.sys, "platform", platform)
    path = Path(compiler.library_name(V3, "0123"))
    assert builds.rung_of(path) == "avx2"


def test_the_compiler_that_is_there_first_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert compiler.find({}) is None
    for name in ("clang++", "c++", "g++"):
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
        assert compiler.find({}) == str(tmp_path / name)
    assert compiler.find({"CXX": "clang++ -v"}) == str(tmp_path / "clang++")
    assert compiler.find({"CXX": "absent"}) is None  # a compiler that is named is the only one tried
    assert compiler.names("win32") == ("clang++",)


def test_windows_is_told_which_compiler_will_not_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("CXX", str(tmp_path / "absent"))
    monkeypatch.setattr(builds, "PREBUILT", tmp_path)
    monkeypatch.setattr(builds.sys, "platform", "win32")
    with caplog.at_level(logging.WARNING):
        assert builds.build(V3, directory=tmp_path) is None
    assert "clang++" in caplog.text and "Microsoft" in caplog.text


def test_openmp_on_macos_is_torchs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = []
    monkeypatch.setattr(binding.ctypes, "CDLL", lambda path, mode: loaded.append((Path(path).name, mode)))
    for name in ("libomp.dylib", "libtorch_cpu.dylib"):
        (tmp_path / name).touch()
    binding.share_openmp(tmp_path)
    assert loaded == [("libomp.dylib", ctypes.RTLD_GLOBAL)]


def test_a_compiler_that_is_too_slow_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = tmp_path / "cxx"
    slow.write_text("#!/bin/sh\nexec sleep 60\n")
    slow.chmod(0o755)
    monkeypatch.setattr(compiler, "TIMEOUT_S", 0.1)
    with pytest.raises(compiler.CompileError, match="longer than"):
        compiler.compile_to(tmp_path / "out" / "library.so", str(slow), V3)
    assert list((tmp_path / "out").iterdir()) == []
