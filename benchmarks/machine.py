"""What this machine can do at most, to state beside a figure: memory, multiply-adds, and the packed products.

    python benchmarks/machine.py [--threads 2] [--cpu avx2]

Reading and copying move memory that no cache holds, as a step of one row does with the weights: bytes / GB/s bounds its
time. Multiply-adds run in registers alone, as the products of a wide step would at best. The 4-bit product is the
library's own, in the shape of a feed-forward layer: one row is bound by memory, 256 rows by multiply-adds.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

SOURCE = Path(__file__).with_name("machine.cpp")
BYTES = 2**29
"""Of each of the two stretches of memory that are read and copied: several times any cache."""
TURNS = 3_000_000
CHAINS = 12
"""kChains of machine.cpp."""
SHAPE = (8192, 2048)
"""Outputs and inputs of the products: 10 MB of 4-bit weights each."""
COPIES = 16
"""As many such weights take turns, so that one row finds none of them in a cache."""


def name() -> str:
    """The CPU's name and how many of its cores this process may use."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{model or platform.processor() or platform.machine()}, {cores} cores"


def best_s(call: Callable[[], object], times: int = 5) -> float:
    """The shortest of some runs after one that is not counted, in seconds: a limit is what nothing disturbs."""
    call()
    found = []
    for _ in range(times):
        began = time.perf_counter()
        call()
        found.append(time.perf_counter() - began)
    return min(found)


def limits(threads: int, flags: tuple[str, ...]) -> dict[str, float]:
    """GB/s of memory (a copy counts what is read and written), and 10^9 multiply-adds a second in registers.

    `flags`: of the compiler, for the instruction set. Needs g++ (or CXX).
    """
    import numpy as np

    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "machine.so"
        compiler = os.environ.get("CXX", "g++").split()
        subprocess.run([*compiler, "-O3", "-fopenmp", "-shared", "-fPIC", *flags, "-o", path, SOURCE], check=True)
        library = ctypes.CDLL(str(path))
    library.read_words.restype = ctypes.c_uint64
    source, target = np.ones(BYTES, np.uint8), np.ones(BYTES, np.uint8)
    at, to, turns = ctypes.c_void_p(source.ctypes.data), ctypes.c_void_p(target.ctypes.data), ctypes.c_int64(TURNS)
    found = {
        "read, GB/s": BYTES / 1e9 / best_s(lambda: library.read_words(at, ctypes.c_int64(BYTES // 8), threads)),
        "copy, GB/s": 2 * BYTES / 1e9 / best_s(lambda: library.copy_bytes(to, at, ctypes.c_int64(BYTES), threads)),
    }
    for label, call in (("float32", library.multiply_floats), ("byte", library.multiply_bytes)):
        if width := call(ctypes.c_int64(1), threads):
            seconds = best_s(partial(call, turns, threads))
            found[f"{label} multiply-adds, G/s"] = width * CHAINS * TURNS * threads / seconds / 1e9
    return found


def products(threads: int) -> dict[str, float]:
    """What the compiled 4-bit product does of that: GB/s of weights at one row, 10^9 multiply-adds/s at 256."""
    import torch

    from radixrt.kernels.cpu.native.packed import NarrowLinear, quantize

    torch.set_num_threads(threads)
    outputs, inputs = SHAPE
    groups = quantize(torch.randn(SHAPE), 4)
    weights, dense = [NarrowLinear(groups) for _ in range(COPIES)], groups.dense()
    one, wide = torch.randn(1, inputs), torch.randn(256, inputs)
    work = 256 * outputs * inputs / 1e9
    return {
        "4-bit product, 1 row, GB/s": sum(each.nbytes for each in weights)
        / 1e9
        / best_s(lambda: [each(one) for each in weights]),
        "4-bit product, 256 rows, G/s": work / best_s(lambda: weights[0](wide)),
        "float32 product by torch, 256 rows, G/s": work / best_s(lambda: wide @ dense.T),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument(
        "--cpu", metavar="RUNG", help="an instruction set of the ladder (RADIXRT_CPU); default: the highest"
    )
    options = parser.parse_args()
    if options.cpu:
        os.environ["RADIXRT_CPU"] = options.cpu
    os.environ["OMP_NUM_THREADS"] = str(options.threads)
    from radixrt.kernels import instruction_sets

    rung = instruction_sets.current()
    print(f"{name()}; {options.threads} threads, {rung.name}")
    for label, value in (limits(options.threads, rung.flags) | products(options.threads)).items():
        print(f"{label:<42}{value:>8.1f}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
