"""The real openai package against a server over the fake backend."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from pydantic import BaseModel

from .conftest import Served
from .fake_backend import CALL, REPLY

HI: Any = [{"role": "user", "content": "Hi"}]


@pytest.fixture(scope="module")
def sdk(shared_server: Served) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{shared_server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture
def client(sdk: openai.OpenAI, served: Served) -> openai.OpenAI:
    return sdk


def test_chat(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model="fake", messages=HI, n=2, logprobs=True, top_logprobs=1)
    assert [choice.index for choice in answer.choices] == [0, 1]
    assert answer.choices[0].message.content == REPLY and answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None and answer.usage.prompt_tokens_details is not None
    assert answer.usage.prompt_tokens_details.cached_tokens == 0
    assert answer.choices[0].logprobs is not None and answer.choices[0].logprobs.content is not None
    assert len(answer.choices[0].logprobs.content) == len(REPLY.encode())
    history = [*HI, answer.choices[0].message.model_dump(), *HI]
    assert client.chat.completions.create(model="fake", messages=history).choices[0].message.content == REPLY


def test_chat_stream(client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(
        model="fake", messages=HI, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == REPLY
    assert chunks[-1].usage is not None and not chunks[-1].choices
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "stop"


def test_the_stream_helper_accumulates(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(model="fake", messages=HI, n=2) as stream:
        for _ in stream:
            pass
        final = stream.get_final_completion()
    assert [choice.message.content for choice in final.choices] == [REPLY, f"{REPLY} (1)"]


def test_completions(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="fake", prompt=["a", "b"], max_tokens=60, echo=True, logprobs=2)
    assert [choice.text for choice in answer.choices] == ["a" + REPLY, "b" + REPLY]
    assert answer.choices[0].logprobs is not None and answer.choices[0].logprobs.text_offset is not None
    text = "".join(
        chunk.choices[0].text
        for chunk in client.completions.create(model="fake", prompt="a", max_tokens=60, stream=True)
    )
    assert text == REPLY


def test_async(served: Served) -> None:
    async def run() -> list[str]:
        async with openai.AsyncOpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0) as client:
            answers = await asyncio.gather(
                *(client.chat.completions.create(model="fake", messages=HI) for _ in range(20))
            )
            return [answer.choices[0].message.content or "" for answer in answers]

    assert asyncio.run(run()) == [REPLY] * 20


class Thing(BaseModel):
    a: int


def test_parse(client: openai.OpenAI) -> None:
    answer = client.chat.completions.parse(model="fake", messages=HI, response_format=Thing)
    assert answer.choices[0].message.parsed == Thing(a=1)
    history: Any = [*HI, answer.choices[0].message, *HI]
    assert client.chat.completions.create(model="fake", messages=history).choices[0].message.content == REPLY
    with pytest.raises(openai.LengthFinishReasonError):
        client.chat.completions.parse(model="fake", messages=HI, response_format=Thing, max_tokens=2)


def test_errors_become_the_package_s_own(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="fake", messages=HI, n=0)
    assert caught.value.param == "n"
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="fake", messages=[{"role": "user", "content": "x" * 700}], stream=True)
    assert caught.value.code == "context_length_exceeded"
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="gpt-4", messages=HI)
    with pytest.raises(openai.APIError, match="dead end"):
        list(
            client.chat.completions.create(model="fake", messages=[{"role": "user", "content": "DEADEND"}], stream=True)
        )


def test_leaving_a_stream_cancels_the_request(client: openai.OpenAI, served: Served) -> None:
    stream = client.chat.completions.create(model="fake", messages=[{"role": "user", "content": "SLOW"}], stream=True)
    next(iter(stream))
    assert served.backend.wait_active(1)
    stream.close()
    assert served.backend.wait_active(0)


def test_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["fake"]
    assert client.models.retrieve("fake").id == "fake"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("other")


WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


def test_a_loop_with_tools(client: openai.OpenAI, served: Served) -> None:
    served.backend.reply = f"Moment.\n{CALL}\n{CALL}"
    answer = client.chat.completions.create(model="fake", messages=HI, tools=[WEATHER]).choices[0]
    calls: Any = answer.message.tool_calls
    assert answer.finish_reason == "tool_calls" and answer.message.content == "Moment."
    assert [call.function.arguments for call in calls] == ['{"city": "Orléans"}'] * 2 and calls[0].id != calls[1].id
    results: Any = [{"role": "tool", "tool_call_id": call.id, "content": "12 °C"} for call in calls]
    served.backend.reply = "12 °C."
    history: Any = [*HI, answer.message, *results]
    final = client.chat.completions.create(model="fake", messages=history, tools=[WEATHER]).choices[0]
    assert final.message.content == "12 °C." and final.message.tool_calls is None and final.finish_reason == "stop"


def test_some_of_the_tools(client: openai.OpenAI, served: Served) -> None:
    served.backend.reply = CALL
    other: Any = {"type": "function", "function": {"name": "now"}}
    allowed: Any = {"mode": "auto", "tools": [{"type": "function", "function": {"name": "get_weather"}}]}
    answer = client.chat.completions.create(
        model="fake", messages=HI, tools=[WEATHER, other],
        tool_choice={"type": "allowed_tools", "allowed_tools": allowed},
    ).choices[0]  # fmt: skip
    assert answer.finish_reason == "tool_calls" and answer.message.tool_calls


def test_the_stream_helper_parses_calls(client: openai.OpenAI, served: Served) -> None:
    served.backend.reply = f"Moment.\n{CALL}\n{CALL}"
    with client.chat.completions.stream(model="fake", messages=HI, tools=[WEATHER]) as stream:
        deltas = [event.arguments_delta for event in stream if event.type == "tool_calls.function.arguments.delta"]
        final = stream.get_final_completion().choices[0]
    calls: Any = final.message.tool_calls
    assert "".join(deltas) == '{"city": "Orléans"}' * 2 and len(deltas) > 4
    assert [call.function.arguments for call in calls] == ['{"city": "Orléans"}'] * 2
    assert final.finish_reason == "tool_calls" and final.message.content == "Moment."


def test_the_stream_helper_parses_into_a_model(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(model="fake", messages=HI, response_format=Thing) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_completion().choices[0]
    assert final.message.parsed == Thing(a=1) and {"chunk", "content.delta", "content.done"} <= kinds


def test_the_stream_helper_gives_logprobs_of_every_token(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(model="fake", messages=HI, logprobs=True, top_logprobs=2) as stream:
        for _ in stream:
            pass
        final = stream.get_final_completion().choices[0]
    assert final.logprobs is not None and final.logprobs.content is not None
    assert b"".join(bytes(token.bytes or ()) for token in final.logprobs.content) == REPLY.encode()
    assert all(len(token.top_logprobs) == 2 for token in final.logprobs.content)


def test_tools_from_models(client: openai.OpenAI, served: Served) -> None:
    class GetWeather(BaseModel):
        city: str

    served.backend.reply = ' {"city": "Orléans"}}\n</tool_call>'
    tool = openai.pydantic_function_tool(GetWeather)
    answer = client.chat.completions.parse(model="fake", messages=HI, tools=[tool], tool_choice="required")
    calls = answer.choices[0].message.tool_calls
    assert calls is not None and calls[0].function.parsed_arguments == GetWeather(city="Orléans")
    assert answer.choices[0].finish_reason == "tool_calls"
    result = {"role": "tool", "tool_call_id": calls[0].id, "content": "12 °C"}
    served.backend.reply = "12 °C."
    for sent in (answer.choices[0].message, answer.choices[0].message.model_dump()):
        history: Any = [*HI, sent, result]
        final = client.chat.completions.create(model="fake", messages=history, tools=[tool]).choices[0]
        assert final.message.content == "12 °C."


def test_the_async_stream_helper(served: Served) -> None:
    async def run() -> str | None:
        async with (
            openai.AsyncOpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0) as client,
            client.chat.completions.stream(model="fake", messages=HI) as stream,
        ):
            async for _ in stream:
                pass
            return (await stream.get_final_completion()).choices[0].message.content

    assert asyncio.run(run()) == REPLY


def test_raw_and_streaming_responses(client: openai.OpenAI) -> None:
    raw = client.chat.completions.with_raw_response.create(model="fake", messages=HI)
    assert raw.headers["x-request-id"].startswith("req_") and raw.parse().choices[0].message.content == REPLY
    with client.chat.completions.with_streaming_response.create(model="fake", messages=HI) as response:
        assert REPLY.encode() in response.read() or REPLY in response.json()["choices"][0]["message"]["content"]
    assert client.chat.completions.create(model="fake", messages=HI)._request_id is not None


def test_unknown_parameters_are_named_and_harmless_ones_taken(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="fake", messages=HI, extra_body={"nonsense": 1})
    assert caught.value.param == "nonsense" and caught.value.code == "unknown_parameter"
    answer = client.chat.completions.create(
        model="fake", messages=HI, user="u", metadata={"a": "b"}, store=False, service_tier="auto", seed=1,
        safety_identifier="s", prompt_cache_key="k",
    )  # fmt: skip
    assert answer.choices[0].message.content == REPLY
