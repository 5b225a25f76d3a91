"""The C++ compiler that makes the library: which one, with which flags, into which file.

The standard library alone, for wheel.py runs this where nothing else of radixrt can be imported.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from radixrt.kernels.instruction_sets import InstructionSet

SOURCES = Path(__file__).parent / "cpu" / "native"
TIMEOUT_S = 120.0
# GNU's compiler, tuned for some CPUs, rounds twice where sums wait for each other, in some copies of a loop and not in
# others: a row's numbers would depend on its company. The last flag forbids it; clang takes no notice of it.
_FLAGS = ("-std=c++17", "-O2", "-shared", "-fvisibility=hidden", "-Wno-psabi", "--param=avoid-fma-max-bits=0")


class CompileError(Exception):
    """The compiler gave no library. `output`: what it said."""

    def __init__(self, message: str, output: str = "") -> None:
        super().__init__(message)
        self.output = output


def names(platform: str | None = None) -> tuple[str, ...]:
    """The compilers that are looked for, the first that is there is taken; CXX comes before them.

    On Windows clang++ alone: GNU's compiler does not align vectors of 32 bytes on the stack there (its bug 54412), and
    Microsoft's knows no vectors of the GNU kind, which the sources are written in.
    """
    return ("clang++",) if (platform or sys.platform) == "win32" else ("g++", "c++", "clang++")


def find(environ: Mapping[str, str] = os.environ) -> str | None:
    """The compiler's path; None where there is none. CXX names the only one that will do."""
    wanted = environ.get("CXX", "").split()
    return next((found for name in wanted[:1] or names() if (found := shutil.which(name))), None)


def suffix(platform: str | None = None) -> str:
    """How a library's file ends. Python's ctypes takes any name; debuggers and antivirus programs do not."""
    return {"darwin": ".dylib", "win32": ".dll"}.get(platform or sys.platform, ".so")


def flags(rung: InstructionSet, platform: str | None = None) -> tuple[str, ...]:
    """What the compiler is given besides the source and the output."""
    system: tuple[str, ...]
    match platform or sys.platform:
        case "darwin":
            # Apple's compiler knows OpenMP but brings no library of it: the symbols are those of the libomp that torch
            # has loaded.
            system = ("-fPIC", "-Xpreprocessor", "-fopenmp", "-undefined", "dynamic_lookup")
        case "win32":
            system = ("-fopenmp",)
        case _:
            system = ("-fPIC", "-fopenmp")
    return (*_FLAGS, *system, *rung.flags)


def library_name(rung: InstructionSet, digest: str) -> str:
    """What a library's file is called. `digest`: of what it was made from."""
    return f"radixrt-{rung.name}-{digest}{suffix()}"


def source_digest(rung: InstructionSet, platform: str | None = None) -> str:
    """Of the sources and the flags: what a library has to be made from to fit this version of the code."""
    digest = hashlib.sha256()
    for path in sorted([*SOURCES.glob("*.cpp"), *SOURCES.glob("*.h")]):
        digest.update(path.read_bytes())
    digest.update(repr(flags(rung, platform)).encode())
    return digest.hexdigest()[:24]


def compile_to(path: Path, compiler: str, rung: InstructionSet, more: tuple[str, ...] = ()) -> None:
    """Make the library `path`, which appears only when it is whole. CompileError, or OSError of the file system."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as scratch:
        made = Path(scratch) / path.name
        command = [compiler, *flags(rung), *more, "-o", str(made), str(SOURCES / "library.cpp")]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, errors="replace", timeout=TIMEOUT_S, stdin=subprocess.DEVNULL
            )
        except subprocess.TimeoutExpired as error:
            raise CompileError(f"{compiler} takes longer than {TIMEOUT_S:g} s") from error
        if done.returncode != 0:
            raise CompileError(f"the kernels do not compile with {compiler}", done.stderr)
        os.replace(made, path)
