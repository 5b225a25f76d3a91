"""How much memory a process holds, as far as the system tells."""

from __future__ import annotations

import os
from pathlib import Path

_PAGE = os.sysconf("SC_PAGE_SIZE")


def resident_bytes(pid: int | str = "self") -> int:
    """Resident memory of a process; 0 where the system does not tell (no /proc) or the process is gone."""
    return _statm(pid, 1)


def virtual_bytes(pid: int | str = "self") -> int:
    """Address space of a process; 0 as above."""
    return _statm(pid, 0)


def _statm(pid: int | str, field: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[field]) * _PAGE
    except OSError:
        return 0


def memory_message(limit_bytes: int) -> str:
    """The error text of a compile that passed the memory limit."""
    return f"compiling the constraint needs more than {limit_bytes // 2**20} MiB of memory, which is the limit"
