"""Short turns on a core, as the kernel itself reports them."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.waiting import HANG_S

SCRIPT = """
import ctypes, os, struct, platform, subprocess, sys, threading
from radixrt import slices
call = slices._CALLS[platform.machine()][1]

def read():
    buffer = ctypes.create_string_buffer(56)
    assert ctypes.CDLL(None).syscall(call, 0, buffer, 56, 0) == 0
    return struct.unpack("IIQiIQQQII", buffer.raw)

os.nice(3)
before = read()
print(slices.ask_short_slice())
after, seen = read(), []
thread = threading.Thread(target=lambda: seen.append(read()))
thread.start()
thread.join()
print(after[1] == before[1] == 0, after[3] == before[3] == 3)  # policy and niceness stay
print(before[5] == 0 or after[5] == seen[0][5] == slices.SLICE_NS)  # kernels before 6.12 say 0
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Linux's scheduler is meant")
def test_a_thread_and_those_it_starts_get_short_slices() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=HANG_S)
    assert done.stdout.split() == ["True"] * 4, done.stderr


def test_elsewhere_nothing_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    from radixrt import slices

    monkeypatch.setattr(slices.platform, "machine", lambda: "s390x")
    assert not slices.ask_short_slice()
