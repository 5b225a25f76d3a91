"""How many threads the runner computes with, and the environment that makes them behave; no torch.

The parent calls this before it starts the runner: OpenMP and the math libraries read their variables once, when they
are loaded.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from pathlib import Path

from radixrt.runner import cgroup


def usable_cores(root: Path = cgroup.ROOT, membership: Path = cgroup.MEMBERSHIP) -> int:
    """Cores that affinity and CPU quota leave to this process, at least 1.

    A quota is rounded down: with more threads than quota, the kernel stops all of them for the rest of each period,
    and a barrier in the middle of a step waits for it.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = cgroup.cpu_quota(root, membership)
    return max(1, cores if quota is None else min(cores, math.floor(quota)))


def environment(threads: int, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Variables for a process that computes with `threads` threads; give 1 for those that only pass messages.

    Threads wait for each other with a short spin, then asleep: a barrier that spins for long holds the very core that
    the thread it waits for needs, as soon as any other process wants one (figures in README.md). What the user has
    said about waiting or about malloc stands. Whether the user has said something about the number of threads
    is the caller's question.
    """
    count = str(threads)
    ours = {
        "OMP_NUM_THREADS": count,
        "MKL_NUM_THREADS": count,
        "OPENBLAS_NUM_THREADS": count,
        "NUMEXPR_NUM_THREADS": count,
        "VECLIB_MAXIMUM_THREADS": count,
        "OMP_DYNAMIC": "FALSE",
        "MKL_DYNAMIC": "FALSE",
    }
    if not any(name in environ for name in _WAITING):
        ours |= _WAITING
    # A step's activations are freed and taken again every few milliseconds: keep them out of mmap, and do not give
    # them back to the kernel in between, or each step pays for its page faults anew.
    malloc = {"MALLOC_MMAP_THRESHOLD_": str(32 << 20), "MALLOC_TRIM_THRESHOLD_": str(KEPT_BYTES)}
    ours |= {name: value for name, value in malloc.items() if name not in environ}
    return ours


KEPT_BYTES = 256 << 20
"""Freed memory that a runner may keep for its next steps."""
_WAITING = {"OMP_WAIT_POLICY": "PASSIVE", "KMP_BLOCKTIME": "0", "GOMP_SPINCOUNT": "1000"}
"""libgomp takes the spin count over the policy; LLVM's and Intel's runtimes know the other two."""
