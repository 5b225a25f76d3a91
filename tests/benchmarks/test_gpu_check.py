"""`gpu_check.py --smoke` on a machine that has torch, numpy and triton, and nothing else of what radixrt uses."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from runpy import run_path

import pytest

from tests.waiting import HANG_S

CHECK = Path(__file__).parents[2] / "benchmarks" / "gpu_check.py"
BARE = """
import importlib.util, runpy, sys

MISSING = set("zmq msgspec llguidance outlines_core tokenizers jinja2 regex safetensors gguf huggingface_hub httpx "
    "fastapi uvicorn uvloop httptools pydantic prometheus_client rich typer psutil xgrammar transformers".split())
find = importlib.util.find_spec

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in MISSING:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

importlib.util.find_spec = lambda name, *rest: None if name.split(".")[0] in MISSING else find(name, *rest)
sys.meta_path.insert(0, Missing())
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def test_it_runs_on_a_bare_machine(tmp_path: Path, long: bool) -> None:
    """The model's part, and with --long all of it."""
    parts = "123" if long else "3"
    command = [sys.executable, "-P", "-c", BARE, str(CHECK), "--smoke", "--parts", parts, "--out", str(tmp_path)]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=HANG_S)
    assert ran.returncode == 0, ran.stderr[-2000:]
    report = json.loads((tmp_path / "gpu_check.json").read_text())
    assert report["smoke"] and len(report["model"]) == 4
    assert all(line["tokens/s"] > 0 for line in report["model"])
    assert "its times say nothing" in ran.stdout
    if long:
        assert len(report["kernels"]) > 15 and all(line["ok"] for line in report["kernels"])
        assert len(report["speed"]) > 12


def test_goals_are_read_from_the_report() -> None:
    goals = run_path(str(CHECK))["goals"]
    speed = [
        {"kernel": "decode attention, 64 x 4096", "ms": 2.0, "gbps": 1700.0},
        {"kernel": "one prefix, row by row, 64 x 4096", "ms": 2.0, "gbps": 1700.0},
        {"kernel": "one prefix, tree attention, 64 x 4096", "ms": 0.25, "gbps": 400.0},
    ]
    model = [{"what": "prefill"}, {"what": "decode", "of the weight-bandwidth bound": 0.7}]
    report = {"smoke": False, "ceilings": {"copy GB/s": 2000.0}, "speed": speed, "model": model}
    assert [(found, least) for _, found, least in goals(report)] == [
        (pytest.approx(0.85), 0.85), (pytest.approx(8.0), 5.0), (pytest.approx(0.7), 0.8),
    ]  # fmt: skip
    assert goals(report | {"smoke": True}) == []
