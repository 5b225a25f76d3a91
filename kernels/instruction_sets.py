"""The instruction sets that the compiled kernels are made for, and which of them this CPU has; no torch.

Each is a rung of a ladder: a later one has what an earlier one has, or something better in its place. The library is
compiled for one rung (build.py) and chosen by `current()`: the highest that this CPU has, or the one that RADIXRT_CPU
names, so that each rung can be tested and measured on a machine that has a higher one.
"""

from __future__ import annotations

import ctypes
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

VARIABLE = "RADIXRT_CPU"
"""Environment variable: the name of the rung to use instead of the highest."""
CPUINFO = Path("/proc/cpuinfo")


@dataclass(frozen=True)
class InstructionSet:
    """One rung. `flags`: what the compiler is given; `needs`: CPU features, as Linux's /proc/cpuinfo spells them."""

    name: str
    flags: tuple[str, ...]
    needs: frozenset[str]
    bf16: bool = False
    """Whether it multiplies bfloat16 in hardware."""


def _ladder(*rungs: tuple[str, tuple[str, ...], str]) -> tuple[InstructionSet, ...]:
    """Rungs as (name, flags, features that the rung before it does not need)."""
    needs: frozenset[str] = frozenset()
    made = []
    for name, flags, more in rungs:
        # AVX-VNNI is no part of AVX-512: servers of the first four generations of AVX-512 lack it.
        needs = (needs - {"avx_vnni"}) | set(more.split())
        made.append(InstructionSet(name, flags, needs, name.endswith("_bf16")))
    return tuple(made)


_V4 = "-march=x86-64-v4"
LADDERS = {
    "x86-64": _ladder(
        ("portable", ("-march=x86-64",), ""),
        ("avx2", ("-march=x86-64-v3",), "avx avx2 bmi1 bmi2 f16c fma abm movbe"),
        ("avx_vnni", ("-march=x86-64-v3", "-mavxvnni"), "avx_vnni"),
        ("avx512", (_V4,), "avx512f avx512bw avx512cd avx512dq avx512vl"),
        ("avx512_vnni", (_V4, "-mavx512vnni"), "avx512_vnni"),
        ("avx512_bf16", (_V4, "-mavx512vnni", "-mavx512bf16"), "avx512_bf16"),
    ),
    "arm64": _ladder(
        ("neon", ("-march=armv8-a",), ""),
        ("neon_dotprod", ("-march=armv8.2-a+dotprod",), "asimddp"),
        ("neon_i8mm", ("-march=armv8.2-a+dotprod+i8mm",), "i8mm"),
        ("neon_bf16", ("-march=armv8.2-a+dotprod+i8mm+bf16",), "bf16"),
    ),
    "other": _ladder(("portable", (), "")),
}


def architecture(machine: str | None = None) -> str:
    """The key of LADDERS for a machine's name as `platform.machine` gives it; this machine's without one."""
    name = (platform.machine() if machine is None else machine).lower()
    if name in ("x86_64", "amd64"):
        return "x86-64"
    return "arm64" if name in ("aarch64", "arm64") else "other"


@cache
def available() -> tuple[InstructionSet, ...]:
    """The rungs that this CPU can run, lowest first; at least one."""
    features = cpu_features()
    return tuple(rung for rung in LADDERS[architecture()] if rung.needs <= features)


def current(environ: Mapping[str, str] = os.environ) -> InstructionSet:
    """The rung to use. StartupError where RADIXRT_CPU names one that is unknown, or that this CPU lacks."""
    return cap(environ) or available()[-1]


def cap(environ: Mapping[str, str] = os.environ) -> InstructionSet | None:
    """The rung that RADIXRT_CPU names; None where it is not set. StartupError as `current`."""
    name = environ.get(VARIABLE, "").strip()
    if not name:
        return None
    rungs = available()
    for rung in rungs:
        if rung.name == name:
            return rung
    from radixrt.errors import StartupError  # here, for wheel.py uses this module where radixrt cannot be imported

    known = any(rung.name == name for ladder in LADDERS.values() for rung in ladder)
    fault = "is not an instruction set that this CPU has" if known else "is no instruction set that is known"
    raise StartupError(f"{VARIABLE}={name} {fault}; here it may be {', '.join(rung.name for rung in rungs)}")


def torch_environment(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Variables that hold torch's own operators to the rung that RADIXRT_CPU names; none where it is not set.

    They count in a process that has not imported torch. What the user has set is left as it is.
    """
    rung = cap(environ)
    ours = {} if rung is None else _TORCH.get(rung.name, {})
    return {name: value for name, value in ours.items() if name not in environ}


def _torch(aten: str, onednn: str, mkl: str) -> dict[str, str]:
    return {"ATEN_CPU_CAPABILITY": aten, "ONEDNN_MAX_CPU_ISA": onednn, "MKL_ENABLE_INSTRUCTIONS": mkl}


_TORCH = {
    "portable": _torch("default", "SSE41", "SSE4_2"),
    "avx2": _torch("avx2", "AVX2", "AVX2"),
    "avx_vnni": _torch("avx2", "AVX2_VNNI", "AVX2"),
    "avx512": _torch("avx512", "AVX512_CORE", "AVX512"),
    "avx512_vnni": _torch("avx512", "AVX512_CORE_VNNI", "AVX512"),
}


def cpu_features() -> frozenset[str]:
    """What this CPU has, as Linux spells it. Empty where the operating system cannot be asked.

    Linux: /proc/cpuinfo. macOS: sysctl. Windows tells of AVX2 and of Arm's dot products, but of no kind of AVX-512 that
    the ladder has: AVX2 is the highest rung there.
    """
    if sys.platform == "darwin":
        return _of_sysctl(_sysctl())
    if sys.platform == "win32":
        return _of_windows(_windows_has, architecture())
    try:
        return _of_cpuinfo(CPUINFO.read_text())
    except OSError:
        return frozenset()


def _of_cpuinfo(text: str) -> frozenset[str]:
    """What all cores have: those of one Arm chip may differ."""
    cores = []
    for line in text.splitlines():
        name, _, value = line.partition(":")
        if name.strip().lower() in ("flags", "features"):
            cores.append(frozenset(value.split()))
    return frozenset.intersection(*cores) if cores else frozenset()


def _sysctl() -> str:
    try:
        done = subprocess.run(
            ["/usr/sbin/sysctl", "machdep.cpu", "hw.optional"], capture_output=True, text=True, timeout=10, check=False
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout


_SYSCTL_NAMES = {
    "avx1.0": "avx",
    "lzcnt": "abm",
    "avx512vnni": "avx512_vnni",
}
_SYSCTL_ARM = {
    "hw.optional.arm.FEAT_DotProd": "asimddp",
    "hw.optional.arm.FEAT_I8MM": "i8mm",
    "hw.optional.arm.FEAT_BF16": "bf16",
}


def _of_sysctl(text: str) -> frozenset[str]:
    """Of `sysctl machdep.cpu hw.optional`: Intel's as lists of words, Apple's as a line of 0 or 1 each."""
    found = set()
    for line in text.splitlines():
        name, _, value = line.partition(":")
        if name in _SYSCTL_ARM and value.strip() == "1":
            found.add(_SYSCTL_ARM[name])
        elif name.startswith("machdep.cpu.") and name.endswith("features"):
            found |= {_SYSCTL_NAMES.get(word, word) for word in value.lower().split()}
    return frozenset(found)


_WINDOWS_FEATURES: dict[str, dict[int, Iterable[str]]] = {
    # AVX2 came with all else that x86-64-v3 asks for, in every CPU that Windows runs on.
    "x86-64": {40: LADDERS["x86-64"][1].needs},
    "arm64": {43: ["asimddp"], 66: ["i8mm"], 68: ["bf16"]},
}
"""Numbers of IsProcessorFeaturePresent (winnt.h, PF_...)."""


def _of_windows(has: Callable[[int], bool], architecture: str) -> frozenset[str]:
    numbers = _WINDOWS_FEATURES.get(architecture, {})
    return frozenset(name for number, names in numbers.items() if has(number) for name in names)


def _windows_has(number: int) -> bool:
    return bool(ctypes.windll.kernel32.IsProcessorFeaturePresent(number))  # type: ignore[attr-defined]
