"""The library is compiled when it is first wanted, for the CPU that runs it, and kept in the cache directory.

No build step at install: a clone, an editable install and a wheel are the same, a wheel serves every machine, and the
compiler may use all that this CPU can do. It takes two to five seconds, once for each source, compiler and CPU; the
runner begins with it while torch is still being imported, which is why nothing here imports torch.
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

SOURCES = Path(__file__).parent / "cpu" / "native"
FLAGS = ("-std=c++17", "-O2", "-fopenmp", "-shared", "-fPIC", "-fvisibility=hidden", "-Wno-psabi")
COMPILERS = ("g++", "c++", "clang++")
TIMEOUT_S = 120.0
SWITCH = "RADIXRT_NATIVE_KERNELS"
"""Environment variable: 0 keeps to torch's operators."""

_log = logging.getLogger(__name__)
_one_at_a_time = threading.Lock()


def build_ahead() -> None:
    """Begin to compile in a thread, unless that is switched off; whoever calls `build` then waits for it."""
    if os.environ.get(SWITCH) != "0":
        threading.Thread(target=build, name="kernels", daemon=True).start()


def build(target: str = "native", *, directory: Path | None = None) -> Path | None:
    """The compiled library's file; None where it cannot be made, with a warning that says why.

    `target`: the CPU to compile for, as -march takes it. `directory`: instead of <cache>/kernels. Safe with other
    threads and processes that do the same: a file appears under its name only when it is whole.
    """
    with _one_at_a_time:
        return _build(target, directory)


def _build(target: str, directory: Path | None) -> Path | None:
    compiler = _compiler()
    if compiler is None:
        _log.warning("no C++ compiler found (%s, or CXX): plain torch operators are used", ", ".join(COMPILERS))
        return None
    directory = home() / "kernels" if directory is None else directory
    command = [compiler, *FLAGS, _march(target)]
    path = directory / f"radixrt-{_digest(command, target)}.so"
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


def _march(target: str) -> str:
    # 64-bit Arm compilers spell "this machine" otherwise.
    return "-mcpu=native" if target == "native" and platform.machine() in ("aarch64", "arm64") else f"-march={target}"


def _digest(command: list[str], target: str) -> str:
    """Of all that the library follows from: source, compiler, flags, and the CPU where it is compiled for that."""
    digest = hashlib.sha256()
    for path in sorted([*SOURCES.glob("*.cpp"), *SOURCES.glob("*.h")]):
        digest.update(path.read_bytes())
    compiler = Path(command[0]).resolve()
    stat = compiler.stat()
    facts = [*command, str(compiler), stat.st_size, stat.st_mtime_ns, _cpu() if target == "native" else ""]
    digest.update(repr(facts).encode())
    return digest.hexdigest()[:24]


def _cpu() -> str:
    """Name and abilities of the CPU."""
    try:
        lines = Path("/proc/cpuinfo").read_text().split("\n\n", 1)[0].splitlines()
    except OSError:
        lines = []
    kept = [line for line in lines if line.split("\t")[0].lower() in ("model name", "flags", "features", "cpu part")]
    return "\n".join([platform.machine(), platform.processor(), *kept])
