"""Anthropic's protocol by its own package, and the shapes that the package does not check."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import anthropic
import msgspec
import pytest

from radixrt.messages import ChatPrompt

from .conftest import Served
from .fake_backend import CONTEXT, REPLY
from .test_http_tools import call

HI: Any = [{"role": "user", "content": "Hi"}]
IMAGE = {"role": "user", "content": [{"type": "image", "source": {}}]}
WEATHER: Any = {
    "name": "get_weather",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}


@pytest.fixture(scope="module")
def sdk(shared_server: Served) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=shared_server.url, api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture
def client(sdk: anthropic.Anthropic, served: Served) -> anthropic.Anthropic:
    return sdk


def test_a_message(client: anthropic.Anthropic, served: Served) -> None:
    for cached in (False, True):
        message = client.messages.create(
            model="fake", max_tokens=100, system="Be brief.", messages=HI, extra_body={"top_k": 5}
        )  # fmt: skip
        assert [block.model_dump(include={"type", "text"}) for block in message.content] == [
            {"type": "text", "text": REPLY}
        ]
        assert (message.stop_reason, message.role, message.type, message.id[:4]) == (
            "end_turn",
            "assistant",
            "message",
            "msg_",
        )
        usage = message.usage
        assert usage.output_tokens == len(REPLY.encode()) and (usage.cache_read_input_tokens == 0) != cached
        count = client.messages.count_tokens(model="fake", system="Be brief.", messages=HI)
        assert usage.input_tokens + (usage.cache_read_input_tokens or 0) == count.input_tokens
    prompt, sampling, _, _, _ = served.backend.seen[-1]
    assert isinstance(prompt, ChatPrompt) and [m.role for m in prompt.messages] == ["system", "user"]
    assert (sampling.max_tokens, sampling.top_k) == (100, 5)


def test_why_it_stopped(client: anthropic.Anthropic) -> None:
    cut = client.messages.create(model="fake", max_tokens=3, messages=HI)
    assert cut.stop_reason == "max_tokens"
    stopped = client.messages.create(model="fake", max_tokens=99, messages=HI, stop_sequences=[", no", "xyz"])
    assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", ", no")


def test_the_stream_is_the_message(client: anthropic.Anthropic) -> None:
    with client.messages.stream(model="fake", max_tokens=100, messages=HI) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_message()
    whole = client.messages.create(model="fake", max_tokens=100, messages=HI)
    assert final.content[0].text == whole.content[0].text == REPLY  # type: ignore[union-attr]
    assert final.stop_reason == whole.stop_reason == "end_turn"
    assert final.usage.output_tokens == whole.usage.output_tokens
    assert kinds[0] == "message_start" and kinds[-1] == "message_stop" and "content_block_stop" in kinds


def test_tools_and_their_results(client: anthropic.Anthropic, served: Served) -> None:
    served.backend.reply = "Let me look." + call("get_weather", '{"city": "Orléans"}')
    answers = [client.messages.create(model="fake", max_tokens=200, messages=HI, tools=[WEATHER])]
    with client.messages.stream(model="fake", max_tokens=200, messages=HI, tools=[WEATHER]) as stream:
        answers.append(stream.get_final_message())
    for answer in answers:
        text, use = answer.content
        assert text.type == "text" and text.text.strip() == "Let me look."
        assert use.type == "tool_use" and (use.name, use.input) == ("get_weather", {"city": "Orléans"})
        assert answer.stop_reason == "tool_use"
    served.backend.reply = REPLY
    result = {"type": "tool_result", "tool_use_id": use.id, "content": [{"type": "text", "text": "12 °C"}]}
    history: Any = [
        *HI,
        {"role": "assistant", "content": [block.model_dump(exclude_none=True) for block in answers[0].content]},
        {"role": "user", "content": [result, {"type": "text", "text": "And now?"}]},
    ]
    assert client.messages.create(model="fake", max_tokens=50, messages=history, tools=[WEATHER]).content
    prompt = served.backend.seen[-1][0]
    assert isinstance(prompt, ChatPrompt)
    assert [(m.role, m.content) for m in prompt.messages] == [
        ("user", "Hi"), ("assistant", "Let me look."), ("tool", "12 °C"), ("user", "And now?"),
    ]  # fmt: skip
    assert prompt.messages[1].tool_calls is not None
    assert json.loads(prompt.messages[1].tool_calls[0]["function"]["arguments"]) == {"city": "Orléans"}


@pytest.mark.parametrize(
    ("choice", "kind"),
    [({"type": "any"}, "forced"), ({"type": "tool", "name": "get_weather"}, "forced"), ({"type": "none"}, None)],
)
def test_tool_choice(client: anthropic.Anthropic, served: Served, choice: Any, kind: str | None) -> None:
    served.backend.reply = call("get_weather", '{"city": "x"}')
    client.messages.create(model="fake", max_tokens=200, messages=HI, tools=[WEATHER], tool_choice=choice)
    constraint = served.backend.seen[-1][2]
    assert (constraint is not None) == (kind is not None)


def test_thoughts_are_blocks(client: anthropic.Anthropic, served: Served) -> None:
    served.backend.info = msgspec.structs.replace(served.backend.info, thinking=("<think>", "</think>"))
    served.backend.reply = "<think>\nHm.\n</think>\n\nYes."
    whole = client.messages.create(model="fake", max_tokens=99, messages=HI)
    with client.messages.stream(model="fake", max_tokens=99, messages=HI) as stream:
        streamed = stream.get_final_message()
    for message in (whole, streamed):
        thought, text = message.content
        assert (thought.type, thought.thinking.strip()) == ("thinking", "Hm.")  # type: ignore[union-attr]
        assert text.text == "Yes."  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("thinking", "most", "told"),
    [
        ({"type": "enabled", "budget_tokens": 99}, 99, True), ({"type": "disabled"}, None, False),
        ({"type": "adaptive"}, None, True), ({"type": "adaptive", "display": "summarized"}, None, True),
    ],
)  # fmt: skip
def test_thinking(
    client: anthropic.Anthropic, served: Served, thinking: Any, most: int | None, told: bool, monkeypatch: Any
) -> None:
    served.backend.info = msgspec.structs.replace(served.backend.info, thinking=("<think>", "</think>"))
    seen: list[Any] = []
    tokenize = served.backend.atokenize
    monkeypatch.setattr(served.backend, "atokenize", lambda prompt: seen.append(prompt) or tokenize(prompt))
    client.messages.create(model="fake", max_tokens=500, messages=HI, thinking=thinking)
    assert seen[0].template_kwargs == {"enable_thinking": told}
    constraint = served.backend.seen[-1][2]
    assert (constraint.think_tokens if constraint is not None else None) == most


def test_a_model_without_thoughts_has_no_budget_for_them(client: anthropic.Anthropic) -> None:
    budget: Any = {"type": "enabled", "budget_tokens": 1024}
    with pytest.raises(anthropic.BadRequestError, match=r"shows no thoughts: leave thinking\.budget_tokens out"):
        client.messages.create(model="fake", max_tokens=2000, messages=HI, thinking=budget)


def test_a_schema_and_a_begun_answer(client: anthropic.Anthropic, served: Served) -> None:
    body = {"model": "fake", "max_tokens": 50, "messages": HI}
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    response = served.post(
        "/v1/messages", {**body, "output_config": {"format": {"type": "json_schema", "schema": schema}}}
    )
    assert response.status_code == 200
    constraint = served.backend.seen[-1][2]
    assert constraint is not None and constraint.kind == "json_schema" and json.loads(constraint.value) == schema
    client.messages.create(**{**body, "messages": [*HI, {"role": "assistant", "content": "Well,"}]})  # type: ignore[arg-type]
    prompt = served.backend.seen[-1][0]
    assert isinstance(prompt, ChatPrompt) and prompt.continue_final_message


@pytest.mark.parametrize(
    ("change", "status", "kind", "words"),
    [
        ({"max_tokens": 0}, 400, "invalid_request_error", "max_tokens"),
        ({"messages": []}, 400, "invalid_request_error", "messages"),
        ({"model": "gpt-9"}, 404, "not_found_error", "gpt-9"),
        ({"temprature": 1}, 400, "invalid_request_error", "temprature"),
        ({"max_tokens": CONTEXT * 2}, 400, "invalid_request_error", "limit"),
        ({"messages": [IMAGE]}, 400, "invalid_request_error", "images"),
        ({"thinking": {"type": "enabled", "budget_tokens": 99}}, 400, "invalid_request_error", "thinking"),
        ({"messages": [{"role": "user", "content": "BOOM"}]}, 500, "api_error", "unexpected"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("stream", [False, True])
def test_errors_have_the_protocols_shape(
    served: Served, stream: bool, change: dict[str, Any], status: int, kind: str, words: str
) -> None:
    response = served.post(
        "/v1/messages", {"model": "fake", "max_tokens": 9, "messages": HI, "stream": stream, **change}
    )
    body = response.json()
    assert response.status_code == status, body
    assert body["type"] == "error" and body["error"]["type"] == kind and words in body["error"]["message"]
    assert body["request_id"] == response.headers["x-request-id"]


def test_an_error_in_the_middle_is_an_event(client: anthropic.Anthropic) -> None:
    with (
        pytest.raises(anthropic.APIError, match="dead end"),
        client.messages.stream(
            model="fake", max_tokens=99, messages=[{"role": "user", "content": "DEADEND"}]
        ) as stream,
    ):
        stream.get_final_message()
