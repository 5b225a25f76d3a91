"""Tools over HTTP: shapes, both modes, finish reasons, refusals (R29, R30, R32)."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from radixrt.errors import ConstraintError
from radixrt.grammar import Limits
from radixrt.grammar.structural import read_structural_tag
from radixrt.messages import ChatPrompt, TokensPrompt
from radixrt.params import Constraint
from radixrt.server.app import ROUTES
from radixrt.server.native_types import GenerateRequest
from radixrt.server.program_types import ProgramRequest

from .conftest import Served
from .events import error_of, events
from .fake_backend import FakeBackend

WEATHER = {
    "name": "get_weather",
    "parameters": {"type": "object", "properties": {"city": {"enum": ["Orléans", "東京"]}}},
}
NOW = {"name": "now"}
TOOLS = [{"type": "function", "function": function} for function in (WEATHER, NOW)]
CITY = '{"city": "Orléans"}'


def call(name: str, arguments: str) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


def some(mode: str, *names: str) -> dict[str, Any]:
    """A tool_choice of some of the tools, as the openai package writes it."""
    tools = [{"type": "function", "function": {"name": name}} for name in names]
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}


def knows(backend: FakeBackend, **facts: Any) -> None:
    backend.info = msgspec.structs.replace(backend.info, **facts)


def form_of(backend: FakeBackend) -> dict[str, Any]:
    """The structural tag that the last request was held to."""
    constraint = backend.seen[-1][2]
    assert constraint is not None and constraint.kind == "structural_tag" and constraint.spaced
    form = json.loads(constraint.value)["format"]
    assert isinstance(form, dict)
    return form


def join(chunks: list[dict[str, Any]], index: int = 0) -> tuple[dict[str, Any], str]:
    """The message that the chunks of a choice amount to, after the rules of a stream are checked."""
    message: dict[str, Any] = {}
    reasons = []
    calls: list[dict[str, Any]] = []
    for choice in (c for chunk in chunks for c in chunk["choices"] if c["index"] == index):
        delta = choice["delta"]
        reasons.append(choice["finish_reason"])
        message |= {"role": delta["role"]} if "role" in delta else {}
        for name in ("content", "reasoning_content"):
            if name in delta:
                message[name] = None if delta[name] is None else (message.get(name) or "") + delta[name]
        for piece in delta.get("tool_calls", ()):
            assert isinstance(piece["function"]["arguments"], str)
            if piece["index"] == len(calls):
                assert piece.keys() == {"index", "id", "type", "function"} and piece["type"] == "function"
                assert piece["function"].keys() == {"name", "arguments"} and piece["function"]["arguments"] == ""
                calls.append({"id": piece["id"], "type": "function", "function": dict(piece["function"])})
            else:
                assert piece["index"] == len(calls) - 1, "one call after the other"
                assert piece.keys() == {"index", "function"} and piece["function"].keys() == {"arguments"}
                assert piece["function"]["arguments"]
                calls[-1]["function"]["arguments"] += piece["function"]["arguments"]
    assert reasons[-1] is not None and set(reasons[:-1]) == {None}
    if calls:
        message["tool_calls"] = calls
    return message, reasons[-1]


def both(served: Served, **body: Any) -> tuple[dict[str, Any], str]:
    """Message and finish_reason, which must be the same in both modes (ids apart, which are never the same)."""
    answer = served.chat(**body).json()["choices"][0]
    whole, reason = answer["message"], answer["finish_reason"]
    streamed, same = join(events(served.chat(stream=True, **body)))
    assert whole.pop("refusal") is None
    ids = {c.pop("id") for m in (whole, streamed) for c in m.get("tool_calls", ())}
    assert len(ids) == 2 * len(whole.get("tool_calls", ())) and all(ids)
    assert (streamed, same) == (whole, reason)
    return whole, reason


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "get_weather"}}])
def test_a_forced_call(served: Served, choice: Any) -> None:
    opening = '<tool_call>\n{"name":' + ("" if choice == "required" else ' "get_weather", "arguments":')
    served.backend.reply = call("get_weather", CITY).removeprefix(opening)
    message, reason = both(served, tools=TOOLS, tool_choice=choice)
    prompt = served.backend.seen[-1][0]
    assert isinstance(prompt, ChatPrompt) and prompt.opening == opening
    assert reason == "tool_calls" and message["content"] is None
    assert message["tool_calls"] == [{"type": "function", "function": {"name": "get_weather", "arguments": CITY}}]
    form = form_of(served.backend)
    assert form["type"] == "tags_with_separator" and form["at_least_one"] and form["stop_after_first"]
    assert len(form["tags"]) == (2 if choice == "required" else 1)
    assert form["tags"][0]["content"]["json_schema"]["properties"] == WEATHER["parameters"]["properties"]  # type: ignore[index]
    served.chat(tools=TOOLS, tool_choice="required", parallel_tool_calls=True)
    assert form_of(served.backend)["stop_after_first"] is False


def test_some_of_the_tools_are_allowed(served: Served) -> None:
    served.backend.reply = f"Moment.\n{call('now', '{}')}"
    message, reason = both(served, tools=TOOLS, tool_choice=some("auto", "now"))
    assert reason == "tool_calls" and message["content"] == "Moment."
    assert [c["function"]["name"] for c in message["tool_calls"]] == ["now"]
    prompt = served.backend.seen[-1][0]
    assert isinstance(prompt, ChatPrompt) and prompt.tools == TOOLS, "the model is told of all: the prefix stays cached"
    form = form_of(served.backend)
    assert form["type"] == "triggered_tags" and ["now" in tag["begin"] for tag in form["tags"]] == [True]
    served.chat(tools=TOOLS, tool_choice=some("required", "now", "get_weather"), parallel_tool_calls=True)
    form = form_of(served.backend)
    assert form["at_least_one"] and len(form["tags"]) == 2 and not form["stop_after_first"]
    served.chat(tools=TOOLS, tool_choice=some("required", "now"))
    assert form_of(served.backend)["stop_after_first"]


def test_free_calls_and_text_around_them(served: Served) -> None:
    served.backend.reply = f"Moment …\n{call('get_weather', CITY)}\n{call('now', '{}')}"
    message, reason = both(served, tools=TOOLS)
    assert reason == "tool_calls" and message["content"] == "Moment …"
    assert [c["function"]["name"] for c in message["tool_calls"]] == ["get_weather", "now"]
    assert message["tool_calls"][1]["function"]["arguments"] == "{}"
    assert form_of(served.backend)["type"] == "triggered_tags"
    served.chat(tools=TOOLS, parallel_tool_calls=False)
    assert form_of(served.backend)["stop_after_first"] is True
    served.backend.reply = "Just text, no call."
    message, reason = both(served, tools=TOOLS, tool_choice="auto")
    assert (message, reason) == ({"role": "assistant", "content": "Just text, no call."}, "stop")


def test_none_shows_no_tools_and_calls_nothing(served: Served) -> None:
    served.backend.reply = call("now", "{}")
    message, reason = both(served, tools=TOOLS, tool_choice="none")
    assert (message["content"], reason) == (served.backend.reply, "stop") and "tool_calls" not in message
    prompt, _, constraint, *_ = served.backend.seen[-1]
    assert isinstance(prompt, ChatPrompt) and prompt.tools is None and constraint is None
    served.chat(tools=TOOLS)
    prompt = served.backend.seen[-1][0]
    assert isinstance(prompt, ChatPrompt) and prompt.tools == TOOLS
    assert served.chat(tools=[], tool_choice="auto").status_code == 200


def test_a_cut_call_says_length_in_both_modes(served: Served) -> None:
    text = f"{call('get_weather', CITY)}\n{call('now', '{}')}"
    served.backend.reply = text
    size = len(text.encode())
    seen = set()
    for limit in range(1, size + 1, 3):
        message, reason = both(served, tools=TOOLS, max_tokens=limit)
        calls = message.get("tool_calls", [])
        assert reason == ("length" if limit < size else "tool_calls")
        assert "name" not in (message["content"] or ""), "a call's unfinished beginning is not for the user"
        seen.add(len(calls))
        for made, arguments in zip(calls, (CITY, "{}"), strict=False):
            assert arguments.startswith(made["function"]["arguments"].rstrip("\ufffd"))
    assert seen == {0, 1, 2}


def test_samples_have_calls_of_their_own(served: Served) -> None:
    served.backend.reply = call("now", "{}")
    body: dict[str, Any] = {"tools": TOOLS, "n": 3, "logprobs": True, "return_token_ids": True}
    whole = served.chat(**body).json()["choices"]
    chunks = events(served.chat(stream=True, **body))
    ids = set()
    for choice in whole:
        message, reason = join(chunks, choice["index"])
        assert reason == choice["finish_reason"] == "tool_calls"
        assert message["content"] == choice["message"]["content"]
        ids |= {c["id"] for m in (message, choice["message"]) for c in m["tool_calls"]}
        mine = [c for chunk in chunks for c in chunk["choices"] if c["index"] == choice["index"]]
        assert [t for c in mine for t in c.get("token_ids", ())] == choice["token_ids"]
        entries = [e for c in mine if c["logprobs"] for e in c["logprobs"]["content"]]
        assert entries == choice["logprobs"]["content"]
    assert len(ids) == 6


def test_the_function_s_fault_has_a_pointer(served: Served) -> None:
    bad = {"name": "bad", "parameters": {"type": "array"}}
    response = served.chat(tools=[*TOOLS, {"type": "function", "function": bad}])
    assert error_of(response, 400)["param"] == "tools[2].function.parameters.type"


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [], "tool_choice": {"type": "function", "function": {"name": "now"}}}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "rm"}}}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": {"type": "function"}}, "tool_choice.function"),
        ({"tools": TOOLS, "tool_choice": "always"}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": some("auto")}, "tool_choice.allowed_tools.tools"),
        ({"tools": TOOLS, "tool_choice": some("auto", "now", "rm")}, "tool_choice.allowed_tools.tools[1]"),
        ({"tools": TOOLS, "tool_choice": some("none", "now")}, "tool_choice.allowed_tools.mode"),
        ({"tool_choice": some("auto", "now")}, "tool_choice.allowed_tools.tools[0]"),
        ({"tools": [*TOOLS, TOOLS[0]]}, "tools[2].function.name"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name"),
        ({"tools": [{"type": "function", "function": {}}]}, "tools[0].function.name"),
        ({"tools": [{"type": "retrieval"}]}, "tools[0].type"),
        ({"tools": [{"type": "function", "function": {"name": "f", "x": 1}}]}, "tools[0].function.x"),
        ({"tools": TOOLS, "regex": "a+"}, "tools"),
        ({"functions": [WEATHER]}, "functions"),
        ({"function_call": "auto"}, "function_call"),
        (
            {"tools": [{"type": "function", "function": {"name": "f", "parameters": []}}]},
            "tools[0].function.parameters",
        ),
        ({"tools": [{"type": "function", "function": {"name": "f", "strict": "yes"}}]}, "tools[0].function.strict"),
        ({"tools": TOOLS * 65}, "tools"),
        ({"tools": TOOLS, "add_generation_prompt": False, "continue_final_message": True}, "continue_final_message"),
    ],
)
def test_bad_tools_are_named(served: Served, body: dict[str, Any], param: str) -> None:
    assert error_of(served.chat(**body), 400)["param"] == param
    assert served.backend.seen == []


def nested(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(levels):
        schema = {"type": "object", "properties": {"a": schema}}
    return schema


def test_parameters_that_nest_too_deeply(served: Served) -> None:
    deep = {"type": "function", "function": {"name": "f", "parameters": nested(200)}}
    error = error_of(served.chat(tools=[TOOLS[1], deep]), 400)
    assert error["param"] == "tools[1].function.parameters" and "nests" in error["message"]
    assert served.backend.seen == []
    deep["function"]["parameters"] = nested(60)  # type: ignore[index]
    assert served.chat(tools=[deep]).status_code == 200


@pytest.mark.parametrize("text", ["</tool_call>", '"}}\n</tool_call>', "<tool_call>", "[TOOL_CALLS]"])
def test_arguments_that_hold_the_family_s_own_words(served: Served, text: str) -> None:
    arguments = json.dumps({"city": text}, ensure_ascii=False)
    served.backend.reply = f"{call('get_weather', arguments)}\n{call('now', '{}')}"
    message, reason = both(served, tools=TOOLS)
    assert [c["function"]["arguments"] for c in message["tool_calls"]] == [arguments, "{}"] and reason == "tool_calls"
    served.backend.reply = f"A <tool_call> is no call, nor is {text}."
    message, reason = both(served, tools=TOOLS)
    assert (message["content"], reason) == (served.backend.reply, "stop") and "tool_calls" not in message


def test_a_template_whose_calls_nobody_knows(served: Served) -> None:
    knows(served.backend, tool_dialect=None)
    assert error_of(served.chat(tools=TOOLS), 400)["code"] == "tools_unavailable"
    assert served.chat(tools=TOOLS, tool_choice="none").status_code == 200
    assert served.chat().status_code == 200


def test_an_opener_that_is_a_control_token_goes_into_the_prompt(served: Served) -> None:
    knows(served.backend, tool_dialect="mistral", tool_controls=("[TOOL_CALLS]",))
    served.backend.reply = ' "now", "arguments": {}}]'
    message, reason = both(served, tools=TOOLS, tool_choice="required")
    assert reason == "tool_calls" and message["tool_calls"][0]["function"]["name"] == "now"
    prompt, sampling, *_ = served.backend.seen[-1]
    assert (
        isinstance(prompt, ChatPrompt)
        and prompt.opening == '[TOOL_CALLS][{"name":'
        and not sampling.skip_special_tokens
    )
    assert form_of(served.backend)["tags"][0]["begin"].startswith(' "get_weather"')
    shown = served.chat(tools=TOOLS, tool_choice="required", return_token_ids=True).json()["prompt_token_ids"]
    assert bytes(shown).endswith(b'<assistant>[TOOL_CALLS][{"name":')
    served.backend.reply = '[TOOL_CALLS][{"name":' + served.backend.reply
    strict = [{"type": "function", "function": {**tool, "strict": True}} for tool in (WEATHER, NOW)]
    message, reason = both(served, tools=strict)
    assert reason == "tool_calls" and message["tool_calls"][0]["function"]["name"] == "now"


def test_free_calls_behind_a_control_token_are_held_to_their_schemas(served: Served) -> None:
    knows(served.backend, tool_dialect="mistral", tool_controls=("[TOOL_CALLS]",))
    two = f'{{"name": "get_weather", "arguments": {CITY}}}, {{"name": "now", "arguments": {{}}}}'
    served.backend.reply = f"Moment[TOOL_CALLS][{two}]"
    message, reason = both(served, tools=TOOLS)
    assert reason == "tool_calls" and message["content"] == "Moment"
    assert [c["function"]["arguments"] for c in message["tool_calls"]] == [CITY, "{}"]
    _, sampling, constraint, *_ = served.backend.seen[-1]
    assert constraint is not None and constraint.controls == ("[TOOL_CALLS]",) and not sampling.skip_special_tokens
    free, behind = form_of(served.backend)["elements"]
    before, array, after = behind["content"]["elements"]
    assert free == {"type": "any_text", "excludes": ["[TOOL_CALLS]"]} and behind["type"] == "optional"
    assert (before["value"], after["value"], array["separator"]) == ("[TOOL_CALLS][", "]", ", ")
    assert array["at_least_one"] and not array["stop_after_first"]
    assert array["tags"][0]["begin"] == '{"name": "get_weather", "arguments": '
    assert array["tags"][0]["content"]["json_schema"]["properties"] == WEATHER["parameters"]["properties"]  # type: ignore[index]
    served.chat(tools=TOOLS, parallel_tool_calls=False)
    assert form_of(served.backend)["elements"][1]["content"]["elements"][1]["stop_after_first"] is True
    served.backend.reply = "Just text, no call."
    message, reason = both(served, tools=TOOLS)
    assert (message["content"], reason) == ("Just text, no call.", "stop") and "tool_calls" not in message


def test_json_or_calls_behind_a_control_token(served: Served) -> None:
    knows(served.backend, tool_dialect="mistral", tool_controls=("[TOOL_CALLS]",))
    served.backend.reply = '{"n": 3}'
    body: dict[str, Any] = {"tools": TOOLS, "response_format": {"type": "json_object"}}
    message, reason = both(served, **body)
    assert (message["content"], reason) == ('{"n": 3}', "stop") and "tool_calls" not in message
    constraint = served.backend.seen[-1][2]
    text, calls = form_of(served.backend)["elements"]
    assert constraint is not None and constraint.controls == ("[TOOL_CALLS]",)
    assert text == {"type": "json_schema", "json_schema": {"type": "object"}}
    assert calls["elements"][0]["value"] == "[TOOL_CALLS]["
    served.backend.reply = '[TOOL_CALLS][{"name": "now", "arguments": {}}]'
    message, reason = both(served, **body)
    assert (message["content"], reason) == (None, "tool_calls")


def test_names_and_arguments_with_a_token_between_them(served: Served) -> None:
    knows(served.backend, tool_dialect="mistral-args", tool_controls=("[TOOL_CALLS]", "[ARGS]"))
    served.backend.reply = f"Moment[TOOL_CALLS]get_weather[ARGS]{CITY}[TOOL_CALLS]now[ARGS]{{}}"
    message, reason = both(served, tools=TOOLS)
    assert reason == "tool_calls" and message["content"] == "Moment"
    assert [c["function"]["name"] for c in message["tool_calls"]] == ["get_weather", "now"]
    assert [c["function"]["arguments"] for c in message["tool_calls"]] == [CITY, "{}"]
    served.backend.reply = "[TOOL_CALLS]now[ARGS]{}"
    message, reason = both(served, tools=TOOLS, tool_choice="required")
    assert reason == "tool_calls" and message["content"] is None
    assert [tag["begin"] for tag in form_of(served.backend)["tags"]] == [
        "[TOOL_CALLS]get_weather[ARGS]",
        "[TOOL_CALLS]now[ARGS]",
    ]


def test_a_body_may_allow_the_control_tokens_of_calls_alone(served: Served) -> None:
    tag = {"kind": "structural_tag", "value": "{}", "controls": ["[TOOL_CALLS]"]}
    items = [{"type": "Text", "text": "a"}, {"type": "Gen", "index": 0, "sampling": {}, "constraint": tag}]
    knows(served.backend, tool_dialect="mistral", tool_controls=("[ARGS]",))
    found = served.post("/generate", {"prompt": "a", "constraint": tag})
    assert error_of(found, 400)["param"] == "constraint.controls"
    found = served.post("/v1/programs", {"items": items})
    assert error_of(found, 400)["param"] == "items[1].constraint.controls"
    assert error_of(served.chat(structured_outputs={"controls": []}), 400)["code"] == "unknown_parameter"
    assert served.backend.seen == []
    for name in ("structural_tag", "response_format"):
        # Inside a tag it is one more word of the tag, which the grammar room does not know.
        served.chat(**{name: {"type": "structural_tag", "controls": ["[TOOL_CALLS]"]}})
        constraint = served.backend.seen[-1][2]
        assert constraint is not None and constraint.controls == () and "controls" in constraint.value
        with pytest.raises(ConstraintError):
            read_structural_tag(constraint.value, Limits())
    knows(served.backend, tool_controls=("[TOOL_CALLS]",))
    assert served.post("/generate", {"prompt": "a", "constraint": tag}).status_code == 200
    # Every body in which a whole Constraint can stand is one of the two above.
    holding = {route.body for route in ROUTES if route.body is not None and _reaches(route.body, Constraint)}
    assert holding == {GenerateRequest, ProgramRequest}


def _reaches(kind: type, wanted: type) -> bool:
    _, components = msgspec.json.schema_components([kind], schema_hook=lambda _: {"type": "array"})
    return wanted.__name__ in components


def test_thoughts_are_told_apart(served: Served) -> None:
    knows(served.backend, thinking=("<think>", "</think>"))
    served.backend.reply = "<think>\nHm.\n</think>\n\nFour."
    message, reason = both(served)
    assert (message["reasoning_content"], message["content"], reason) == ("Hm.", "Four.", "stop")
    served.backend.reply = f"Hm, …\n</think>\n\n{call('now', '{}')}"
    body = {"tools": TOOLS, "messages": [{"role": "user", "content": "?"}, {"role": "user", "content": "<think>"}]}
    # The fake renders the last turn as it is, so that this prompt ends inside a thought.
    message, reason = both(served, **body, add_generation_prompt=False)
    assert (message["reasoning_content"], message["content"], reason) == ("Hm, …", None, "tool_calls")
    assert isinstance(served.backend.seen[-1][0], TokensPrompt)
    both(served, **body, add_generation_prompt=False, tool_choice="required")
    form, held = form_of(served.backend), served.backend.seen[-1][2]
    assert held is not None and held.behind == "</think>" and form["at_least_one"] and form["stop_after_first"]
    assert form["tags"][0]["begin"].startswith('<tool_call>\n{"name": "get_weather"')


@pytest.mark.parametrize(
    ("asked", "kind"),
    [
        ({"response_format": {"type": "json_object"}}, "json_object"),
        ({"json_schema": {"type": "object"}, "lax": True}, "json_schema"),
        ({"choice": ["a", "b"]}, "choice"),
        ({"regex": "a/b"}, "regex"),
        ({"structured_outputs": {"grammar": 'start: "a"'}}, "grammar"),
    ],
)
def test_a_constraint_begins_behind_the_thought(served: Served, asked: dict[str, Any], kind: str) -> None:
    knows(served.backend, thinking=("<think>", "</think>"))
    body = {"messages": [{"role": "user", "content": "<think>"}], "add_generation_prompt": False, **asked}
    served.chat(**body)
    constraint = served.backend.seen[-1][2]
    assert constraint is not None and constraint.kind == kind and constraint.behind == "</think>"
    served.chat(**asked)
    own = served.backend.seen[-1][2]
    assert own == msgspec.structs.replace(constraint, think="<think>"), "the model may open a thought itself"
    served.chat(**asked, chat_template_kwargs={"enable_thinking": False})
    plain = served.backend.seen[-1][2]
    assert plain == msgspec.structs.replace(constraint, behind=""), "no thought is wanted"


def test_a_response_format_beside_free_calls(served: Served) -> None:
    """The answer is JSON of the schema or a call; a call that is forced leaves no text to be held to it."""
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}}
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
    served.backend.reply = '{"n": 3}'
    message, reason = both(served, tools=TOOLS, response_format=form)
    assert (message["content"], reason) == ('{"n": 3}', "stop") and "tool_calls" not in message
    found = form_of(served.backend)
    text, calls = found["elements"]
    assert found["type"] == "or" and text == {"type": "json_schema", "json_schema": schema}
    assert len(calls["tags"]) == 2 and not calls["stop_after_first"]
    served.chat(tools=TOOLS, response_format=form, parallel_tool_calls=False)
    assert form_of(served.backend)["elements"][1]["stop_after_first"]
    served.backend.reply = ' "now", "arguments": {}}\n</tool_call>'
    message, reason = both(served, tools=TOOLS, response_format=form, tool_choice="required")
    assert reason == "tool_calls" and message["tool_calls"][0]["function"]["name"] == "now"
    assert all(tag["begin"] for tag in form_of(served.backend)["tags"])
