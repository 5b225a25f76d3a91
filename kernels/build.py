"""The library is compiled when it is first wanted, for the CPU that runs it, and kept in the cache directory.

It is compiled for one rung of `instruction_sets`, with the flags of that rung and no others: what is compiled for a
lower rung on this machine is what a machine gets that has no higher one. It takes two to five seconds, once for each
source, compiler, rung and CPU; the runner begins with it while torch is still being imported, which is why nothing here
imports torch.
"""

from __future__ import annotations

import hashlib
import logging
import os
import platform
import shutil
import subprocess
import tempfile
import threading
from pathlib import Path

from radixrt.checkpoint.home import home
from radixrt.errors import StartupError
from radixrt.kernels import instruction_sets
from radixrt.kernels.instruction_sets import InstructionSet

SOURCES = Path(__file__).parent / "cpu" / "native"
FLAGS = ("-std=c++17", "-O2", "-fopenmp", "-shared", "-fPIC", "-fvisibility=hidden", "-Wno-psabi")
COMPILERS = ("g++", "c++", "clang++")
TIMEOUT_S = 120.0
SWITCH = "RADIXRT_NATIVE_KERNELS"
"""Environment variable: 0 keeps to torch's operators."""

_log = logging.getLogger(__name__)
_one_at_a_time = threading.Lock()


def build_ahead() -> None:
    """Begin to compile in a thread, unless that is switched off; a caller of `build` then waits for it."""
    if os.environ.get(SWITCH) != "0":
        threading.Thread(target=_ahead, name="kernels", daemon=True).start()


def _ahead() -> None:
    try:
        build()
    except StartupError as error:  # the caller of `build` gets it too, and reports it
        _log.debug("%s", error)


def build(rung: InstructionSet | None = None, *, directory: Path | None = None) -> Path | None:
    """The compiled library's file; None where it cannot be made, with a warning that says why.

    `rung`: what to compile for, this CPU's without one; `directory`: instead of <cache>/kernels. Safe with other
    threads and processes that do the same: a file appears under its name only when it is whole. StartupError where
    RADIXRT_CPU names a rung that this CPU does not have.
    """
    with _one_at_a_time:
        return _build(instruction_sets.current() if rung is None else rung, directory)


def _build(rung: InstructionSet, directory: Path | None) -> Path | None:
    compiler = _compiler()
    if compiler is None:
        _log.warning("no C++ compiler found (%s, or CXX): plain torch operators are used", ", ".join(COMPILERS))
        return None
    directory = home() / "kernels" if directory is None else directory
    command = [compiler, *FLAGS, *rung.flags, *_tuning()]
    path = directory / f"radixrt-{rung.name}-{_digest(command)}.so"
    if path.exists():
        return path
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=directory) as scratch:
            made = Path(scratch) / path.name
            done = subprocess.run(
                [*command, "-o", str(made), str(SOURCES / "library.cpp")],
                capture_output=True, text=True, timeout=TIMEOUT_S, stdin=subprocess.DEVNULL,
            )  # fmt: skip
            if done.returncode != 0:
                _log.warning("the kernels do not compile with %s: plain torch operators are used", compiler)
                _log.info("%s", done.stderr[-4000:])
                return None
            os.replace(made, path)
    except (OSError, subprocess.SubprocessError) as error:
        _log.warning("the kernels cannot be compiled: plain torch operators are used (%s)", error)
        return None
    return path


def _compiler() -> str | None:
    wanted = os.environ.get("CXX", "").split()
    for name in wanted[:1] or COMPILERS:
        if found := shutil.which(name):
            return found
    return None


def _tuning() -> list[str]:
    """The order of instructions that suits this CPU; which instructions there are is the rung's affair."""
    return ["-mtune=native"] if instruction_sets.architecture() == "x86-64" else []


def _digest(command: list[str]) -> str:
    """Of all that the library follows from: source, compiler, flags, and the CPU that it is tuned for."""
    digest = hashlib.sha256()
    for path in sorted([*SOURCES.glob("*.cpp"), *SOURCES.glob("*.h")]):
        digest.update(path.read_bytes())
    compiler = Path(command[0]).resolve()
    stat = compiler.stat()
    facts = [*command, str(compiler), stat.st_size, stat.st_mtime_ns, _cpu()]
    digest.update(repr(facts).encode())
    return digest.hexdigest()[:24]


def _cpu() -> str:
    """Name and features of the CPU."""
    try:
        lines = instruction_sets.CPUINFO.read_text().split("\n\n", 1)[0].splitlines()
    except OSError:
        lines = []
    kept = [line for line in lines if line.split("\t")[0].lower() in ("model name", "flags", "features", "cpu part")]
    return "\n".join([platform.machine(), platform.processor(), *kept])
