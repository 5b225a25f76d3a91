"""Short turns on a core: what a process that waits often asks of Linux's scheduler.

A compute thread sleeps whenever it waits for the others, hundreds of times a step, and so does a process between two
messages. When it wakes and every core is taken, it waits until whoever runs there has used its slice, be that neighbour
as nice as it may (run to parity, of EEVDF: kernel/sched/fair.c). A task that has asked for a shorter slice than its
neighbour's is exempt from that since Linux 6.12 (PREEMPT_SHORT): it is let in when it wakes. What it gets in all stays
its fair share, by its niceness. Figures: benchmarks/README.md, "A busy neighbour".
"""

from __future__ import annotations

import ctypes
import logging
import platform
import struct
import sys

SLICE_NS = 200_000
"""The kernel's own is 1 to 3 ms; it takes 0.1 to 100."""

_CALLS = {"x86_64": (314, 315), "aarch64": (274, 275)}
"""Numbers of sched_setattr and sched_getattr, which C libraries have no functions for."""
_ATTRIBUTES = struct.Struct("IIQiIQQQII")
"""size, policy, flags, nice, priority, runtime, deadline, period, util_min, util_max (sched_setattr(2))"""
_RUNTIME = 5
_log = logging.getLogger(__name__)


def ask_short_slice() -> bool:
    """Ask for SLICE_NS for this thread and all that it starts, processes too; False where that cannot be had.

    Kernels before 6.12 take the call and do nothing. A process that somebody has given another policy than the usual
    one keeps what it has.
    """
    calls = _CALLS.get(platform.machine())
    if not sys.platform.startswith("linux") or calls is None:
        return False
    set_attributes, get_attributes = calls
    library = ctypes.CDLL(None, use_errno=True)
    buffer = ctypes.create_string_buffer(_ATTRIBUTES.size)
    if library.syscall(get_attributes, 0, buffer, _ATTRIBUTES.size, 0) != 0:
        return False
    values = list(_ATTRIBUTES.unpack(buffer.raw))
    if values[1] != 0:  # not SCHED_OTHER
        return False
    values[_RUNTIME] = SLICE_NS
    changed = ctypes.create_string_buffer(_ATTRIBUTES.pack(*values), _ATTRIBUTES.size)
    if library.syscall(set_attributes, 0, changed, 0) != 0:
        _log.debug("no short slice: error %d", ctypes.get_errno())
        return False
    return True
