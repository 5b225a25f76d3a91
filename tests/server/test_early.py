"""What is begun before it is asked for."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest

from radixrt.errors import StartupError
from radixrt.server.early import Early
from tests.waiting import HANG_S


def test_it_begins_at_once_and_is_made_anew_from_the_second_call_on() -> None:
    begun, go_on, made = threading.Event(), threading.Event(), iter(range(10))

    def make() -> str:
        begun.set()
        assert go_on.wait(HANG_S)
        return f"engine {next(made)}"

    early = Early(make)
    assert begun.wait(HANG_S), "nobody has asked yet"
    go_on.set()
    assert [early() for _ in range(3)] == ["engine 0", "engine 1", "engine 2"]


def test_its_error_is_raised_once_and_where_it_is_asked_for() -> None:
    outcomes = iter([StartupError("no model"), "an engine"])

    def make() -> str:
        outcome = next(outcomes)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    early = Early(make)
    with pytest.raises(StartupError, match="no model"):
        early()
    assert early() == "an engine"


def test_what_is_needed_before_an_engine_begins_brings_no_web_framework() -> None:
    modules = "radixrt.cli.serve, radixrt.server.early, radixrt.server.listening, radixrt.server.keys"
    heavy = "{'fastapi', 'starlette', 'uvicorn', 'pydantic', 'torch'}"
    source = (
        f"import sys, {modules}, radixrt.server.tracing, radixrt.server.restarts; print({heavy} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
