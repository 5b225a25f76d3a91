"""Forks and templates of POST /v1/programs, over a tiny model: the same programs written in Python are the truth."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from radixrt import Engine
from radixrt.lang import function, gen, select
from tests.waiting import HANG_S

from .conftest import serving
from .fake_backend import FakeBackend
from .test_http_programs import assert_idle


@pytest.fixture(scope="module")
def url(small_engine: Engine) -> Iterator[str]:
    with serving(small_engine, FakeBackend()) as served:
        yield served.url


def text(value: str) -> dict[str, Any]:
    return {"type": "Text", "text": value}


def template(value: str) -> dict[str, Any]:
    return {"type": "Template", "text": value}


def write(index: int, tokens: int = 4, **sampling: Any) -> dict[str, Any]:
    return {"type": "Gen", "index": index, "sampling": {"max_tokens": tokens, "temperature": 0, **sampling}}


def fork(name: str, *branches: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    return {"type": "Fork", "name": name, "branches": list(branches), **more}


def run(url: str, *items: dict[str, Any], **more: Any) -> httpx.Response:
    return httpx.post(f"{url}/v1/programs", json={"items": list(items), **more}, timeout=HANG_S)


def texts(response: httpx.Response) -> dict[int, str]:
    assert response.status_code == 200, response.text
    answer = response.json()
    return {g["index"]: g["generation"]["choices"][0]["text"] for g in answer["gens"]} | {
        s["index"]: s["selection"]["choice"] for s in answer["selects"]
    }


PLAN = [
    text("Three fish swim"),
    write(0),
    fork(
        "views",
        [text(" and the first"), write(1), text("."), write(2, 3)],
        [text(" but the second"), write(3)],
        [text(" while"), {"type": "Select", "index": 4, "options": [" it sleeps", " it eats"]}],
    ),
    template("\nOne: {{views[0]}} Two: {{3}} Three:{{4}}{{views[2]}}\nSo"),
    write(5),
]


@function
def written_in_python(s):
    s += "Three fish swim" + gen("g0", max_tokens=4, temperature=0)
    one, two, three = s.fork(3)
    one += " and the first" + gen("g1", max_tokens=4, temperature=0) + "." + gen("g2", max_tokens=3, temperature=0)
    two += " but the second" + gen("g3", max_tokens=4, temperature=0)
    three += " while" + select("g4", [" it sleeps", " it eats"])
    said = f" and the first{one['g1']}.{one['g2']}"
    s += f"\nOne: {said} Two: {two['g3']} Three:{three['g4']} while{three['g4']}\nSo"
    s += gen("g5", max_tokens=4, temperature=0)
    for state, names in ((one, ("g1", "g2")), (two, ("g3",)), (three, ("g4",))):
        for name in names:
            s.set(name, state[name])


def test_it_writes_what_the_same_program_in_python_writes(small_engine: Engine, url: str) -> None:
    response = run(url, *PLAN)
    state = written_in_python.run(backend=small_engine)
    assert texts(response) == {i: state[f"g{i}"] for i in range(6)}
    (views,) = response.json()["forks"]
    assert views["name"] == "views"
    assert views["texts"][0] == f" and the first{state['g1']}.{state['g2']}"
    assert views["texts"][1:] == [f" but the second{state['g3']}", f" while{state['g4']}"]
    assert_idle(small_engine)


def test_branches_share_what_stands_before_them(url: str) -> None:
    long = "Of all the fish that swim in the river, " * 12
    answer = run(
        url, text(long), write(0, 2), fork("f", *([[text(f" {i}"), write(10 + i, 2)] for i in range(4)]))
    ).json()
    usages = {g["index"]: g["generation"]["usage"] for g in answer["gens"]}
    for index in range(10, 14):
        assert usages[index]["cached_tokens"] >= usages[0]["prompt_tokens"]


def test_a_join_concatenates_in_branch_order(small_engine: Engine, url: str) -> None:
    joined = fork("f", [text(" red"), write(1)], [text(" blue"), write(2, 2)], join="concatenate")
    response = run(url, text("One fish"), write(0), joined, text(" End:"), write(3))
    found = texts(response)
    assert response.json()["forks"][0]["texts"] == [f" red{found[1]}", f" blue{found[2]}"]
    plain = run(url, text("One fish"), write(0), text(f" red{found[1]} blue{found[2]} End:"), write(3))
    assert texts(plain)[3] == found[3]
    assert_idle(small_engine)


def test_forks_in_branches_and_references_to_what_is_inside(small_engine: Engine, url: str) -> None:
    inner = fork("inner", [text(" deep"), write(1, 3)], [text(" deeper"), write(2, 3)])
    response = run(
        url, text("A"), write(0, 3), fork("outer", [text(" b"), inner, template(" {{inner[1]}}"), write(3, 3)]),
        fork("late", [template(" {{1}}{{inner[0]}}"), write(4, 3)]), template(" {{outer[0]}}|{{late[0]}}"), write(5, 3),
    )  # fmt: skip
    found = texts(response)
    assert [entry["name"] for entry in response.json()["forks"]] == ["outer", "inner", "late"]
    outer, deep, late = (entry["texts"] for entry in response.json()["forks"])
    assert deep == [f" deep{found[1]}", f" deeper{found[2]}"]
    assert outer == [f" b {deep[1]}{found[3]}"]
    assert late == [f" {found[1]}{deep[0]}{found[4]}"]
    flat = run(url, text("A"), write(0, 3), text(f" {outer[0]}|{late[0]}"), write(5, 3))
    assert texts(flat)[5] == found[5]
    assert_idle(small_engine)


def test_events_tell_the_same_by_index(url: str) -> None:
    whole = texts(run(url, *PLAN))
    parts: dict[int, str] = {}
    with httpx.stream("POST", f"{url}/v1/programs", json={"items": PLAN, "stream": True}, timeout=HANG_S) as response:
        lines = [line.removeprefix("data: ") for line in response.iter_lines() if line.startswith("data: ")]
    assert lines[-1] == "[DONE]"
    for happened in map(json.loads, lines[:-1]):
        assert happened["type"] != "Branched"
        if happened["type"] == "Part":
            parts[happened["index"]] = parts.get(happened["index"], "") + happened["delta"].get("text", "")
        elif happened["type"] == "Chosen":
            parts[happened["index"]] = happened["selection"]["choice"]
    assert parts == whole


def nested(depth: int) -> dict[str, Any]:
    return fork(f"f{depth}", [text("a"), *([nested(depth - 1)] if depth else [write(0)])])


@pytest.mark.parametrize(
    ("items", "param", "words"),
    [
        ([text("a"), fork("f", [text("b"), write(0)], [])], "items[1].branches[1]", "at least one item"),
        ([text("a"), fork("f"), write(0)], "items[1].branches", "1 to 64 branches"),
        ([text("a"), fork("f", *[[write(i)] for i in range(65)])], "items[1].branches", "and this one 65"),
        ([text("a"), fork("a b", [write(0)])], "items[1].name", "'a b'"),
        ([text("a"), fork("f", [write(0)]), fork("f", [write(1)])], "items[2].name", "'f' is taken"),
        ([text("a"), write(0), fork("f", [text("b"), write(0)])], "items[2].branches[0][1].index", "0 is taken"),
        ([nested(4)], "items[0].branches[0][1].branches[0][1].branches[0][1].branches[0][1]", "4 deep"),
        ([text("a"), fork("f", [{"type": "Start", "ids": [1]}, write(0)])], "items[1].branches[0][0]", "Start"),
        ([template("{{0}}"), write(0)], "items[0].text", "there are: none"),
        ([text("a"), write(0), template("{{1}}")], "items[2].text", "there are: 0"),
        ([text("a"), fork("f", [write(0)]), template("{{g[0]}}")], "items[2].text", "there are: f"),
        ([text("a"), fork("f", [write(0)]), template("{{f[1]}}")], "items[2].text", "0 to 0"),
        ([text("a"), fork("f", [write(0)], [template("{{0}}")])], "items[1].branches[1][0].text", "there are: none"),
        ([text("a"), write(0), template("{{ 0 }}")], "items[2].text", "{{ 0 }}"),
        ([text("a"), write(0, n=2), template("{{0}}")], "items[2].text", "2 samples"),
        (
            [fork("f", [{"type": "BeginTurn", "role": "user"}, write(0)], join="concatenate")],
            "items[0].branches[0]", "turns cannot be concatenated",
        ),
        ([text("a"), fork("f", [write(0)], join="zip")], "items[1].join", "zip"),
        ([text("a"), fork("f", [{"type": "Text", "text": 3}])], "items[1].branches[0][0].text", "expected `str`"),
        ([text("a"), fork("f", [write(0)], colour=1)], "items[1].colour", "unknown parameter"),
        ([text("a"), {**write(0), "temperature": 0}], "items[1].temperature", "unknown parameter"),
        ([fork("f", *[[text("a")] * 100 for _ in range(41)]), write(0)], "items", "4096"),
    ],
)  # fmt: skip
def test_what_cannot_run_is_refused_with_where(url: str, items: list[Any], param: str, words: str) -> None:
    response = run(url, *items)
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert error["param"] == param and words in error["message"], error


def test_a_branch_that_fails_ends_all_and_is_named(small_engine: Engine, url: str) -> None:
    broken = {**write(2), "constraint": {"kind": "regex", "value": "("}}
    response = run(url, text("a"), fork("f", [write(1, 900, ignore_eos=True)], [text("b"), broken]), write(3))
    assert response.status_code == 400
    assert response.json()["error"]["message"].startswith("branch 1 of the fork 'f': ")
    assert_idle(small_engine)


def test_a_timeout_and_a_client_that_leaves_end_every_branch(small_engine: Engine, url: str) -> None:
    long = [[text(f"{i}"), write(i, 1000, ignore_eos=True)] for i in range(4)]
    items = [text("a"), fork("f", *long), template("{{f[0]}}"), write(9)]
    assert run(url, *items, timeout_s=0.3).json()["error"]["code"] == "timeout"
    assert_idle(small_engine)
    with httpx.stream(
        "POST", f"{url}/v1/programs", json={"items": items, "stream": True}, timeout=HANG_S
    ) as response:  # fmt: skip
        next(response.iter_lines())
    assert_idle(small_engine)


def test_a_template_cannot_grow_without_end(small_engine: Engine, url: str) -> None:
    """Each template refers a thousand times to the one before."""
    grown = [fork(f"f{i}", [template(f"{{{{f{i - 1}[0]}}}}" * 1000 if i else "x" * 1000)]) for i in range(4)]
    response = run(url, text("a"), *grown, template("{{f3[0]}}"), write(0))
    assert response.status_code == 400 and "characters" in response.json()["error"]["message"]
    assert_idle(small_engine)
