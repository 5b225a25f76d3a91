"""Which number type the model runs in."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from radixrt.errors import StartupError
from radixrt.kernels import instruction_sets

_FLAGS = frozenset({"avx512_bf16", "amx_bf16", "bf16"})
"""As /proc/cpuinfo spells bf16 dot products: x86 (`flags`), and 64-bit Arm (`Features`)."""

CPUINFO = Path("/proc/cpuinfo")


def native_bf16(cpuinfo: Path = CPUINFO) -> bool:
    """Whether this CPU multiplies bfloat16 matrices in hardware; without that, float32 is the faster type.

    Where RADIXRT_CPU names an instruction set, whether that one does. Else only where the operating system lists the
    CPU's features (Linux); elsewhere the answer is the safe False.
    """
    if (cap := instruction_sets.cap()) is not None:
        return cap.bf16
    if not sys.platform.startswith("linux"):
        return False
    try:
        text = cpuinfo.read_text()
    except OSError:
        return False
    for line in text.splitlines():
        name, _, value = line.partition(":")
        if name.strip().lower() in ("flags", "features"):
            return not _FLAGS.isdisjoint(value.split())
    return False


def choose_dtype(name: str, cpuinfo: Path = CPUINFO, device: torch.device | None = None) -> torch.dtype:
    """The torch type for `RunnerConfig.dtype`. Raises StartupError for a name that is not offered."""
    match name:
        case "auto":
            if device is not None and device.type == "cuda":
                return torch.bfloat16 if torch.cuda.is_bf16_supported(including_emulation=False) else torch.float32
            return torch.bfloat16 if native_bf16(cpuinfo) else torch.float32
        case "float32":
            return torch.float32
        case "bfloat16":
            return torch.bfloat16
        case _:
            raise StartupError(f"dtype must be auto, float32 or bfloat16, but is {name!r}", param="dtype")
