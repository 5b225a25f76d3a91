"""Situations from public reports about constraints, as their reporters met them: whitespace, counts, size.

Each line of what a report expects is an assertion here, against a real server.
"""

from __future__ import annotations

import json
import re
from typing import Any

import httpx
import pytest

from tests.waiting import HANG_S

from .live import Live
from .test_live_bombs import Stream, long_lived

VALVE = {
    "type": "object",
    "properties": {"ok": {"type": "boolean"}, "level": {"enum": [1, 2, 3]}},
    "required": ["ok", "level"],
    "additionalProperties": False,
}
LIMIT = 10_000
"""The largest count in a regex or grammar."""


def form(schema: Any) -> dict[str, Any]:
    return {
        "response_format": {"type": "json_schema", "json_schema": {"name": "out", "strict": True, "schema": schema}}
    }


def blank_tokens(live: Live, shortest: int) -> list[int]:
    """Ids of tokens that are nothing but whitespace, of so many characters at least."""
    texts = ["\n" * n for n in range(1, 9)] + [" " * n for n in range(1, 33)] + ["\t", "\t\t", "\r\n", " \n", "\n "]
    found = {
        tokens[0]
        for text in texts
        if len(text) >= shortest and len(tokens := live.post("/tokenize", prompt=text).json()["tokens"]) == 1
    }
    assert len(found) > 1
    return sorted(found)


@pytest.mark.parametrize("flexible", [False, True])
def test_a_wish_for_whitespace_takes_no_answer_over(live: Live, flexible: bool) -> None:
    wish = {str(token): 100 for token in blank_tokens(live, 12 if flexible else 1)}
    space = {"structured_outputs": {"json": VALVE, "disable_any_whitespace": False}} if flexible else form(VALVE)
    answer = live.chat(
        "Is the valve open, and at which level?", temperature=0, max_tokens=200, logit_bias=wish, **space
    )
    assert answer.status_code == 200, answer.text
    body = answer.json()
    text = body["choices"][0]["message"]["content"]
    assert body["choices"][0]["finish_reason"] == "stop"
    assert body["usage"]["completion_tokens"] < (60 if flexible else 20)
    value = json.loads(text)
    assert type(value["ok"]) is bool and value["level"] in (1, 2, 3) and len(value) == 2
    longest = max(map(len, re.findall(r"\s+", text)), default=0)
    assert (0 < longest <= 32) if flexible else longest == 0


def test_huge_counts_are_refused_at_once_and_bounds_at_the_limit_are_not(live: Live) -> None:
    def health() -> None:
        assert httpx.get(f"{live.url}/health", timeout=HANG_S).status_code == 200

    live.chat("Warm up", max_tokens=2, structured_outputs={"grammar": 'root ::= "z"{1,20}'})
    before = {process.pid: process.memory_info().rss for process in live.children()}
    for source in ({"grammar": 'root ::= "z"{1000000000,2000000000}'}, {"regex": "(z{1,1000000000}){1000000000}"}):
        compiles = live.metrics()["radixrt_grammar_compiles_total"]
        answer = live.chat("List numbers.", max_tokens=64, structured_outputs=source)
        assert live.metrics()["radixrt_grammar_compiles_total"] == compiles, "it is refused, not compiled"
        assert answer.status_code == 400 and str(LIMIT) in answer.json()["error"]["message"].replace(",", "")
        health()
    grown = sum(process.memory_info().rss - before.get(process.pid, 0) for process in live.children())
    assert grown < 50 * 2**20
    for last in (LIMIT - 1, LIMIT, LIMIT + 1):
        pattern = f"z{{1,{last}}}"
        answers = [
            live.chat("List numbers.", max_tokens=3, structured_outputs=source)
            for source in ({"grammar": f'root ::= "z"{{1,{last}}}'}, {"regex": pattern})
        ]
        assert [answer.status_code for answer in answers] == [400 if last > LIMIT else 200] * 2, pattern
        health()
    for longest in (0, LIMIT, LIMIT + 1):
        body = live.chat("Go", max_tokens=3, **form({"type": "string", "maxLength": longest})).json()
        text = body["choices"][0]["message"]["content"]
        assert text == '""' if longest == 0 else text.startswith('"'), longest
    health()


def test_arrays_of_hundreds_and_of_nothing(live: Live) -> None:
    exact = {"type": "array", "items": {"const": 1}, "minItems": 200, "maxItems": 200}
    assert json.loads(live.answer("List numbers.", max_tokens=500, **form(exact))) == [1] * 200
    numbers = {"type": "array", "items": {"type": "number"}, "minItems": 12, "maxItems": 900}
    comma, end = (live.post("/tokenize", prompt=text).json()["tokens"][0] for text in ",]")
    for wish, count in (({end: 100, comma: 50}, 12), ({comma: 100}, None)):  # as few as may be, and no end
        bias = {str(token): value for token, value in wish.items()}
        body = live.chat("List numbers.", max_tokens=40, temperature=0, logit_bias=bias, **form(numbers)).json()
        text, why = body["choices"][0]["message"]["content"], body["choices"][0]["finish_reason"]
        if count is None:
            assert why == "length" and text.startswith("[") and text.count(",") > 12
        else:
            assert why == "stop" and len(json.loads(text)) == count
    for nothing in ({"type": "array", "items": {"type": "string"}, "maxItems": 0}, {"type": "array", "maxItems": 0}):
        assert live.answer("List numbers.", max_tokens=64, **form(nothing)) == "[]"


def levels(depth: int, width: int) -> dict[str, Any]:
    """oneOf in oneOf: width^depth branches, spelt in full."""
    if not depth:
        return {"type": "integer"}
    branch = {
        "properties": {"next": levels(depth - 1, width)},
        "required": ["k", "next"],
        "additionalProperties": False,
    }
    kinds = [{"type": "object", **branch} for _ in range(width)]
    return {"oneOf": [one | {"properties": {"k": {"const": i}, **branch["properties"]}} for i, one in enumerate(kinds)]}


def by_reference(depth: int, width: int) -> dict[str, Any]:
    """The same in kilobytes."""
    branches = [
        {
            "type": "object",
            "properties": {"k": {"const": i}, "next": {"$ref": "#/$defs/NEXT"}},
            "required": ["k", "next"],
            "additionalProperties": False,
        }
        for i in range(width)
    ]
    text = json.dumps({"oneOf": branches})
    defs = {f"l{i}": json.loads(text.replace("NEXT", f"l{i + 1}")) for i in range(depth)}
    return {"$ref": "#/$defs/l0", "$defs": {**defs, f"l{depth}": {"type": "integer"}}}


def calls(count: int) -> dict[str, Any]:
    """One call of as many tools, as `tool_choice: required` would have it; the tools themselves fill 10,000 tokens."""
    arguments = {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(4)}, "required": ["p0"]}
    return {
        "anyOf": [
            {
                "type": "object",
                "properties": {"name": {"const": f"tool_{i}"}, "arguments": arguments},
                "required": ["name", "arguments"],
                "additionalProperties": False,
            }
            for i in range(count)
        ]
    }


def test_large_constraints_stall_nobody_and_are_compiled_once(live: Live) -> None:
    pids = long_lived(live)
    stream = Stream(live)
    stream.start()
    try:
        assert stream.flowing.wait(HANG_S), stream.error
        for what, large, status in (
            ("in full", form(levels(6, 4)), 400),
            ("by reference", form(by_reference(12, 4)), 200),
            ("128 tools", form(calls(128)), 200),
        ):
            begun, hits = len(stream.times), live.metrics()["radixrt_grammar_cache_hits_total"]
            compiles = live.metrics()["radixrt_grammar_compiles_total"]
            with stream.goes_on(what):
                first = live.chat("x", max_tokens=16, **large)
            assert first.status_code == status, (what, first.text[:500])
            if status == 400:
                assert re.search(r"limit is \d+", first.json()["error"]["message"]), first.text
                continue
            assert len(stream.times) > begun, f"{what}: the other stream stood still"
            after = live.metrics()
            assert after["radixrt_grammar_compiles_total"] == compiles + 1
            assert live.chat("y", max_tokens=16, **large).status_code == 200
            assert live.metrics()["radixrt_grammar_compiles_total"] == compiles + 1
            assert live.metrics()["radixrt_grammar_cache_hits_total"] > hits
        ends = len(stream.times)
    finally:
        stream.stop.set()
        stream.join(HANG_S)
    assert stream.error is None and ends > 20
    assert long_lived(live).items() >= pids.items()
