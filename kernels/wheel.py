"""How a wheel is built: it brings the compiled kernels for the common instruction sets (pyproject.toml: cmdclass).

Where there is no C++ compiler, the wheel is one of pure Python, and a warning says so.
"""

from __future__ import annotations

import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

sys.path.insert(0, str(Path(__file__).parents[1]))
# radixrt's dependencies are not there when it is built: these two modules need the standard library alone.
from kernels import compiler, instruction_sets

RUNGS = [
    "avx2", "avx_vnni", "avx512", "avx512_vnni", "avx512_bf16",
    "neon", "neon_dotprod", "neon_i8mm", "neon_bf16",
]  # fmt: skip
"""Compiled for a wheel, of those that the machine's architecture has. CPUs below avx2 are too slow to run models on."""


class BuildPython(build_py):
    """The package's files, and with them the libraries for all rungs."""

    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            self.compile_kernels(Path(self.build_lib) / "radixrt" / "kernels" / "cpu" / "native" / "prebuilt")

    def compile_kernels(self, directory: Path) -> None:
        rungs = [rung for rung in instruction_sets.LADDERS[instruction_sets.architecture()] if rung.name in RUNGS]
        names = {compiler.library_name(rung, compiler.source_digest(rung)): rung for rung in rungs}
        # An earlier build may have left libraries here: of these sources, or of others.
        for path in directory.glob("*"):
            if names.pop(path.name, None) is None:
                path.unlink()
        found = compiler.find()
        if found is None:
            self.warn("no C++ compiler: the wheel brings no compiled kernels, and they are compiled at the first start")
            return
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(lambda name: self.compile_one(directory / name, found, names[name]), names))

    def compile_one(self, path: Path, found: str, rung: instruction_sets.InstructionSet) -> None:
        try:
            compiler.compile_to(path, found, rung)
        except (compiler.CompileError, OSError) as error:
            self.warn(f"the wheel brings no kernels for {rung.name}: {error}")


class BuildWheel(bdist_wheel):
    """For one kind of machine, where the libraries can be compiled. They are called through ctypes, so that they fit
    every version of Python."""

    def initialize_options(self) -> None:
        super().initialize_options()
        # What setuptools asks when it decides whether a distribution is for every machine.
        self.distribution.has_ext_modules = lambda: compiler.find() is not None

    def get_tag(self) -> tuple[str, str, str]:
        python, abi, machine = super().get_tag()
        return (python, abi, machine) if self.root_is_pure else ("py3", "none", machine)
