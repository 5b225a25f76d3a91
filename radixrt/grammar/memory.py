"""How much memory a process holds and how long it has computed, as far as the system tells."""

from __future__ import annotations

import math
import os
from pathlib import Path

_PAGE = os.sysconf("SC_PAGE_SIZE")


def resident_bytes(pid: int | None = None) -> int:
    """Resident memory of a process (None: this one); 0 where it is gone or the system does not tell."""
    return _statm(pid, 1)


def virtual_bytes(pid: int | None = None) -> int:
    """Address space of a process; 0 as above."""
    return _statm(pid, 0)


def cpu_seconds(pid: int) -> float:
    """CPU time of a process, all its threads; infinite where it is gone, so that nobody waits for it."""
    import psutil

    try:
        times = psutil.Process(pid).cpu_times()
    except psutil.Error:
        return math.inf
    return float(times.user + times.system)


def _statm(pid: int | None, field: int) -> int:
    try:
        return int(Path(f"/proc/{'self' if pid is None else pid}/statm").read_text().split()[field]) * _PAGE
    except OSError:
        return _asked(pid, field)


def _asked(pid: int | None, field: int) -> int:
    """The same where there is no /proc, which costs more."""
    import psutil

    try:
        found = psutil.Process(pid).memory_info()
    except psutil.Error:
        return 0
    return int(found.rss if field else found.vms)


def memory_message(limit_bytes: int) -> str:
    """The error text of a compile that passed the memory limit."""
    return f"compiling the constraint needs more than {limit_bytes // 2**20} MiB of memory, which is the limit"
