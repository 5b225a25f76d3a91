"""POST /v1/programs: a program in one request, over a tiny model; and what the Client makes of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

import radixrt
from radixrt import Engine, SamplingParams
from radixrt.lang import OneRequestEach, ProgramError, compiled, function, gen, select
from tests.server.conftest import serving
from tests.server.fake_backend import FakeBackend
from tests.waiting import HANG_S, until


@pytest.fixture(scope="module")
def tiny(tiny_path: Path) -> Iterator[Engine]:
    with Engine(str(tiny_path), check=True, dtype="float32") as engine:
        yield engine


@pytest.fixture(scope="module")
def url(tiny: Engine) -> Iterator[str]:
    with serving(tiny, FakeBackend()) as served:
        yield served.url


def items(*parts: str | dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for part in parts:
        if isinstance(part, str):
            found.append({"type": "Text", "text": part})
        else:
            index = sum(item["type"] == "Gen" for item in found)
            found.append({"type": "Gen", "index": index, "heal": False, "sampling": {"temperature": 0, **part}})
    return found


def post(url: str, **body: Any) -> httpx.Response:
    return httpx.post(f"{url}/v1/programs", json=body, timeout=HANG_S)


def assert_idle(engine: Engine) -> None:
    until(lambda: not engine.stats().running and not sum(node.locks for node in engine.tree()))


def test_one_answer_and_events_tell_the_same(tiny: Engine, url: str) -> None:
    program = items(
        "One fish", {"max_tokens": 5}, " two fish", {"max_tokens": 4, "stop": ["e"]}, " red", {"max_tokens": 3}
    )
    answer = post(url, items=program)
    assert answer.status_code == 200, answer.text
    gens = answer.json()["gens"]
    assert [entry["index"] for entry in gens] == [0, 1, 2]
    first = tiny.generate("One fish", SamplingParams(max_tokens=5, temperature=0))
    assert tuple(gens[0]["generation"]["choices"][0]["token_ids"]) == first.token_ids
    texts = ["", "", ""]
    with httpx.stream(
        "POST", f"{url}/v1/programs", json={"items": program, "stream": True}, timeout=HANG_S
    ) as response:
        lines = [line.removeprefix("data: ") for line in response.iter_lines() if line.startswith("data: ")]
    assert lines[-1] == "[DONE]"
    for line in lines[:-1]:
        event = json.loads(line)
        if event["type"] == "Part":
            texts[event["index"]] += event["delta"].get("text", "")
    assert texts == [entry["generation"]["choices"][0]["text"] for entry in gens]
    assert_idle(tiny)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"items": []}, "at least one Gen"),
        ({"items": [{"type": "Text", "text": "a"}, {"type": "Select", "index": 0, "options": []}]}, "options"),
        (
            {"items": [*items("a", {"max_tokens": 1}), {"type": "Select", "index": 0, "options": ["x"]}]},
            "index of its own",
        ),
        ({"items": [{"type": "Text", "text": "a"}, {"type": "Select", "index": 0, "options": ["b", "b"]}]}, "differ"),
        ({"items": [{"type": "Text", "text": "a"}] * 5000}, "4096"),
        ({"items": items("a", {}, {}) + items("b", {})}, "index of its own"),
        ({"items": [{"type": "Branch", "children": [1]}]}, "Branch"),
        ({"items": items("a", {"max_tokens": 1}), "model": "other"}, "not served"),
        ({"items": items("a", {"max_tokens": 100_000})}, "context"),
        ({"items": items("a", {"temperature": -1})}, "temperature"),
        ({"items": items("a", {"max_tokens": 1}), "colour": 1}, "colour"),
        ({"items": [{"type": "Start", "ids": [99999999]}, *items({"max_tokens": 1})]}, "vocabulary"),
    ],
)
def test_what_cannot_run_is_refused_in_words(tiny: Engine, url: str, body: dict[str, Any], words: str) -> None:
    answer = post(url, **body)
    assert answer.status_code in (400, 404), answer.text
    assert words in answer.json()["error"]["message"]
    assert_idle(tiny)


def test_a_select_among_the_items(tiny: Engine, url: str) -> None:
    program = [
        *items("One fish", {"max_tokens": 3}, " is "),
        {"type": "Select", "index": 7, "options": ["red", "blue"]},
    ]
    answer = post(url, items=program).json()
    (chosen,) = answer["selects"]
    assert chosen["index"] == 7 and chosen["selection"]["choice"] in ("red", "blue")
    assert len(chosen["selection"]["scores"]) == 2 and len(answer["gens"]) == 1
    with httpx.stream(
        "POST", f"{url}/v1/programs", json={"items": program, "stream": True}, timeout=HANG_S
    ) as response:
        lines = [line.removeprefix("data: ") for line in response.iter_lines() if line.startswith("data: ")]
    (event,) = [e for e in map(json.loads, lines[:-1]) if e["type"] == "Chosen"]
    assert event["index"] == 7 and event["selection"]["choice"] == chosen["selection"]["choice"]
    assert_idle(tiny)


def test_a_timeout_and_a_client_that_leaves_stop_the_program(tiny: Engine, url: str) -> None:
    long = items("a", {"max_tokens": 1500, "ignore_eos": True}, "b", {"max_tokens": 1})
    answer = post(url, items=long, timeout_s=0.2)
    assert answer.json()["error"]["code"] == "timeout"
    assert_idle(tiny)
    with httpx.stream("POST", f"{url}/v1/programs", json={"items": long, "stream": True}, timeout=None) as response:
        next(response.iter_lines())
    assert_idle(tiny)


def test_the_documentation_has_the_bodies(url: str) -> None:
    schema = httpx.get(f"{url}/openapi.json").json()
    assert "ProgramRequest" in json.dumps(schema["paths"]["/v1/programs"]["post"]["requestBody"])
    assert "BeginTurn" in schema["components"]["schemas"]


@function
def six(s):
    for i in range(6):
        s += f"Line {i}:" + gen(f"g{i}", max_tokens=4, temperature=0, stop="\n" if i % 2 else ())
    s += "The end."


@function
def mixed(s):
    s += "One" + gen("a", max_tokens=4, temperature=0)
    s += f" {len(s['a'])}" + gen("b", max_tokens=4, temperature=0) + select("c", ["x", " y"]) + "!"
    forks = s.fork(2)
    for i, fork in enumerate(forks):
        fork += f" branch {i}" + gen("d", max_tokens=3, temperature=0)
    forks.join()
    s += gen("e", max_tokens=2, temperature=0)


@pytest.mark.parametrize(("program", "patience_s"), [(six, 30.0), (mixed, 0.5)])
def test_a_program_over_http_is_a_request_a_stretch(
    tiny: Engine, url: str, program: Any, patience_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    posted: list[str] = []
    request = httpx.AsyncClient.build_request

    def spy(self: httpx.AsyncClient, method: str, url: Any, **rest: Any) -> httpx.Request:
        posted.append(str(url))
        return request(self, method, url, **rest)

    monkeypatch.setattr(httpx.AsyncClient, "build_request", spy)
    # a busy machine may hold the body up between two appends; the end of a body ends the wait
    monkeypatch.setattr(compiled, "GATHER_S", patience_s)
    with radixrt.Client(url, timeout=HANG_S) as client:
        state = program.run(backend=client)
        sent = list(posted)
        eager = program.run(backend=OneRequestEach(tiny))
        assert [b.context.ids for b in state.run.branches] == [b.context.ids for b in eager.run.branches]
        assert state.text() == eager.text()
        assert sum("/v1/programs" in to for to in sent) == (1 if program is six else 5)
        assert not any("/generate" in to or "/select" in to for to in sent)

        @function
        def broken(s):
            s += "a" + gen("x", max_tokens=1) + gen("y", regex="(", max_tokens=1)

        failed = broken.run(backend=client)
        with pytest.raises(ProgramError, match="'y'"):
            _ = failed["y"]
        assert failed["x"] is not None
    assert_idle(tiny)
