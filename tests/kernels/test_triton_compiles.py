"""Every kernel through the compiler, for GPUs that are not there (--long)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("kernels_compile.py")


@pytest.mark.parametrize("target", ["sm90", "sm80", "gfx942"])
def test_compiles(target: str, long: bool) -> None:
    if not long:
        pytest.skip("it takes minutes: --long")
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = os.pathsep.join([str(SCRIPT.parents[2]), environment.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, str(SCRIPT), target], env=environment, capture_output=True, text=True, timeout=1800
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    for kernel in ("walk", "merge", "_norm", "_rope_write", "draw", "scan", "_product", "_grouped", "_move"):
        assert f"{kernel}: " in done.stdout
