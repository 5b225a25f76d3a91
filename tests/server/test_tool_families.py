"""Tiny models whose template opens calls with control tokens, in both of Mistral's forms: over HTTP and in programs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import jsonschema
import pytest
from fastapi.testclient import TestClient

import radixrt
from radixrt import Engine
from radixrt.lang import OneRequestEach, assistant, function, gen, tool, user
from radixrt.messages import ChatPrompt
from radixrt.server.app import create_app
from tests.families import write_family
from tests.waiting import HANG_S

from .conftest import serving
from .events import error_of, events
from .fake_backend import FakeBackend
from .test_http_tools import join

BOOK = {
    "type": "object",
    "properties": {
        "city": {"enum": ["Orléans", "東京"]},
        "room": {"type": "object", "properties": {"floor": {"enum": [1, 2]}}, "required": ["floor"]},
    },
    "required": ["room", "city"],
}
TOOLS = [
    {"type": "function", "function": {"name": "now"}},
    {"type": "function", "function": {"name": "book", "parameters": BOOK}},
]
NUMBER = {"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"], "additionalProperties": False}
FORMAT = {"type": "json_schema", "json_schema": {"name": "n", "schema": NUMBER}}
NAMED = {"type": "function", "function": {"name": "book"}}


@pytest.fixture(scope="module", params=["mistral", "mistral-args"])
def engine(
    request: pytest.FixtureRequest, tiny_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Engine]:
    directory = write_family(tmp_path_factory.mktemp("family") / request.param, tiny_path, request.param)
    with Engine(str(directory), check=True, dtype="float32", threads=1) as engine:
        assert engine.info.tool_dialect == request.param and "[TOOL_CALLS]" in engine.info.tool_controls
        yield engine


@pytest.fixture(scope="module")
def http(engine: Engine) -> Iterator[TestClient]:
    with TestClient(create_app(engine)) as client:
        yield client


def both(http: TestClient, **body: Any) -> tuple[dict[str, Any], str]:
    base = {"messages": [{"role": "user", "content": "Hi"}], "tools": TOOLS, "temperature": 0, "max_tokens": 60}
    answer = http.post("/v1/chat/completions", json={**base, **body})
    assert answer.status_code == 200, answer.text
    whole = answer.json()["choices"][0]
    message, reason = join(events(http.post("/v1/chat/completions", json={**base, **body, "stream": True})))  # type: ignore[arg-type]
    made = [[c["function"] for c in m.get("tool_calls", ())] for m in (message, whole["message"])]
    assert made[0] == made[1] and message["content"] == whole["message"]["content"]
    assert reason == whole["finish_reason"]
    for call in whole["message"].get("tool_calls", ())[: None if reason == "tool_calls" else -1]:
        assert len(call["id"]) == 9
        schema = BOOK if call["function"]["name"] == "book" else {"maxProperties": 0}
        jsonschema.validate(json.loads(call["function"]["arguments"]), schema)
    return whole["message"], reason


@pytest.fixture
def opener(engine: Engine) -> str:
    """The id of the token that opens calls, as a key of logit_bias."""
    ids = [token for token in range(20) if engine.detokenize([token]) == "[TOOL_CALLS]"]
    return str(*ids)


def test_forced_calls(http: TestClient) -> None:
    message, reason = both(http, tool_choice=NAMED)
    (call,) = message["tool_calls"]
    assert (call["function"]["name"], reason, message["content"]) == ("book", "tool_calls", None)
    assert call["function"]["arguments"].startswith('{"city": "') and "\\u" not in call["function"]["arguments"]
    message, reason = both(http, tool_choice="required", parallel_tool_calls=False)
    assert reason == "tool_calls" and len(message["tool_calls"]) == 1
    message, reason = both(http, tool_choice="required", parallel_tool_calls=True, max_tokens=40)
    assert message["tool_calls"] and (reason == "tool_calls" or reason == "length")


def test_the_token_opens_calls_in_free_text(http: TestClient, opener: str) -> None:
    message, reason = both(http, parallel_tool_calls=False, logit_bias={opener: 100})
    assert len(message["tool_calls"]) == 1 and (message["content"], reason) == (None, "tool_calls")
    message, reason = both(http, logit_bias={opener: -100}, max_tokens=12)
    assert "tool_calls" not in message and reason == "length" and message["content"]


def test_a_response_format_or_a_call(http: TestClient, opener: str) -> None:
    message, reason = both(http, response_format=FORMAT, logit_bias={opener: -100})
    assert json.loads(message["content"])["n"] in (1, 2) and reason == "stop" and "tool_calls" not in message
    body = {"response_format": FORMAT, "logit_bias": {opener: 100}, "parallel_tool_calls": False}
    message, reason = both(http, **body)
    assert len(message["tool_calls"]) == 1 and (message["content"], reason) == (None, "tool_calls")
    bad = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"properties": {"n": {"pattern": "(?=x)"}}}}}
    answer = http.post(
        "/v1/chat/completions",
        json={"messages": [{"role": "user", "content": "Hi"}], "tools": TOOLS, "response_format": bad},
    )
    assert error_of(answer, 400)["pointer"] == "/properties/n/pattern"  # type: ignore[arg-type]


def test_a_conversation_with_calls_stays_a_cached_prefix(http: TestClient) -> None:
    messages: list[dict[str, Any]] = [{"role": "user", "content": "Hi"}]
    level = {"name": "level", "parameters": {"properties": {"n": {"enum": [1, 2]}}, "required": ["n"]}}
    named = {"type": "function", "function": {"name": "level"}}
    tools = [*TOOLS, {"type": "function", "function": level}]
    body: dict[str, Any] = {"tools": tools, "temperature": 0, "max_tokens": 60, "return_token_ids": True}
    first = http.post("/v1/chat/completions", json={"messages": messages, "tool_choice": named, **body}).json()
    choice = first["choices"][0]
    call = choice["message"]["tool_calls"][0]
    messages += [choice["message"], {"role": "tool", "tool_call_id": call["id"], "content": "12 °C"}]
    body["max_tokens"] = 3
    again = http.post("/v1/chat/completions", json={"messages": messages, "tool_choice": "auto", **body}).json()
    # One of the two forms has the call's id in the history, behind the arguments, where the model wrote the end.
    generated = [*first["prompt_token_ids"], *choice["token_ids"]][:-2]
    assert again["prompt_token_ids"][: len(generated)] == generated
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] >= len(generated) - 1


def weigh(item: Literal["tea", "cake"], exact: bool = False) -> int:
    """How heavy something is."""
    return len(item) + exact


@function
def ask(s, choice):
    s += user("How heavy is cake?")
    s += assistant(
        gen("step", tools=[weigh], tool_choice=choice, parallel_tool_calls=False, max_tokens=50, temperature=0)
    )
    for call in s["step"].tool_calls:
        s += tool(str(call()), tool_call_id=call.id, name=call.name)
    s += assistant(gen("rest", max_tokens=3, temperature=0))


def seen(state: Any) -> list[Any]:
    state.text()
    return [(b.context.ids, b.context.text, b.context.messages()) for b in state.run.branches]


@pytest.mark.parametrize("choice", ["weigh", "auto"])
def test_programs_call_and_go_on(engine: Engine, choice: str) -> None:
    state = ask.run(choice=choice, backend=engine)
    assert seen(state) == seen(ask.run(choice=choice, backend=OneRequestEach(engine)))
    if choice == "auto":
        assert state["step"].tool_calls == () and state["step"].text
        return
    (call,) = state["step"].tool_calls
    assert call() == weigh(**call.arguments) and state["step"].text == ""
    # What stands is what the chat route makes of the same messages, calls as calls.
    messages = state.branch.context.messages()
    assert messages[1].tool_calls is not None and messages[1].tool_calls[0]["id"] == call.id
    asked = engine.tokenize(ChatPrompt(messages=messages[:3], tools=list(state.branch.context.tools)))
    assert state.branch.context.ids[: len(asked.ids)] == list(asked.ids)
    with serving(engine, FakeBackend()) as served, radixrt.Client(served.url, timeout=HANG_S) as client:
        assert seen(ask.run(choice=choice, backend=client)) == seen(state)
