"""Constraints made to hurt, sent to a real server while two ordinary streams run: their sender pays, nobody else."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import httpx
import psutil
import pytest

from tests.waiting import HANG_S

from .live import Live

COMMON = {"type": "object", "properties": {"common_prefix": {"type": "string"}}, "required": ["common_prefix"]}


def nested(depth: int) -> Any:
    return {"anyOf": [nested(depth - 1)] * 2} if depth else {"type": "integer"}


def schema(value: Any) -> dict[str, Any]:
    return {"structured_outputs": {"json": value}}


BOMBS: dict[str, dict[str, Any]] = {
    "enum of 100,000": schema({"enum": [f"value {i}" for i in range(100_000)]}),
    "enum of 4,000": schema({"enum": [f"v{i}" for i in range(4_000)]}),
    "200 strings of 20 kB": schema({"enum": [f"{i}" + "x" * 20_000 for i in range(200)]}),
    "const of 2 MB": schema({"const": "y" * 2_000_000}),
    "const of 50 kB": schema({"const": "y" * 50_000}),
    "anyOf of 500 objects": schema(
        {"anyOf": [{**COMMON, "properties": COMMON["properties"] | {"n": {"const": i}}} for i in range(500)]}
    ),
    "3,000 optional": schema({"type": "object", "properties": {f"p{i}": {} for i in range(3000)}}),
    "400 optional": schema({"type": "object", "properties": {f"p{i}": {} for i in range(400)}}),
    "anyOf 2^14": schema(nested(14)),
    "anyOf 2^10": schema(nested(10)),
    "multipleOf": schema({"type": "integer", "multipleOf": 1_000_003}),
    "multipleOf within the limit": schema({"type": "integer", "multipleOf": 9_973}),
    "regex": {"structured_outputs": {"regex": "(a|b)*a(a|b){20}"}},
    "repetitions in each other": {"structured_outputs": {"regex": "((a{1,900}){1,900}){1,900}"}},
    "$ref loop": schema({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}),
    "ambiguous": {"structured_outputs": {"grammar": 'root ::= s\ns ::= s s | "a" | "aa" | "b"'}, "max_tokens": 60},
    "more ambiguous": {"structured_outputs": {"grammar": 'root ::= s\ns ::= s s s | s s | "a" | "b" | "ab"'},
                       "max_tokens": 60},
}  # fmt: skip


class Stream(threading.Thread):
    """A long answer without a constraint, and when its pieces came."""

    def __init__(self, live: Live) -> None:
        super().__init__()
        self.url = live.url
        self.times: list[float] = []
        self.stop = threading.Event()
        self.flowing = threading.Event()
        self.error: str | None = None

    def run(self) -> None:
        while not self.stop.is_set() and self.error is None:
            body = {"prompt": "A story", "max_tokens": 900, "ignore_eos": True, "stream": True, "temperature": 1.0}
            with (
                httpx.Client(timeout=HANG_S) as http,
                http.stream("POST", f"{self.url}/v1/completions", json=body) as answer,
            ):
                self.error = None if answer.status_code == 200 else f"HTTP {answer.status_code}"
                for line in answer.iter_lines():
                    if self.stop.is_set():
                        return
                    if line.startswith("data: {"):
                        self.times.append(time.monotonic())
                        self.error = line if "error" in json.loads(line[6:]) else None
                        if len(self.times) > 20:
                            self.flowing.set()

    @contextmanager
    def goes_on(self, what: str) -> Iterator[None]:
        """Pieces come all through the block. There is no limit in seconds: if the block takes as long as many of the
        longest pauses before it, then one pause must not fill most of it."""
        assert len(self.times) > 20
        usual = max(later - earlier for earlier, later in pairwise(self.times[:20]))
        begun = time.monotonic()
        yield
        ended = time.monotonic()
        moments = [begun, *(moment for moment in list(self.times) if begun < moment < ended), ended]
        longest = max(later - earlier for earlier, later in pairwise(moments))
        assert ended - begun < 20 * usual or longest < (ended - begun) / 2, f"{what}: another stream stood still"


def long_lived(live: Live) -> dict[int, str]:
    """The server's processes but its compile workers."""
    found = {}
    for process in live.children():
        try:
            words = " ".join(process.cmdline())
        except psutil.Error:
            continue
        if "grammar" not in words and "resource_tracker" not in words:
            found[process.pid] = words
    return found


def memory(live: Live) -> int:
    return sum(process.memory_info().rss for process in live.children() if process.is_running())


SHORT = {"enum of 100,000", "anyOf of 500 objects", "3,000 optional", "anyOf 2^14", "multipleOf", "regex", "$ref loop",
         "repetitions in each other", "const of 2 MB", "200 strings of 20 kB", "more ambiguous"}  # fmt: skip
"""Those of every run; the others with --long."""


def test_bombs_beside_two_streams_hurt_nobody(live: Live, request: pytest.FixtureRequest) -> None:
    chosen = [name for name in BOMBS if name in SHORT or request.config.getoption("--long")]
    live.chat("Warm up", max_tokens=2, **schema({"type": "integer"}))
    before, pids = memory(live), long_lived(live)
    assert len(pids) >= 3
    streams = [Stream(live), Stream(live)]
    for stream in streams:
        stream.start()
    answers: dict[str, httpx.Response] = {}
    try:
        for stream in streams:
            assert stream.flowing.wait(HANG_S), stream.error
        marks = [len(stream.times) for stream in streams]
        for name in chosen:
            with streams[0].goes_on(name), streams[1].goes_on(name):
                answers[name] = live.chat("Go", **{"max_tokens": 12, "temperature": 1.0, **BOMBS[name]})
        ends = [len(stream.times) for stream in streams]
    finally:
        for stream in streams:
            stream.stop.set()
        for stream in streams:
            stream.join(HANG_S)
    for name, answer in answers.items():
        if answer.status_code == 200:
            choice = answer.json()["choices"][0]
            assert choice["finish_reason"] in ("stop", "length"), name
            if choice["finish_reason"] == "stop" and "json" in BOMBS[name]["structured_outputs"]:
                json.loads(choice["message"]["content"])
        else:
            # Also where the row becomes too expensive only while it runs.
            assert answer.status_code == 400, (name, answer.text)
            assert answer.json()["error"]["message"], name
    assert [stream.error for stream in streams] == [None, None]
    assert all(last > first for first, last in zip(marks, ends, strict=True))
    assert long_lived(live).items() >= pids.items()
    live.wait_until_idle()
    assert memory(live) < before + 600 * 2**20
    assert live.answer("Hi", max_tokens=3)
