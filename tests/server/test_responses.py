"""The Responses protocol by the real openai package: whole, streamed, continued, stored."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import openai
import pytest
from openai.types.responses import ToolChoiceAllowed
from pydantic import BaseModel

from radixrt.messages import ChatPrompt, TokensPrompt
from radixrt.server.keys import ApiKey, Keys, keys_of
from radixrt.server.responses_store import ResponseStore
from radixrt.server.state import Limits

from .conftest import Served, serving
from .events import error_of
from .fake_backend import REPLY, FakeBackend
from .test_http_tools import call

WEATHER: Any = {
    "type": "function",
    "name": "get_weather",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
        "additionalProperties": False,
    },
    "strict": True,
}


@pytest.fixture(scope="module")
def sdk(shared_server: Served) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{shared_server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture
def client(sdk: openai.OpenAI, served: Served) -> openai.OpenAI:
    return sdk


def roles(served: Served) -> list[tuple[str, str]]:
    prompt = served.backend.seen[-1][0]
    assert isinstance(prompt, ChatPrompt)
    return [(message.role, message.content) for message in prompt.messages]


def test_a_response(client: openai.OpenAI, served: Served) -> None:
    answer = client.responses.create(model="fake", input="Hi", instructions="Be brief.", metadata={"k": "v"})
    assert (answer.output_text, answer.status, answer.object) == (REPLY, "completed", "response")
    assert answer.id.startswith("resp_") and answer.metadata == {"k": "v"}
    assert answer.usage is not None and answer.usage.input_tokens_details.cached_tokens == 0
    assert answer.usage.total_tokens == answer.usage.input_tokens + answer.usage.output_tokens
    assert roles(served) == [("system", "Be brief."), ("user", "Hi")]
    cut = client.responses.create(model="fake", input="Hi", max_output_tokens=3)
    assert cut.status == "incomplete" and cut.incomplete_details is not None
    assert cut.incomplete_details.reason == "max_output_tokens"


def test_the_stream_builds_the_response(client: openai.OpenAI) -> None:
    with client.responses.stream(model="fake", input="Hi") as stream:
        events = list(stream)
        final = stream.get_final_response()
    assert final.output_text == REPLY
    raw = list(client.responses.create(model="fake", input="Hi", stream=True))
    kinds = [event.type for event in raw]
    assert kinds[:4] == [
        "response.created", "response.in_progress", "response.output_item.added", "response.content_part.added",
    ]  # fmt: skip
    assert kinds[-4:] == [
        "response.output_text.done", "response.content_part.done", "response.output_item.done", "response.completed",
    ]  # fmt: skip
    assert [event.sequence_number for event in raw] == list(range(len(raw)))
    assert "".join(event.delta for event in raw if event.type == "response.output_text.delta") == REPLY
    assert any(event.type == "response.completed" for event in events)


def test_a_conversation_is_continued_by_name(client: openai.OpenAI, served: Served) -> None:
    first = client.responses.create(model="fake", input="One", instructions="For this turn alone.")
    second = client.responses.create(model="fake", input="Two", previous_response_id=first.id)
    assert roles(served) == [("user", "One"), ("assistant", REPLY), ("user", "Two")]
    assert second.previous_response_id == first.id
    with client.responses.stream(model="fake", input="Three", previous_response_id=second.id) as stream:
        third = stream.get_final_response()
    assert [role for role, _ in roles(served)] == ["user", "assistant"] * 2 + ["user"]
    assert client.responses.retrieve(third.id).output_text == REPLY
    assert len(client.responses.input_items.list(third.id).data) == 1
    client.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError, match="had to make room"):
        client.responses.create(model="fake", input="x", previous_response_id=first.id)
    unstored = client.responses.create(model="fake", input="x", store=False)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(unstored.id)


def test_a_tool_loop(client: openai.OpenAI, served: Served) -> None:
    served.backend.reply = call("get_weather", '{"city": "Orléans"}')
    asked = client.responses.create(model="fake", input="Weather?", tools=[WEATHER], tool_choice="auto")
    (item,) = asked.output
    assert item.type == "function_call" and (item.name, item.arguments) == ("get_weather", '{"city": "Orléans"}')
    streamed = list(client.responses.create(model="fake", input="Weather?", tools=[WEATHER], stream=True))
    pieces = [event.delta for event in streamed if event.type == "response.function_call_arguments.delta"]
    assert len(pieces) > 1 and "".join(pieces) == item.arguments
    served.backend.reply = REPLY
    output: Any = {"type": "function_call_output", "call_id": item.call_id, "output": "12 °C"}
    told = client.responses.create(model="fake", input=[output], previous_response_id=asked.id, tools=[WEATHER])
    assert told.output_text == REPLY
    assert [role for role, _ in roles(served)] == ["user", "assistant", "tool"]
    whole: Any = [{"role": "user", "content": "Weather?"}, item.model_dump(exclude_none=True), output]
    client.responses.create(model="fake", input=whole, tools=[WEATHER])
    assert [role for role, _ in roles(served)] == ["user", "assistant", "tool"], "the same without the store"
    prompt = served.backend.seen[-1][0]
    assert isinstance(prompt, ChatPrompt) and prompt.messages[1].tool_calls is not None


def test_some_of_the_tools(client: openai.OpenAI, served: Served) -> None:
    served.backend.reply = call("get_weather", '{"city": "Orléans"}')
    other: Any = {"type": "function", "name": "now", "parameters": None, "strict": None}
    choice: Any = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "get_weather"}]}
    asked = client.responses.create(model="fake", input="Weather?", tools=[WEATHER, other], tool_choice=choice)
    assert [item.type for item in asked.output] == ["function_call"]
    assert asked.tool_choice == ToolChoiceAllowed.model_validate(choice)
    constraint = served.backend.seen[-1][2]
    assert constraint is not None and "get_weather" in constraint.value and "now" not in constraint.value


class Answer(BaseModel):
    a: int


def test_parsing_into_a_model(client: openai.OpenAI, served: Served) -> None:
    parsed = client.responses.parse(model="fake", input="Hi", text_format=Answer)
    assert parsed.output_parsed == Answer(a=1)
    constraint = served.backend.seen[-1][2]
    assert constraint is not None and constraint.kind == "json_schema"


def test_thoughts_are_items(client: openai.OpenAI, served: Served) -> None:
    served.backend.info = msgspec.structs.replace(served.backend.info, thinking=("<think>", "</think>"))
    served.backend.reply = "<think>\nHm.\n</think>\n\nYes."
    answer = client.responses.create(model="fake", input="Hi")
    assert [item.type for item in answer.output] == ["reasoning", "message"] and answer.output_text == "Yes."
    client.responses.create(model="fake", input=[*answer.output, {"role": "user", "content": "Sure?"}])  # type: ignore[arg-type,list-item]
    prompt = served.backend.seen[-1][0]
    assert isinstance(prompt, TokensPrompt)
    assert bytes(map(int, prompt.ids)) == b"<assistant>Yes.\n<user>Sure?\n<assistant>"


@pytest.mark.parametrize(
    ("change", "status", "param"),
    [
        ({"input": []}, 400, "input"),
        ({"input": [{"type": "computer_call"}]}, 400, "input[0].type"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, 400, "input[0].content[0].type"),
        ({"input": [{"type": "function_call_output", "output": "x"}]}, 400, "input[0]"),
        ({"tools": [{"type": "web_search"}]}, 400, "tools[0].type"),
        ({"tools": [WEATHER], "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [
            {"type": "function", "name": "rm"}]}}, 400, "tool_choice.tools[0]"),
        ({"background": True}, 400, "background"),
        ({"truncation": "auto"}, 400, "truncation"),
        ({"conversation": "c"}, 400, "conversation"),
        ({"top_logprobs": 2}, 400, "top_logprobs"),
        ({"max_output_tokens": 0}, 400, "max_output_tokens"),
        ({"previous_response_id": "resp_0"}, 404, "previous_response_id"),
    ],
)  # fmt: skip
def test_what_is_refused(served: Served, change: dict[str, Any], status: int, param: str) -> None:
    error = error_of(served.post("/v1/responses", {"model": "fake", "input": "Hi", **change}), status)
    assert error["param"] == param


def test_an_error_in_the_middle_is_an_event(client: openai.OpenAI) -> None:
    events = list(client.responses.create(model="fake", input="DEADEND", stream=True))
    assert events[-1].type == "error" and "dead end" in events[-1].message
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert events[-2].type == "response.output_text.delta"


def test_the_store_is_bounded_and_nobody_elses() -> None:
    backend = FakeBackend()
    digests = [next(iter(keys_of([secret]))).digest for secret in ("ana-key-1234", "bob-key-1234")]
    keys = Keys([ApiKey("ana", digests[0], "ana"), ApiKey("bob", digests[1], "bob")])
    ana, bob = ({"authorization": f"Bearer {name}-key-1234"} for name in ("ana", "bob"))
    with serving(backend, backend, keys=keys, limits=Limits(stored_responses=2)) as served:
        names = [served.post("/v1/responses", {"input": "Hi"}, headers=ana).json()["id"] for _ in range(3)]
        found = [served.http.get(f"/v1/responses/{name}", headers=ana).status_code for name in names]
        assert found == [404, 200, 200]
        assert served.http.get(f"/v1/responses/{names[2]}", headers=bob).status_code == 404
        assert served.http.delete(f"/v1/responses/{names[2]}", headers=bob).status_code == 404
        stolen = {"input": "And?", "previous_response_id": names[2]}
        error_of(served.post("/v1/responses", stolen, headers=bob), 404)
        assert served.http.delete(f"/v1/responses/{names[2]}", headers=ana).json()["deleted"] is True
        store: ResponseStore = served.app.state.radixrt.responses
        assert len(store) == 1
        served.http.delete(f"/v1/responses/{names[1]}", headers=ana)
        assert (len(store), store.bytes) == (0, 0)


def test_a_part_without_its_text_says_so(shared_server: Served) -> None:
    content = [{"type": "input_text"}]
    error = error_of(shared_server.post("/v1/responses", {"input": [{"role": "user", "content": content}]}), 400)
    assert (error["param"], error["code"]) == ("input[0].content[0].text", "missing_parameter")
