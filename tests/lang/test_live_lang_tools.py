"""gen(tools=...): what the model is shown, what it is held to, and what becomes of its calls, in all back ends."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pytest

import radixrt
from radixrt import Engine
from radixrt.errors import InvalidRequest
from radixrt.lang import (
    OneRequestEach,
    OpenAI,
    ProgramError,
    Reply,
    ToolCall,
    assistant,
    function,
    gen,
    system,
    tool,
    user,
)
from radixrt.lang.capabilities import PLAIN
from radixrt.messages import ChatMessage, ChatPrompt
from tests.server.conftest import serving
from tests.server.fake_backend import FakeBackend
from tests.waiting import HANG_S, until


@pytest.fixture(scope="module")
def tiny(tiny_path: Path) -> Iterator[Engine]:
    with Engine(str(tiny_path), check=True, dtype="float32") as engine:
        yield engine


def weigh(item: Literal["tea", "cake"], exact: bool = False) -> int:
    """How heavy something is."""
    return len(item) + exact


SCHEMA = {
    "type": "function",
    "function": {
        "name": "open_door",
        "description": "Opens a door.",
        "parameters": {"type": "object", "properties": {"floor": {"enum": [1, 2]}}, "required": ["floor"]},
    },
}


@function
def ask(s, choice):
    s += system("Be brief.") + user("How heavy is cake?")
    s += assistant(gen("step", tools=[weigh, SCHEMA], tool_choice=choice, max_tokens=60, temperature=0))
    for call in s["step"].tool_calls:
        s += tool("9", tool_call_id=call.id, name=call.name)
    s += user("And now?") + assistant(gen("rest", max_tokens=4, temperature=0))


def seen(state: Any) -> list[Any]:
    state.text()
    return [(b.context.ids, b.context.text, b.context.messages()) for b in state.run.branches]


@pytest.mark.parametrize("choice", ["weigh", "required", "auto"])
def test_calls_are_typed_and_all_ways_give_the_same(tiny: Engine, choice: str) -> None:
    state = ask.run(choice=choice, backend=tiny)
    reply = state["step"]
    assert isinstance(reply, Reply) and str(reply) == reply.text
    if choice != "auto":
        (call,) = reply.tool_calls
        assert isinstance(call, ToolCall) and reply.text == ""
        assert call.name == "weigh" or choice == "required"
        assert call.id == state["step"].tool_calls[0].id and len(call.id) == 9
        if call.name == "weigh":
            assert call() == weigh(**call.arguments) and call.arguments["item"] in ("tea", "cake")
            assert json.loads(state.get("step", str).split("\n")[1])["arguments"] == call.arguments
        else:
            assert call.arguments["floor"] in (1, 2)
    eager = ask.run(choice=choice, backend=OneRequestEach(tiny))
    assert seen(state) == seen(eager)
    shown = list(state.branch.context.tools)
    asked = ChatPrompt(
        messages=[
            ChatMessage(role="system", content="Be brief."),
            ChatMessage(role="user", content="How heavy is cake?"),
        ],
        tools=shown,
    )
    ids = list(tiny.tokenize(asked).ids)
    assert state.branch.context.ids[: len(ids)] == ids  # as /v1/chat/completions renders them
    assert [entry["function"]["name"] for entry in shown] == ["weigh", "open_door"]


def test_tools_that_come_later_are_shown_from_the_first_turn(tiny: Engine) -> None:
    @function
    def late(s):
        s += system("Be brief.") + user("Hello") + assistant(gen("a", max_tokens=3, temperature=0))
        s += user("Weigh it.") + assistant(
            gen("b", tools=[weigh], tool_choice="required", max_tokens=60, temperature=0)
        )
        forks = s.fork(2)
        for fork in forks:
            fork += user("Again.")
            fork += assistant(gen("c", tools=[weigh], tool_choice="weigh", max_tokens=60, temperature=0))
        forks.join()

    state = late.run(backend=tiny)
    assert state["b"].tool_calls[0].name == "weigh" and [len(reply.tool_calls) for reply in state["c"]] == [1, 1]
    assert "weigh" in state.text().split("Hello")[0]
    assert seen(state) == seen(late.run(backend=OneRequestEach(tiny)))
    plan = late.explain(backend=tiny)
    assert "tools: weigh" in str(plan)


def test_over_http_and_over_the_openai_route(tiny: Engine) -> None:
    with serving(tiny, FakeBackend()) as served:
        with radixrt.Client(served.url, timeout=HANG_S) as client:
            state = ask.run(choice="weigh", backend=client)
            here = ask.run(choice="weigh", backend=tiny)
            assert seen(state) == seen(here) and len(state["step"].tool_calls) == 1
        service = OpenAI(base_url=f"{served.url}/v1", model=tiny.info.name, capabilities=PLAIN)
        state = ask.run(choice="weigh", backend=service)
        (call,) = state["step"].tool_calls
        assert call.name == "weigh" and call() == weigh(**call.arguments)
        messages = state.messages()
        assert messages[2]["tool_calls"][0]["function"]["name"] == "weigh"
        assert messages[3] == {"role": "tool", "content": "9", "tool_call_id": call.id, "name": "weigh"}
        weaker = OpenAI(base_url=f"{served.url}/v1", model=tiny.info.name, capabilities=PLAIN - {"tools"})
        with pytest.raises(ProgramError, match="tools"):
            _ = ask.run(choice="auto", backend=weaker)["step"]


def test_a_call_that_was_cut_is_no_value(tiny: Engine) -> None:
    @function
    def short(s):
        s += user("How heavy?") + assistant(gen("x", tools=[weigh], tool_choice="weigh", max_tokens=12, temperature=0))

    state = short.run(backend=tiny)
    with pytest.raises(ProgramError) as caught:
        _ = state["x"]
    assert caught.value.code == "truncated"
    until(lambda: not tiny.stats().running and not sum(node.locks for node in tiny.tree()))


def positional(*items: str) -> None: ...


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"tools": []}, "at least one"),
        ({"tools": [weigh, weigh]}, "twice"),
        ({"tools": [weigh], "tool_choice": "fly"}, "auto, required or one of weigh"),
        ({"tools": [weigh], "regex": "a"}, "another constraint"),
        ({"tools": [weigh], "n": 2}, "n > 1"),
        ({"tool_choice": "required"}, "need tools"),
        ({"tools": [{"type": "function"}]}, "name"),
        ({"tools": [3]}, "Python function"),
        ({"tools": [positional]}, "positional"),
    ],
)
def test_what_cannot_be_is_refused_where_it_is_written(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        gen("x", **fields)


def test_tools_need_an_assistants_turn_of_their_own(tiny: Engine) -> None:
    @function
    def outside(s):
        s += "Text" + gen("x", tools=[weigh])

    @function
    def inside(s):
        s += user("Hi") + assistant(gen("a", max_tokens=2, temperature=0) + gen("b", tools=[weigh], max_tokens=9))

    with pytest.raises(InvalidRequest, match="assistant"):
        outside.run(backend=tiny)
    with pytest.raises(ProgramError, match="first gen"):
        _ = inside.run(backend=tiny)["b"]
