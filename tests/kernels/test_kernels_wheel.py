"""What a wheel brings: libraries for the common instruction sets, or none and a warning where nothing can compile."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from zipfile import ZipFile

import pytest

from radixrt.kernels import build as builds
from radixrt.kernels import compiler, instruction_sets

ROOT = Path(__file__).parents[2]
BUILD = "import sys; from setuptools import build_meta; print(build_meta.{}(sys.argv[1]))"


def setuptools_version() -> int:
    try:
        return int(version("setuptools").split(".")[0])
    except PackageNotFoundError:
        return 0


pytestmark = pytest.mark.skipif(setuptools_version() < 77, reason="setuptools cannot build the wheel")


def make(tmp_path: Path, compiler_script: str | None, hook: str = "build_wheel") -> tuple[list[str], str, str]:
    """Names of what is in the wheel, the wheel's name, and what was said. The compiler is a shell script, or absent."""
    tree = tmp_path / "tree"
    tree.mkdir()
    for name in ("radixrt", "kernels", "lang"):
        shutil.copytree(ROOT / name, tree / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tree)
    path = tmp_path / "cxx"
    if compiler_script is not None:
        path.write_text(f"#!/bin/sh\n{compiler_script}\n")
        path.chmod(0o755)
    done = subprocess.run(
        [sys.executable, "-c", BUILD.format(hook), str(tmp_path)],
        cwd=tree, env={**os.environ, "CXX": str(path)}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    (wheel,) = tmp_path.glob("*.whl")
    with ZipFile(wheel) as opened:
        return opened.namelist(), wheel.name, done.stdout + done.stderr


MAKES = 'while [ "$1" != -o ]; do shift; done; echo made > "$2"'


def test_a_wheel_brings_libraries_that_are_found(tmp_path: Path) -> None:
    names, wheel, _ = make(tmp_path, MAKES)
    there = {name.rpartition("/")[2] for name in names if "/prebuilt/" in name}
    ladder = instruction_sets.LADDERS[instruction_sets.architecture()]
    assert there == {builds.prebuilt(rung).name for rung in ladder if rung.name != "portable"}
    assert "-py3-none-" in wheel and "-any" not in wheel
    assert not any(name.startswith(("kernels/", "setup")) for name in names)


def test_an_instruction_set_that_the_compiler_does_not_know_is_left_out(tmp_path: Path) -> None:
    rung = instruction_sets.LADDERS[instruction_sets.architecture()][-1]
    names, _, said = make(tmp_path, f'case "$*" in *" {rung.flags[-1]} "*) exit 1;; esac; {MAKES}')
    assert f"no kernels for {rung.name}" in said
    there = [name for name in names if "/prebuilt/" in name]
    assert there and not any(rung.name in name for name in there)


def test_without_a_compiler_the_wheel_is_for_every_machine(tmp_path: Path) -> None:
    names, wheel, said = make(tmp_path, None)
    assert wheel.endswith("-py3-none-any.whl") and "no C++ compiler" in said
    assert not any("prebuilt" in name for name in names)
    assert "radixrt/kernels/cpu/native/library.cpp" in names


def test_an_editable_install_compiles_nothing(tmp_path: Path) -> None:
    log = tmp_path / "calls"
    make(tmp_path, f"echo call >> {log}; exit 1", "build_editable")
    assert not log.exists()


@pytest.fixture
def brought(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A CPU with AVX2 and AVX-512; where an installation has its libraries; no compiler; an empty cache."""
    ladder = instruction_sets.LADDERS["x86-64"]
    monkeypatch.setattr(instruction_sets, "available", lambda: tuple(ladder[i] for i in (0, 1, 3)))
    monkeypatch.delenv(instruction_sets.VARIABLE, raising=False)
    monkeypatch.setattr(builds, "PREBUILT", tmp_path)
    monkeypatch.setenv("CXX", str(tmp_path / "absent"))
    monkeypatch.setenv("RADIXRT_HOME", str(tmp_path / "home"))
    return tmp_path


def test_what_was_brought_is_used_without_a_compiler(brought: Path, caplog: pytest.LogCaptureFixture) -> None:
    _, avx2, avx512 = instruction_sets.available()
    assert builds.build() is None
    builds.prebuilt(avx2).touch()
    caplog.clear()
    lower = builds.build()
    assert lower is not None and builds.rung_of(lower) == "avx2"
    assert "kernels for avx2 are used on a CPU with avx512" in caplog.text
    builds.prebuilt(avx512).touch()
    caplog.clear()
    assert builds.build() == builds.prebuilt(avx512)
    assert builds.build(avx2) == builds.prebuilt(avx2)
    assert not caplog.records


def test_the_cap_holds_for_what_was_brought(brought: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, avx2, avx512 = instruction_sets.available()
    builds.prebuilt(avx512).touch()
    monkeypatch.setenv(instruction_sets.VARIABLE, "avx2")
    assert builds.build() is None
    builds.prebuilt(avx2).touch()
    assert builds.build() == builds.prebuilt(avx2)


def test_what_was_made_from_other_sources_is_not_used(
    brought: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rung = instruction_sets.available()[-1]
    builds.prebuilt(rung).touch()
    sources = tmp_path / "sources"
    shutil.copytree(compiler.SOURCES, sources)
    monkeypatch.setattr(compiler, "SOURCES", sources)
    assert builds.build() == builds.prebuilt(rung)
    with (sources / "vec.h").open("a") as file:
        file.write("// changed\n")
    assert builds.build() is None
