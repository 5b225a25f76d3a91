"""Programs of langchain-openai and instructor against a server over the fake backend: what their users write."""

from __future__ import annotations

import asyncio
from typing import Any

import openai
import pytest
from pydantic import BaseModel

from .conftest import Served
from .fake_backend import REPLY


class Thing(BaseModel):
    """A thing with a number."""

    a: int


@pytest.fixture
def chat(served: Served) -> Any:
    langchain_openai = pytest.importorskip("langchain_openai", reason="langchain-openai is not installed here")
    return langchain_openai.ChatOpenAI(
        base_url=f"{served.url}/v1", api_key="none", model="fake", max_retries=0, temperature=0, stream_usage=True
    )


def test_langchain_invokes_streams_and_batches(chat: Any) -> None:
    answer = chat.invoke([("system", "Be brief."), ("human", "Hi")])
    assert answer.content == REPLY and answer.response_metadata["finish_reason"] == "stop"
    assert answer.usage_metadata["output_tokens"] == len(REPLY.encode())
    chunks = list(chat.stream("Hi"))
    whole = chunks[0]
    for chunk in chunks[1:]:
        whole = whole + chunk
    assert len(chunks) > 5 and whole.content == REPLY and whole.usage_metadata["output_tokens"] == len(REPLY.encode())
    assert [message.content for message in chat.batch(["a", "b", "c"])] == [REPLY] * 3

    async def run() -> str:
        return "".join([chunk.content async for chunk in chat.astream("Hi")])

    assert asyncio.run(run()) == REPLY


@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
def test_langchain_gives_typed_answers(chat: Any, served: Served, method: str) -> None:
    if method == "function_calling":
        served.backend.reply = '<tool_call>\n{"name": "Thing", "arguments": {"a": 1}}\n</tool_call>'
    assert chat.with_structured_output(Thing, method=method).invoke("Hi") == Thing(a=1)


def test_a_langchain_loop_with_tools(chat: Any) -> None:
    from langchain_core.messages import HumanMessage, ToolMessage
    from langchain_core.tools import tool

    @tool
    def get_weather(city: str) -> str:
        """The weather of a city."""
        return f"12 °C in {city}"

    bound = chat.bind_tools([get_weather])
    history: list[Any] = [HumanMessage("USETOOL")]
    for _ in range(3):
        answer = bound.invoke(history)
        history.append(answer)
        if not answer.tool_calls:
            break
        history += [get_weather.invoke(call) for call in answer.tool_calls]
    assert [message.content for message in history if isinstance(message, ToolMessage)] == ["12 °C in Orléans"]
    assert history[-1].content == "12 °C." and len(history) == 4
    whole = None
    for chunk in bound.stream("USETOOL"):
        whole = chunk if whole is None else whole + chunk
    assert whole is not None and [call["args"] for call in whole.tool_calls] == [{"city": "Orléans"}]


@pytest.mark.parametrize("mode", ["JSON_SCHEMA", "TOOLS", "JSON"])
def test_instructor_gives_typed_answers(served: Served, mode: str) -> None:
    instructor = pytest.importorskip("instructor", reason="instructor is not installed here")
    if mode == "TOOLS":
        # A forced call: its opening, as far as it is the only one possible, stands in the prompt already.
        served.backend.reply = ' {"a": 1}}\n</tool_call>'
    elif mode == "JSON":
        served.backend.reply = '{"a": 1}'
    with openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0) as plain:
        client = instructor.from_openai(plain, mode=getattr(instructor.Mode, mode))
        made, completion = client.chat.completions.create_with_completion(
            model="fake", response_model=Thing, max_retries=0, messages=[{"role": "user", "content": "Hi"}]
        )
    assert isinstance(made, Thing) and made.a == 1
    assert completion.usage is not None and completion.usage.completion_tokens > 0


def test_instructor_streams_partial_answers(served: Served) -> None:
    instructor = pytest.importorskip("instructor", reason="instructor is not installed here")
    with openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0) as plain:
        client = instructor.from_openai(plain, mode=instructor.Mode.JSON_SCHEMA)
        made = list(
            client.chat.completions.create_partial(
                model="fake", response_model=Thing, max_retries=0, messages=[{"role": "user", "content": "Hi"}]
            )
        )
    assert made[-1].a == 1
