"""/v1/chat/completions: shapes, streams, usage, messages."""

from __future__ import annotations

from typing import Any

import pytest

from radixrt.messages import ChatPrompt

from .conftest import Served
from .events import error_of, events, strict
from .fake_backend import REPLY


def joined(chunks: list[dict[str, Any]], index: int = 0) -> str:
    return "".join(c["delta"].get("content", "") for chunk in chunks for c in chunk["choices"] if c["index"] == index)


def test_an_answer_has_openai_shape(served: Served) -> None:
    body = served.chat("Hi", model="fake").json()
    assert body["object"] == "chat.completion" and body["id"].startswith("chatcmpl-") and body["model"] == "fake"
    assert isinstance(body["created"], int)
    (choice,) = body["choices"]
    assert choice["message"] == {"role": "assistant", "content": REPLY, "refusal": None}
    assert choice["finish_reason"] == "stop" and choice["logprobs"] is None and choice["index"] == 0
    prompt = len("<user>Hi\n<assistant>")
    assert body["usage"] == {
        "prompt_tokens": prompt,
        "completion_tokens": len(REPLY.encode()),
        "total_tokens": prompt + len(REPLY.encode()),
        "prompt_tokens_details": {"cached_tokens": 0},
        "completion_tokens_details": {"accepted_prediction_tokens": 0, "rejected_prediction_tokens": 0},
    }
    again = served.chat("Hi").json()
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] == prompt - 1


def test_a_stream_says_the_same_in_chunks(served: Served) -> None:
    chunks = events(served.chat(stream=True, n=3))
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert len({chunk["id"] for chunk in chunks}) == 1
    whole = served.chat(n=3).json()
    for choice in whole["choices"]:
        mine = [c for chunk in chunks for c in chunk["choices"] if c["index"] == choice["index"]]
        assert mine[0]["delta"]["role"] == "assistant"
        assert all("role" not in c["delta"] for c in mine[1:])
        reasons = [c["finish_reason"] for c in mine]
        assert reasons[-1] == choice["finish_reason"] and set(reasons[:-1]) == {None}
        assert joined(chunks, choice["index"]) == choice["message"]["content"]
    assert [choice["index"] for choice in whole["choices"]] == [0, 1, 2]
    assert "\ufffd" not in joined(chunks)


@pytest.mark.parametrize("options", [None, {}, {"include_usage": False}, {"include_usage": None}])
def test_no_usage_where_nobody_asked(served: Served, options: dict[str, Any] | None) -> None:
    chunks = events(served.chat(stream=True, max_tokens=5, stream_options=options))
    assert all("usage" not in chunk for chunk in chunks)
    assert all(chunk["choices"] for chunk in chunks)


def test_usage_comes_last_where_asked(served: Served) -> None:
    plain = served.chat(max_tokens=5, cache_salt="x").json()["usage"]
    *chunks, last = events(served.chat(stream=True, max_tokens=5, stream_options={"include_usage": True}))
    assert last["choices"] == []
    assert all(chunk["usage"] is None and chunk["choices"] for chunk in chunks)
    for name in ("prompt_tokens", "completion_tokens", "total_tokens"):
        assert last["usage"][name] == plain[name]
    assert isinstance(last["usage"]["prompt_tokens_details"]["cached_tokens"], int)


@pytest.mark.parametrize("top", [None, 0, 5])
def test_logprobs(served: Served, top: int | None) -> None:
    response = served.chat(logprobs=True, top_logprobs=top, max_tokens=6)
    content = strict(response.content)["choices"][0]["logprobs"]["content"]
    assert len(content) == 6
    for entry in content:
        assert entry.keys() == {"token", "logprob", "bytes", "top_logprobs"}
        assert -9999.0 <= entry["logprob"] <= 0
        assert len(entry["top_logprobs"]) == (top or 0)
        if top:
            assert entry["top_logprobs"][0]["token"] == entry["token"]
            assert min(t["logprob"] for t in entry["top_logprobs"]) == -9999.0, "the fake gives an infinite one"
    assert bytes(b for entry in content for b in entry["bytes"]) == REPLY.encode()[:6]
    chunks = events(served.chat(logprobs=True, top_logprobs=top, max_tokens=6, stream=True))
    streamed = [
        entry
        for chunk in chunks
        for c in chunk["choices"]
        if c["logprobs"] is not None
        for entry in c["logprobs"]["content"]
    ]
    assert streamed == content


def test_a_cut_character_ends_alike_in_both_modes(served: Served) -> None:
    limit = len("Zwölf ".encode()) + 1  # ends inside Ä
    text = served.chat(max_tokens=limit).json()["choices"][0]
    assert text["message"]["content"] == "Zwölf \ufffd" and text["finish_reason"] == "length"
    assert joined(events(served.chat(max_tokens=limit, stream=True))) == "Zwölf \ufffd"


def test_limits_have_two_names(served: Served) -> None:
    assert served.chat(max_completion_tokens=5).json()["usage"]["completion_tokens"] == 5
    assert served.chat(max_tokens=5, max_completion_tokens=5).status_code == 200
    assert error_of(served.chat(max_tokens=5, max_completion_tokens=6), 400)["param"] == "max_tokens"
    for absent in ({}, {"max_tokens": None}, {"max_completion_tokens": None}):
        assert served.chat(**absent).json()["choices"][0]["finish_reason"] == "stop"
        assert served.backend.seen[-1][1].max_tokens is None
    for bad in (0, -1):
        assert error_of(served.chat(max_tokens=bad), 400)["param"] == "max_tokens"
        assert error_of(served.chat(max_completion_tokens=bad), 400)["param"] == "max_completion_tokens"


def test_content_shapes_become_the_same_prompt(served: Served) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    parts = [
        {"role": "user", "content": [{"type": "text", "text": "Say"}, {"type": "text", "text": " yes"}]},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "ok"}]},
        {"role": "assistant", "content": ""},
        {"role": "user", "content": "again"},
    ]
    plain = [
        {"role": "user", "content": "Say yes"},
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "ok"},
        {"role": "assistant", "content": None},
        {"role": "user", "content": "again"},
    ]
    assert served.post("/v1/chat/completions", {"messages": parts}).status_code == 200
    assert served.post("/v1/chat/completions", {"messages": plain}).status_code == 200
    first, second = served.backend.seen[-2][0], served.backend.seen[-1][0]
    assert isinstance(first, ChatPrompt) and first == second
    assert first.messages[1].tool_calls == [
        {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    ]
    assert first.messages[1].content == ""


def test_the_sdk_s_own_message_can_be_sent_back(served: Served) -> None:
    mine = {"role": "assistant", "content": "Yes.", "refusal": None, "annotations": [], "audio": None,
            "function_call": None, "tool_calls": None}  # fmt: skip
    messages = [{"role": "user", "content": "Yes?"}, mine, {"role": "user", "content": "Sure?"}]
    assert served.post("/v1/chat/completions", {"messages": messages}).status_code == 200


def test_developer_is_system(served: Served) -> None:
    messages = [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    assert served.post("/v1/chat/completions", {"messages": messages}).status_code == 200
    prompt = served.backend.seen[-1][0]
    assert isinstance(prompt, ChatPrompt) and prompt.messages[0].role == "system"


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ([], "messages"),
        ([{"role": "banana", "content": "x"}], "messages[0].role"),
        ([{"role": "user", "content": None}], "messages[0].content"),
        ([{"role": "user"}], "messages[0].content"),
        ([{"content": "x"}], "messages[0].role"),
        ([{"role": "user", "content": "x", "mood": "good"}], "messages[0].mood"),
        ([{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}], "messages[0].content[0].type"),
        ([{"role": "user", "content": [{"type": "text", "text": 3}]}], "messages[0].content[0].text"),
        ([{"role": "user", "content": 3}], "messages[0].content"),
        ("hello", "messages"),
    ],
)  # fmt: skip
def test_bad_messages_are_named(served: Served, messages: Any, param: str) -> None:
    error = error_of(served.post("/v1/chat/completions", {"messages": messages}), 400)
    assert error["param"] == param and error["type"] == "invalid_request_error"
    if "type" in param:
        assert "image_url" in error["message"]


@pytest.mark.parametrize(
    ("part", "missing"),
    [({"text": "x"}, "type"), ({"type": None, "text": "x"}, "type"), ({"type": "text"}, "text"),
     ({"type": "text", "text": None}, "text")],
)  # fmt: skip
def test_what_a_part_lacks_is_named(served: Served, part: Any, missing: str) -> None:
    for stream in (False, True):
        body = {"messages": [{"role": "user", "content": [part]}], "stream": stream}
        error = error_of(served.post("/v1/chat/completions", body), 400)
        param = f"messages[0].content[0].{missing}"
        assert (error["param"], error["message"]) == (param, f"{param} is required")
        assert error["code"] == "missing_parameter"


def test_continuing_a_message(served: Served) -> None:
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "He"}]
    body = {"messages": messages, "continue_final_message": True}
    assert served.post("/v1/chat/completions", body).status_code == 200
    prompt = served.backend.seen[-1][0]
    assert isinstance(prompt, ChatPrompt) and prompt.continue_final_message and not prompt.add_generation_prompt
    error = error_of(served.post("/v1/chat/completions", {**body, "add_generation_prompt": True}), 400)
    assert error["param"] == "continue_final_message"


def test_token_ids_on_request(served: Served) -> None:
    body = served.chat(return_token_ids=True).json()
    assert bytes(body["prompt_token_ids"]) == b"<user>Hi\n<assistant>"
    assert bytes(body["choices"][0]["token_ids"]) == REPLY.encode()
    chunks = events(served.chat(return_token_ids=True, stream=True))
    assert bytes(chunks[0]["prompt_token_ids"]) == b"<user>Hi\n<assistant>"
    assert bytes(t for chunk in chunks for c in chunk["choices"] for t in c.get("token_ids", [])) == REPLY.encode()
    assert "prompt_token_ids" not in served.chat().json()


def test_prompt_logprobs_in_vllm_s_shape(served: Served) -> None:
    body = strict(served.chat(prompt_logprobs=2).content)
    first, *rest = body["prompt_logprobs"]
    assert first is None and len(rest) == body["usage"]["prompt_tokens"] - 1
    assert rest[0][str(ord("u"))]["rank"] == 1 and rest[0][str(ord("u"))]["decoded_token"] == "u"
    assert error_of(served.chat(prompt_logprobs=2, stream=True), 400)["param"] == "prompt_logprobs"
