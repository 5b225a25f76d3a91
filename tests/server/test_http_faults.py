"""What a 400 says: the parameter, the value that was there, what may be there. Every parameter of every route."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from radixrt.server.app import ROUTES

from .conftest import Served
from .events import strict
from .live import Live

GOOD: dict[str, Any] = {
    "messages": [{"role": "user", "content": "Hi"}], "prompt": "Hi", "input": "Hi", "model": "fake", "max_tokens": 5,
    "options": ["a", "b"], "items": [{"type": "Text", "text": "a"}, {"type": "Gen", "index": 0}], "tokens": [1],
    "ids": [1], "ttl_s": 5, "id": "pin", "request_id": "req_x", "state": "s",
    "questions": {"q": {"type": "choice", "instructions": "?", "criteria": {"a": "b", "c": "d"}}},
}  # fmt: skip
WITH_BODY = [route for route in ROUTES if route.body is not None]
ODD: tuple[Any, ...] = ([[True]], {"no such": {"key": []}}, True, "no-such-word", -(2**80), 1.5)


def message_of(path: str, content: bytes) -> str:
    error = strict(content)["error"]
    return str(error) if path.startswith("/api/") else str(error["message"])


def fields_of(body: Any) -> list[str]:
    return [field.encode_name for field in msgspec.structs.fields(body)]


@pytest.mark.parametrize("route", WITH_BODY, ids=lambda route: route.path)
def test_every_parameter_of_a_wrong_type_is_named_with_its_value(served: Served, route: Any) -> None:
    """Of each parameter some odd values are not valid; each refusal names the parameter, and says what was there."""
    fields = fields_of(route.body)
    good = {name: value for name, value in GOOD.items() if name in fields}
    if route.path.startswith("/api/"):
        good.pop("options", None)
    if route.path == "/score":
        good["options"] = [[1]]
    if route.path in ("/v1/select", "/tokenize"):
        good.pop("messages")
    if route.path == "/v1/programs":
        good["items"] = []  # the stand-in runs none; it is named where nothing else is wrong
    for name in fields:
        refused = 0
        for odd in ODD:
            response = served.post(route.path, {**good, name: odd})
            assert response.status_code < 500, (name, odd, response.text)
            if response.status_code != 400:
                continue
            refused += 1
            said = message_of(route.path, response.content)
            if said.startswith("a program must hold"):
                continue
            assert name in said, (name, odd, said)
            if isinstance(odd, str):
                assert (
                    odd in said or "array" in said or "object" in said or "expected" in said or "leave it out" in said
                ), (name, odd, said)
        assert refused or name in ("stream", "metadata", "format", "json_schema", "structural_tag"), name


@pytest.mark.parametrize(
    ("path", "body", "words"),
    [
        ("/v1/chat/completions", {"response_format": {"type": "xml"}}, ["xml", "json_object", "json_schema", "text"]),
        ("/v1/chat/completions", {"tool_choice": "maybe"}, ["maybe", "none", "auto", "required"]),
        ("/v1/chat/completions", {"backend": "lark"}, ["lark", "llguidance", "xgrammar", "outlines"]),
        ("/v1/chat/completions", {"messages": [{"role": "banana", "content": "x"}]}, ["banana", "user", "assistant"]),
        ("/v1/chat/completions", {"tools": [{"type": "web", "function": {"name": "f"}}]}, ["web", "function"]),
        ("/v1/chat/completions", {"modalities": ["audio"]}, ["audio", "text"]),
        ("/v1/chat/completions", {"store": True}, ["store", "false"]),
        ("/v1/chat/completions", {"temperature": "hot"}, ["temperature", '"hot"', "float"]),
        ("/v1/chat/completions", {"temperature": 1000}, ["temperature", "1000", "between 0 and 100"]),
        ("/v1/chat/completions", {"stop": [1]}, ["stop[0]", "but is 1"]),
        ("/v1/chat/completions", {"n": 500}, ["n must", "500", "128"]),
        ("/v1/completions", {"prompt": [-5]}, ["prompt[0]", "-5", ">= 0"]),
        ("/v1/completions", {"best_of": 3}, ["best_of", "3", "n (1)"]),
        ("/v1/completions", {"priority": 2**60}, ["priority", str(2**60), str(2**53)]),
        ("/generate", {"priority": -(2**60)}, ["priority", str(-(2**60))]),
        ("/v1/select", {"method": "best"}, ["best", "token_length_normalized"]),
        ("/v1/programs", {"items": [{"type": "Loop"}]}, ["Loop", "Fork", "Template"]),
        ("/generate", {"constraint": {"kind": "xml"}}, ["xml", "regex", "json_schema"]),
        ("/generate", {"timeout_s": -1}, ["timeout_s", "-1", "above 0"]),
        ("/v1/messages", {"messages": [{"role": "robot", "content": "x"}]}, ["robot", "user", "assistant"]),
        ("/v1/responses", {"truncation": "left"}, ["left", "disabled"]),
        ("/api/generate", {"format": "xml"}, ["xml", "json"]),
    ],
)  # fmt: skip
def test_a_word_that_is_none_is_told_those_there_are(served: Served, path: str, body: Any, words: list[str]) -> None:
    fields = fields_of(next(route.body for route in WITH_BODY if route.path == path))
    good = {name: value for name, value in GOOD.items() if name in fields and not path.startswith("/api/")}
    good |= {"model": "fake", "prompt": "Hi"} if path == "/api/generate" else {}
    if path == "/v1/select":
        good.pop("messages")
    response = served.post(path, {**good, **body})
    assert response.status_code == 400, response.text
    said = message_of(path, response.content)
    assert all(word in said for word in words), said


@pytest.mark.parametrize(
    ("path", "body", "words"),
    [
        ("/v1/chat/completions", {"prompt": "Hi"}, ["prompt", "/v1/completions"]),
        ("/v1/chat/completions", {"input": "Hi"}, ["input", "/v1/responses"]),
        ("/v1/chat/completions", {"system": "Hi"}, ["role system"]),
        ("/v1/chat/completions", {"temprature": 1}, ["did you mean temperature?"]),
        ("/v1/chat/completions", {"messages": [{"role": "user", "contents": "Hi"}]}, ["did you mean content?"]),
        ("/v1/chat/completions", {"max_output_tokens": 5}, ["use max_tokens"]),
        ("/v1/chat/completions", {"guided_json": {}}, ["structured_outputs.json"]),
        ("/v1/chat/completions", {"bad_words": ["one"]}, ['structured_outputs.grammar', '"start: T\\nT: ~/']),
        ("/v1/chat/completions", {"mood": "good"}, ["would be ignored"]),
        ("/v1/completions", {"messages": GOOD["messages"]}, ["messages", "/v1/chat/completions"]),
        ("/v1/completions", {"stop_sequences": ["x"]}, ["use stop"]),
        ("/v1/responses", {"messages": GOOD["messages"]}, ["/v1/chat/completions", "input"]),
        ("/v1/responses", {"max_tokens": 5}, ["use max_output_tokens"]),
        ("/v1/responses", {"guided_json": {}}, ["would be ignored"]),
        ("/v1/messages", {"prompt": "Hi"}, ["use messages"]),
        ("/v1/embeddings", {"prompt": "Hi"}, ["use input"]),
        ("/api/chat", {"model": "fake", "prompt": "Hi"}, ["/api/generate"]),
        ("/api/generate", {"model": "fake", "messages": GOOD["messages"]}, ["/api/chat"]),
        ("/api/generate", {"model": "fake", "options": {"max_tokens": 5}}, ["options.max_tokens", "use num_predict"]),
        ("/api/embed", {"model": "fake", "prompt": "Hi"}, ["/api/embeddings"]),
        ("/generate", {"messages": GOOD["messages"]}, ["ChatPrompt", "/v1/chat/completions"]),
        ("/generate", {"text": "Hi", "sampling_params": {}}, ["use prompt"]),
        ("/generate", {"prompt": "Hi", "sampling": {"max_new_tokens": 5}}, ["sampling.max_new_tokens: use max_tokens"]),
    ],
)  # fmt: skip
def test_a_parameter_of_another_route_is_told_where_it_belongs(
    served: Served, path: str, body: Any, words: list[str]
) -> None:
    response = served.post(path, body)
    assert response.status_code == 400, response.text
    said = message_of(path, response.content)
    assert said.startswith("unknown parameter ") and all(word in said for word in words), said


@pytest.mark.parametrize(
    ("path", "body", "words"),
    [
        ("/v1/chat/completions", {"seed": 2**70}, "or null, but is"),
        ("/v1/chat/completions", {"max_tokens": 2**40}, "max_tokens must be between 1 and 2147483647, but is"),
        ("/v1/chat/completions", {"max_completion_tokens": 0}, "max_completion_tokens must be between 1 and"),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": [{"type": True}]}]}, "of type true"),
        ("/v1/completions", {"logprobs": 21}, "or null, but is 21"),
        ("/v1/responses", {"max_output_tokens": 2**40}, "max_output_tokens must be between 1 and"),
        ("/v1/messages", {"max_tokens": 0}, "max_tokens must be between 1 and"),
        ("/api/chat", {"model": "fake", "messages": GOOD["messages"], "options": {"seed": 2**70}}, "options.seed must"),
        ("/api/chat", {"model": "fake", "messages": GOOD["messages"], "options": {"num_predict": -5}}, "-1 or -2"),
        ("/generate", {"sampling": {"max_tokens": -1}}, "or null, but is -1"),
        ("/generate", {"sampling": {"stop": [""]}}, 'but is [""]'),
        ("/generate", {"constraint": {"kind": "regex", "value": "a", "any_whitespace": True}}, "but is true"),
        ("/v1/programs", {"items": [{"type": "Gen", "index": 0, "sampling": {"seed": 2**70}}]}, "or null"),
    ],
)  # fmt: skip
def test_values_are_written_as_json_writes_them(served: Served, path: str, body: Any, words: str) -> None:
    fields = fields_of(next(route.body for route in WITH_BODY if route.path == path))
    good = {name: value for name, value in GOOD.items() if name in fields and not path.startswith("/api/")}
    if "completion" in str(body):
        del good["max_tokens"]
    response = served.post(path, {**good, **body})
    assert response.status_code == 400, response.text
    said = message_of(path, response.content)
    assert words in said and "None" not in said, said


def test_a_compressed_body_is_told_what_it_was_called(served: Served) -> None:
    response = served.http.post("/v1/completions", content=b"x", headers={"content-encoding": "gzip"})
    assert response.status_code == 415 and "'gzip'" in response.json()["error"]["message"]


def test_a_long_value_is_cut(served: Served) -> None:
    said = json.dumps(served.chat(temperature="x" * 100_000).json())
    assert "temperature" in said and len(said) < 400
    said = json.dumps(served.chat(tool_choice="x" * 100_000).json())
    assert "tool_choice" in said and len(said) < 400


@pytest.mark.parametrize(
    ("path", "body", "name"),
    [
        ("/v1/responses", {"input": "Hi", "max_output_tokens": 0}, "max_output_tokens"),
        ("/v1/responses", {"input": "Hi", "text": {"format": {"type": "json_schema", "name": "a b", "schema": {}}}},
         "text.format.name"),
        ("/v1/messages", {"messages": GOOD["messages"], "max_tokens": 3, "stop_sequences": [""]}, "stop_sequences"),
        ("/api/generate", {"model": "fake", "prompt": "Hi", "options": {"temperature": -1}}, "options.temperature"),
        ("/api/generate", {"model": "fake", "prompt": "Hi", "options": {"repeat_penalty": 99}},
         "options.repeat_penalty"),
        ("/v1/responses", {"input": "Hi", "max_output_tokens": 10_000}, "max_output_tokens"),
        ("/v1/responses", {"input": "x" * 1000}, "input"),
        ("/api/generate", {"model": "fake", "prompt": "Hi", "options": {"num_predict": 10_000}}, "options.num_predict"),
        ("/v1/cache/pin", {"prompt": "Hi", "ttl_s": -1}, "ttl_s"),
    ],
)  # fmt: skip
def test_each_protocol_has_its_own_names(served: Served, path: str, body: Any, name: str) -> None:
    response = served.post(path, body)
    assert response.status_code == 400, response.text
    assert name in response.text
    assert response.json()["error"]["param"] == name if path.startswith("/v1/responses") else True


BAD_SCHEMA = {"type": "object", "properties": {"a": {"type": "string", "pattern": "("}}}


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses", "/v1/messages", "/api/chat"])
def test_a_tools_faulty_schema_is_placed_in_the_clients_own_body(live: Live, path: str) -> None:
    """The field is named in each protocol's own shape of a tool, and a pointer leads to the keyword in it."""
    tool: dict[str, Any] = {"name": "f", "parameters": BAD_SCHEMA}
    body: dict[str, Any] = {"model": "smollm2-135m", "messages": GOOD["messages"], "tool_choice": "required"}
    where = "tools[0].function.parameters"
    if path == "/v1/responses":
        body = {"input": "Hi", "tools": [{"type": "function", **tool}], "tool_choice": "required"}
        where = "tools[0].parameters"
    elif path == "/v1/messages":
        body |= {"max_tokens": 5, "tools": [{"name": "f", "input_schema": BAD_SCHEMA}], "tool_choice": {"type": "any"}}
        where = "tools[0].input_schema"
    else:
        body["tools"] = [{"type": "function", "function": tool}]
        if path == "/api/chat":
            del body["tool_choice"]
    response = live.http.post(path, json=body)
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    if "kind" in error:
        assert (error["param"], error["pointer"]) == (where, "/properties/a/pattern"), response.text
    assert "at /properties/a/pattern: " in str(error) and ("kind" in error or f"{where}: " in str(error)), response.text


FORM = {"name": "x", "schema": BAD_SCHEMA}


@pytest.mark.parametrize(
    ("path", "body", "param", "pointer"),
    [
        ("/v1/chat/completions", {"response_format": {"type": "json_schema", "json_schema": FORM}},
         "response_format.json_schema.schema", "/properties/a/pattern"),
        ("/v1/completions", {"prompt": "a", "structured_outputs": {"json": BAD_SCHEMA}},
         "structured_outputs.json", "/properties/a/pattern"),
        ("/v1/completions", {"prompt": "a", "json_schema": BAD_SCHEMA}, "json_schema", "/properties/a/pattern"),
        ("/v1/responses", {"input": "a", "text": {"format": {"type": "json_schema", **FORM}}},
         "text.format.schema", "/properties/a/pattern"),
        ("/v1/messages", {"max_tokens": 3, "output_config": {"format": {"type": "json_schema", "schema": BAD_SCHEMA}}},
         "output_config.format.schema", "/properties/a/pattern"),
        ("/api/chat", {"format": BAD_SCHEMA}, "format", "/properties/a/pattern"),
        ("/generate", {"prompt": "a", "constraint": {"kind": "json_schema", "value": json.dumps(BAD_SCHEMA)}},
         "constraint", "/properties/a/pattern"),
        ("/v1/chat/completions", {"structured_outputs": {"regex": "("}}, "structured_outputs.regex", None),
        ("/v1/completions", {"prompt": "a", "ebnf": "root ::= ("}, "ebnf", None),
        ("/v1/completions", {"prompt": "a", "regex": "a", "backend": "xgrammar"}, "backend", None),
        ("/v1/chat/completions", {"structured_outputs": {"json": {}, "whitespace_pattern": "x"}},
         "structured_outputs.whitespace_pattern", None),
        ("/v1/chat/completions", {"response_format": {"type": "structural_tag", "structures": [
            {"begin": "<", "schema": BAD_SCHEMA, "end": ">"}], "triggers": ["<"]}},
         "response_format", "/structures/0/schema/properties/a/pattern"),
    ],
)  # fmt: skip
def test_a_constraint_at_fault_is_named_by_its_field(
    live: Live, path: str, body: dict[str, Any], param: str, pointer: str | None
) -> None:
    if path.endswith(("chat/completions", "messages", "api/chat")):
        body = {"model": "smollm2-135m", "messages": GOOD["messages"], **body}
    for streamed in (False, True):
        response = live.http.post(path, json={**body, "stream": streamed})
        assert response.status_code == 400, response.text
        error = response.json()["error"]
        assert pointer is None or f"at {pointer}: " in str(error)
        if "kind" in error:
            assert (error["param"], error["pointer"]) == (param, pointer), response.text
        else:
            assert f"{param}: " in str(error)
