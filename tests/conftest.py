"""Fixtures that every room's tests share."""

from __future__ import annotations

import os
from pathlib import Path

# Before torch is imported anywhere: two cores are shared by all processes of a test, so nobody may spin.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import pytest

CASES = Path(os.environ.get("RADIXRT_CASES", Path(__file__).parents[2] / "shared" / "cases"))


@pytest.fixture(scope="session")
def cases() -> Path:
    """Folder of the acceptance cases; tests that need it are skipped where it is absent."""
    if not CASES.is_dir():
        pytest.skip(f"the acceptance cases are not here: {CASES} (set RADIXRT_CASES)")
    return CASES


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """The small real model, fetched once into RADIXRT_HOME and hash-checked."""
    from radixrt.checkpoint import resolve

    return resolve("smollm2-135m")
