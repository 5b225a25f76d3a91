"""Conversations as clients send them back: calls, refusals, parsed answers, marks for other services' caches (R48)."""

from __future__ import annotations

from typing import Any

import pytest

from radixrt.messages import ChatMessage, ChatPrompt

from .conftest import Served
from .events import error_of

CHAT = "/v1/chat/completions"
USER = {"role": "user", "content": "Hi"}


def seen(served: Served, *messages: dict[str, Any], **body: Any) -> list[ChatMessage]:
    """The messages as the template gets them."""
    response = served.post(CHAT, {"messages": [USER, *messages], **body})
    assert response.status_code == 200, response.text
    prompt = served.backend.seen[-1][0]
    assert isinstance(prompt, ChatPrompt)
    return prompt.messages


def called(arguments: Any, **more: Any) -> dict[str, Any]:
    function = {"name": "f", "arguments": arguments, **more}
    return {"role": "assistant", "content": None, "tool_calls": [{"id": "c", "type": "function", "function": function}]}


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ('{"city":  "Orléans"}', '{"city":  "Orléans"}'),
        ({"city": "Orléans", "n": [1, None]}, '{"city": "Orléans", "n": [1, null]}'),
        (None, "{}"), ("", "{}"), ({}, "{}"), ("{not json", "{not json"),
    ],
)  # fmt: skip
def test_arguments_are_text_or_the_object(served: Served, arguments: Any, text: str) -> None:
    """An object is written as the model would have written it, so that it is found in the cache."""
    calls = seen(served, called(arguments), {"role": "tool", "tool_call_id": "c", "content": "12"})[1].tool_calls
    assert calls is not None and calls[0]["function"] == {"name": "f", "arguments": text}
    for bad in (5, [1], True):
        error = error_of(served.post(CHAT, {"messages": [USER, called(bad)]}), 400)
        assert error["param"] == "messages[1].tool_calls[0].function.arguments"


def test_a_result_whose_call_was_cut_off_is_told_to_the_template(served: Served) -> None:
    """Agents cut long histories at the front, and servers of open models take what is left."""
    for more in ({"tool_call_id": "gone"}, {"tool_call_id": "gone", "name": "f"}, {}):
        result = seen(served, {"role": "tool", "content": "12", **more}, USER)[1]
        assert (result.role, result.content, result.tool_call_id) == ("tool", "12", more.get("tool_call_id"))


def test_what_the_sdk_parsed_comes_back_with_the_answer(served: Served) -> None:
    answer = {"role": "assistant", "content": '{"a":1}', "parsed": {"a": 1}, "refusal": None, "tool_calls": None}
    call = called('{"a": 1}', parsed_arguments={"a": 1}) | {"parsed": None}
    messages = seen(served, answer, USER, call, {"role": "tool", "tool_call_id": "c", "content": "x"})
    assert messages[1].content == '{"a":1}' and messages[3].tool_calls is not None
    assert messages[3].tool_calls[0]["function"] == {"name": "f", "arguments": '{"a": 1}'}


def test_a_refusal_is_what_the_assistant_said(served: Served) -> None:
    for refused in (
        {"content": None, "refusal": "I cannot."}, {"content": "", "refusal": "I cannot."}, {"refusal": "I cannot."},
        {"content": [{"type": "refusal", "refusal": "I cannot."}]},
        {"content": [{"type": "text", "text": "I "}, {"type": "refusal", "refusal": "cannot."}]},
    ):  # fmt: skip
        assert seen(served, {"role": "assistant", **refused}, USER)[1].content == "I cannot."
    for message, param in (
        ({"role": "assistant", "content": "Yes.", "refusal": "No."}, "messages[1].refusal"),
        ({"role": "user", "content": "Yes.", "refusal": "No."}, "messages[1].refusal"),
        ({"role": "user", "content": [{"type": "refusal", "refusal": "No."}]}, "messages[1].content[0].type"),
        ({"role": "assistant", "content": [{"type": "refusal", "refusal": 5}]}, "messages[1].content[0].refusal"),
    ):
        assert error_of(served.post(CHAT, {"messages": [USER, message]}), 400)["param"] == param


def test_cache_control_is_taken_everywhere_and_nothing_else_is(served: Served) -> None:
    mark = {"cache_control": {"type": "ephemeral"}}
    part = {"type": "text", "text": "Hi"}
    tool = {"type": "function", "function": {"name": "f"}, **mark}
    messages = seen(served, {"role": "user", "content": [{**part, **mark}], **mark}, tools=[tool], tool_choice="none")
    assert messages[1] == ChatMessage(role="user", content="Hi")
    for message, param in (
        ({"role": "user", "content": [{**part, "mood": 1}]}, "messages[1].content[0].mood"),
        ({"role": "user", "content": [{**part, "refusal": "x"}]}, "messages[1].content[0].refusal"),
        ({"role": "user", "content": "Hi", "mood": 1}, "messages[1].mood"),
    ):
        error = error_of(served.post(CHAT, {"messages": [USER, message]}), 400)
        assert (error["param"], error["code"]) == (param, "unknown_parameter")


def test_what_old_clients_send_is_told_the_new_name(served: Served) -> None:
    old = {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}}
    error = error_of(served.post(CHAT, {"messages": [USER, old]}), 400)
    assert error["param"] == "messages[1].function_call" and "tool_calls" in error["message"]
    error = error_of(served.post(CHAT, {"messages": [USER, {"role": "function", "name": "f", "content": "x"}]}), 400)
    assert error["param"] == "messages[1].role" and "role tool" in error["message"]


@pytest.mark.parametrize("path", [CHAT, "/tokenize", "/apply-template", "/v1/select"])
def test_variables_that_the_request_says_itself_are_named_as_the_client_does(served: Served, path: str) -> None:
    more = {"options": ["a", "b"]} if path == "/v1/select" else {}
    for name in ("messages", "tools", "add_generation_prompt"):
        body = {"messages": [USER], "chat_template_kwargs": {name: []}, **more}
        error = error_of(served.post(path, body), 400)
        assert error["param"] == "chat_template_kwargs" and repr(name) in error["message"]
