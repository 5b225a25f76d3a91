"""The small model over HTTP: limits, messages, usage, constraints (R02, R14, R17, R43-R45, R47, R48, R50)."""

from __future__ import annotations

import json
import re
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jsonschema
import openai
import pytest
from pydantic import BaseModel

from .events import error_of, events
from .live import CONTEXT, Live


def test_nothing_follows_a_closed_object(live: Live) -> None:
    newline = live.post("/tokenize", prompt="\n").json()["tokens"]
    eos = live.http.get("/server_info").json()["model"]["eos_token_ids"]
    bias = {str(token): 100 for token in newline} | {str(token): -100 for token in eos}
    response = live.chat(
        "Return one small JSON object about a pear.",
        response_format={"type": "json_object"}, stream=True, temperature=0, max_tokens=120, logit_bias=bias,
    )  # fmt: skip
    chunks = events(response)
    text = "".join(c["delta"].get("content", "") for chunk in chunks for c in chunk["choices"])
    reasons = [c["finish_reason"] for chunk in chunks for c in chunk["choices"] if c["finish_reason"]]
    assert len(reasons) == 1
    if reasons == ["stop"]:
        assert text.endswith("}") and isinstance(json.loads(text), dict)
    else:
        assert reasons == ["length"]


INT_BOOL = {
    "type": "object",
    "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 99}, "ok": {"type": "boolean"}},
    "required": ["n", "ok"],
    "additionalProperties": False,
}
LIST = {"type": "array", "items": {"enum": ["red", "blue"]}, "minItems": 1, "maxItems": 3}


def test_constrained_and_free_requests_share_a_batch(live: Live) -> None:
    plain = live.answer("Hello there", temperature=0, max_tokens=16)

    def run(body: dict[str, Any]) -> str:
        return live.answer("Hello there", temperature=0, max_tokens=60, **body)

    bodies: list[dict[str, Any]] = [
        {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": INT_BOOL}}},
        {"structured_outputs": {"json": LIST}},
        {"regex": "[a-f0-9]{8}"},
        {"choice": ["left", "right"]},
    ]
    with ThreadPoolExecutor(5) as pool:
        for _ in range(3):
            free = pool.submit(live.answer, "Hello there", temperature=0, max_tokens=16)
            first, second, third, fourth = pool.map(run, bodies)
            jsonschema.validate(json.loads(first), INT_BOOL)
            jsonschema.validate(json.loads(second), LIST)
            assert re.fullmatch("[a-f0-9]{8}", third) and fourth in ("left", "right")
            assert free.result() == plain


class Rivers(BaseModel):
    rivers: list[str]


def test_a_cut_answer_says_length(live: Live) -> None:
    schema = {
        "type": "object",
        "properties": {"rivers": {"type": "array", "items": {"type": "string"}, "minItems": 10}},
        "required": ["rivers"],
    }
    form = {"type": "json_schema", "json_schema": {"name": "out", "strict": True, "schema": schema}}
    body = live.chat("List ten rivers.", response_format=form, max_tokens=12).json()
    assert body["choices"][0]["finish_reason"] == "length" and body["usage"]["completion_tokens"] == 12
    assert body["choices"][0]["message"]["content"].startswith("{")
    with (
        openai.OpenAI(base_url=f"{live.url}/v1", api_key="none", max_retries=0) as client,
        pytest.raises(openai.LengthFinishReasonError),
    ):
        client.chat.completions.parse(
            model="smollm2-135m",
            messages=[{"role": "user", "content": "List ten rivers."}],
            response_format=Rivers,
            max_tokens=3,  # even the empty list takes more
        )


@pytest.mark.parametrize("stream", [False, True])
def test_a_prompt_that_does_not_fit(live: Live, stream: bool) -> None:
    long = " word" * (CONTEXT + 500)
    error = error_of(live.chat(long, max_tokens=8, stream=stream), 400)
    assert (error["code"], error["param"]) == ("context_length_exceeded", "messages")
    numbers = [int(number) for number in re.findall(r"\d+", error["message"].replace(",", ""))]
    assert CONTEXT in numbers and any(number > CONTEXT for number in numbers)
    for limit in ("max_tokens", "max_completion_tokens"):
        error = error_of(live.chat("Hi", **{limit: CONTEXT}, stream=stream), 400)
        assert (error["code"], error["param"]) == ("context_length_exceeded", limit)
    full = live.post("/tokenize", prompt=" word").json()["tokens"] * CONTEXT
    assert error_of(live.complete(full, max_tokens=1, stream=stream), 400)["code"] == "context_length_exceeded"
    assert live.complete(full[1:], max_tokens=1, stream=stream).status_code == 200


@pytest.mark.parametrize("absent", [{}, {"max_tokens": None}])
def test_a_chat_may_use_the_rest_of_the_context(live: Live, absent: dict[str, Any]) -> None:
    eos = live.http.get("/server_info").json()["model"]["eos_token_ids"]
    room = 20
    text = " word" * (CONTEXT - 100)
    used = live.post("/tokenize", messages=[{"role": "user", "content": text}]).json()["count"]
    text += " word" * (CONTEXT - room - used)
    never = {str(token): -100 for token in eos}
    body = live.chat(text, temperature=0, logit_bias=never, **absent).json()
    assert body["choices"][0]["finish_reason"] == "length"
    assert body["usage"]["total_tokens"] == CONTEXT and body["usage"]["completion_tokens"] > 16


def test_limits_and_defaults(live: Live) -> None:
    assert live.chat("Count to 200.", max_completion_tokens=5).json()["usage"]["completion_tokens"] == 5
    body = live.complete("1 2 3 4", temperature=0).json()
    assert body["usage"]["completion_tokens"] == 16 and body["choices"][0]["finish_reason"] == "length"


def test_content_parts_render_as_plain_text(live: Live) -> None:
    call = {"id": "call1", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}
    parts = [
        {"role": "user", "content": [{"type": "text", "text": "Say"}, {"type": "text", "text": " yes"}]},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call1", "content": [{"type": "text", "text": "ok"}]},
        {"role": "assistant", "content": ""},
        {"role": "user", "content": "again"},
    ]
    plain = [dict(message) for message in parts]
    plain[0]["content"], plain[2]["content"] = "Say yes", "ok"
    answers = [
        live.post("/v1/chat/completions", messages=m, max_tokens=4, temperature=0, return_token_ids=True).json()
        for m in (parts, plain)
    ]
    assert answers[0]["prompt_token_ids"] == answers[1]["prompt_token_ids"]
    rendered = live.post("/detokenize", tokens=answers[0]["prompt_token_ids"]).json()["prompt"]
    assert "[{'" not in rendered and "None" not in rendered and "Say yes" in rendered
    assert live.post("/tokenize", messages=parts).json()["tokens"] == answers[0]["prompt_token_ids"]


def test_roles(live: Live) -> None:
    def ids(messages: list[dict[str, str]]) -> list[int]:
        response = live.post("/tokenize", messages=messages)
        assert response.status_code == 200, response.text
        return list(response.json()["tokens"])

    user = {"role": "user", "content": "Hi"}
    assert ids([{"role": "developer", "content": "Brief."}, user]) == ids(
        [{"role": "system", "content": "Brief."}, user]
    )
    for odd in ([{"role": "assistant", "content": "x"}], [user, user]):
        assert live.post("/v1/chat/completions", messages=odd, max_tokens=4).status_code in (200, 400)
    error = error_of(live.post("/v1/chat/completions", messages=[{"role": "banana", "content": "x"}]), 400)
    assert "banana" in error["message"] and "assistant" in error["message"]


def test_what_a_template_has_written_can_be_sent_as_text(live: Live) -> None:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Name a river."}]
    text = live.post("/apply-template", messages=messages).json()["prompt"]
    ids = live.post("/tokenize", messages=messages).json()["tokens"]
    assert live.post("/tokenize", prompt=text, parse_special=True).json()["tokens"] == ids
    assert set(live.post("/tokenize", prompt=text).json()["tokens"]).isdisjoint({1, 2}), "without, it is text"
    body: dict[str, Any] = {"temperature": 0, "max_tokens": 8}
    chat = live.post("/v1/chat/completions", messages=messages, **body).json()
    answer = live.complete(text, parse_special=True, echo=True, return_token_ids=True, **body).json()
    (choice,) = answer["choices"]
    assert choice["prompt_token_ids"] == ids
    assert choice["text"] == text + chat["choices"][0]["message"]["content"]
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == len(ids) - 1
    prompt = {"type": "TextPrompt", "text": text, "parse_special": True}
    chosen = live.post("/v1/select", prompt=prompt, options=["The Ebro", "The Po"]).json()
    assert chosen["token_ids"][0] == live.post("/tokenize", prompt="The Ebro").json()["tokens"]
    assert chosen["usage"]["cached_tokens"] >= len(ids) - 1


def test_usage_in_streams_equals_usage_without(live: Live) -> None:
    body: dict[str, Any] = {"max_tokens": 5, "temperature": 0}
    plain = live.chat("Hi", **body).json()["usage"]
    *chunks, last = events(live.chat("Hi", **body, stream=True, stream_options={"include_usage": True}))
    assert last["choices"] == [] and all(chunk["usage"] is None for chunk in chunks)
    for name in ("prompt_tokens", "completion_tokens", "total_tokens"):
        assert last["usage"][name] == plain[name]
    assert 0 < last["usage"]["prompt_tokens_details"]["cached_tokens"] < plain["prompt_tokens"]
    for options in (None, {}, {"include_usage": False}):
        assert not any("usage" in c for c in events(live.chat("Hi", **body, stream=True, stream_options=options)))


def test_bad_constraints_fail_alone(live: Live) -> None:
    before = sorted(child.pid for child in live.children())
    for bad in (
        {"json_schema": {"properties": {"foo": "bar"}}},
        {"regex": "[unclosed"},
        {"structured_outputs": {"grammar": "root ::= missing"}},
        {"response_format": {"type": "xml"}},
        {"json_schema": {"type": "strin"}},
    ):
        for stream in (False, True):
            assert error_of(live.chat("hi", **bad, stream=stream, max_tokens=4), 400)["message"]
        assert live.answer("hi", choice=["fine"]) == "fine"
    assert set(before) <= {child.pid for child in live.children()}


@pytest.mark.parametrize(
    "parameter",
    [{"max_tokens": 10**30}, {"priority": 10**30}, {"top_k": 2**63}, {"top_k": 10**30}, {"min_tokens": 10**30}],
)
def test_numbers_that_no_message_can_carry_cost_nobody_anything(live: Live, parameter: dict[str, int]) -> None:
    assert error_of(live.chat("Hi", **{"max_tokens": 4, **parameter}), 400)["message"]
    assert live.chat("Hi", max_tokens=4).status_code == 200
