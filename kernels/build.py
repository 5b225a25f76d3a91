"""The library for this CPU: one that the installation brought, or one that is compiled now and kept in the cache.

A library is made for one rung of `instruction_sets`, with the flags of that rung and no others: what is compiled for a
lower rung on this machine is what a machine gets that has no higher one. A wheel brings those of the common rungs
(wheel.py), each named after the sources that it was made from, so that one of other sources is never used. From a
source tree the library is compiled when it is first wanted, in two to five seconds, once for each source, compiler,
rung and CPU; the runner begins with it while torch is still being imported, which is why nothing here imports torch.
"""

from __future__ import annotations

import hashlib
import logging
import os
import platform
import sys
import threading
from pathlib import Path

from radixrt.checkpoint.home import home
from radixrt.errors import StartupError
from radixrt.kernels import compiler, instruction_sets
from radixrt.kernels.instruction_sets import InstructionSet

SWITCH = "RADIXRT_NATIVE_KERNELS"
"""Environment variable: 0 keeps to torch's operators."""
PREBUILT = compiler.SOURCES / "prebuilt"
"""Where an installation has the libraries that its wheel brought."""

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
    """The library's file; None where there is none and none can be made, with a warning that says why.

    `rung`: what the library is for. Without one it is this CPU's; where that can be had neither ready nor from a
    compiler, one for a lower rung that was brought serves. `directory`: instead of <cache>/kernels. Safe with other
    threads and processes that do the same. StartupError where RADIXRT_CPU names a rung that this CPU does not have.
    """
    with _one_at_a_time:
        wanted = instruction_sets.current() if rung is None else rung
        if (path := prebuilt(wanted)).exists():
            return path
        path_or_reason = _compiled(wanted, home() / "kernels" if directory is None else directory)
        if isinstance(path_or_reason, Path):
            return path_or_reason
        if rung is None and (lower := _lower(wanted)) is not None:
            _log.warning("%s: kernels for %s are used on a CPU with %s", path_or_reason, rung_of(lower), wanted.name)
            return lower
        _log.warning("%s: plain torch operators are used", path_or_reason)
        return None


def prebuilt(rung: InstructionSet) -> Path:
    """Where a library for the rung is, if a wheel made from these sources brought one."""
    return PREBUILT / compiler.library_name(rung, compiler.source_digest(rung))


def rung_of(path: Path) -> str:
    """The name of the rung that a library of `build` was made for."""
    return path.name.split("-")[1]


def _lower(wanted: InstructionSet) -> Path | None:
    """The best library that was brought for a rung that is lower than `wanted`."""
    rungs = instruction_sets.available()
    found = [path for rung in rungs[: rungs.index(wanted)] if (path := prebuilt(rung)).exists()]
    return found[-1] if found else None


def _compiled(rung: InstructionSet, directory: Path) -> Path | str:
    """The library from the cache, or compiled into it; or why there is none."""
    found = compiler.find()
    if found is None:
        names = ", ".join(compiler.names())
        more = " (Microsoft's compiler cannot make the kernels)" if sys.platform == "win32" else ""
        return f"no C++ compiler found ({names}, or CXX){more}"
    tuning = _tuning()
    path = directory / compiler.library_name(rung, _digest(rung, found, tuning))
    if path.exists():
        return path
    try:
        compiler.compile_to(path, found, rung, tuning)
    except compiler.CompileError as error:
        _log.info("%s", error.output[-4000:])
        return str(error)
    except OSError as error:
        return f"the kernels cannot be compiled ({error})"
    return path


def _tuning() -> tuple[str, ...]:
    """The order of instructions that suits this CPU; which instructions there are is the rung's affair."""
    return ("-mtune=native",) if instruction_sets.architecture() == "x86-64" else ()


def _digest(rung: InstructionSet, path: str, tuning: tuple[str, ...]) -> str:
    """Of all that the library follows from: sources, flags, the compiler, and the CPU that it is tuned for."""
    resolved = Path(path).resolve()
    stat = resolved.stat()
    facts = [compiler.source_digest(rung), tuning, str(resolved), stat.st_size, stat.st_mtime_ns, _cpu()]
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:24]


def _cpu() -> str:
    """Name and features of the CPU."""
    try:
        lines = instruction_sets.CPUINFO.read_text().split("\n\n", 1)[0].splitlines()
    except OSError:
        lines = []
    kept = [line for line in lines if line.split("\t")[0].lower() in ("model name", "flags", "features", "cpu part")]
    return "\n".join([platform.machine(), platform.processor(), *kept])
