"""The real openai package for Node against a server over the fake backend, as one program."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from radixrt.checkpoint.home import home
from tests.waiting import HANG_S

from .conftest import Served
from .fake_backend import REPLY

PROGRAM = Path(__file__).parent / "node" / "client.mjs"
VERSION = "openai@6"


@pytest.fixture(scope="session")
def package() -> Path:
    """A folder whose node_modules holds the package: installed once into RADIXRT_HOME, if a registry answers."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        pytest.skip("node and npm are not installed here")
    folder = home() / "tests" / VERSION
    if not (folder / "node_modules" / "openai" / "package.json").is_file():
        folder.mkdir(parents=True, exist_ok=True)
        command = [npm, "install", "--no-audit", "--no-fund", "--ignore-scripts", "--prefix", str(folder), VERSION]
        try:
            subprocess.run(command, check=True, capture_output=True, timeout=HANG_S)
        except (subprocess.SubprocessError, OSError) as error:
            pytest.skip(f"npm could not install {VERSION}: no registry answers here ({type(error).__name__})")
    return folder


def test_the_node_package(package: Path, served: Served) -> None:
    (package / PROGRAM.name).write_bytes(PROGRAM.read_bytes())  # an import is resolved from the file's own folder
    found = subprocess.run(
        ["node", PROGRAM.name, served.url],
        cwd=package, capture_output=True, text=True, timeout=HANG_S, env={**os.environ, "NO_COLOR": "1"},
    )  # fmt: skip
    assert found.returncode == 0, found.stderr
    steps: dict[str, dict[str, Any]] = {}
    for line in found.stdout.splitlines():
        step = json.loads(line)
        steps[step.pop("step")] = step
    assert steps["chat"]["text"] == REPLY and steps["chat"]["finish"] == "stop"
    usage = steps["stream"]["usage"]
    assert steps["stream"]["text"] == REPLY and usage["completion_tokens"] == len(REPLY.encode())
    assert steps["helper"]["text"] == REPLY and steps["helper"]["deltas"] > 3 and steps["helper"]["finish"] == "stop"
    assert json.loads(steps["parse"]["text"]) == {"a": 1}
    assert steps["completions"]["texts"] == ["a" + REPLY, "b" + REPLY]
    assert steps["models"]["models"] == ["fake"]
    assert steps["responses"] == {"text": REPLY, "first": "response.created", "last": "response.completed"}
    assert steps["error n"] == {
        "type": "BadRequestError", "status": 400, "param": "n", "code": steps["error n"]["code"],
    }  # fmt: skip
    assert (steps["error model"]["type"], steps["error model"]["code"]) == ("NotFoundError", "model_not_found")
    assert (steps["error unknown"]["param"], steps["error unknown"]["status"]) == ("nonsense", 400)
    assert steps["error in a stream"]["type"] == "APIError" and "dead end" in steps["error in a stream"]["message"]
    assert served.backend.wait_active(0), "the stream that was left"
    assert steps["tools"]["roles"] == ["user", "assistant", "tool", "assistant"]
    assert steps["tools"]["results"] == ["12 °C in Orléans"] and steps["tools"]["text"] == "12 °C."
