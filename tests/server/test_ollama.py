"""Ollama's protocol by its own package."""

from __future__ import annotations

from typing import Any

import msgspec
import ollama
import pytest

from radixrt.messages import ChatPrompt, TextPrompt

from .conftest import Served
from .events import strict
from .fake_backend import REPLY
from .test_http_tools import TOOLS, call

HI = [{"role": "user", "content": "Hi"}]


@pytest.fixture(scope="module")
def sdk(shared_server: Served) -> ollama.Client:
    return ollama.Client(host=shared_server.url)


@pytest.fixture
def client(sdk: ollama.Client, served: Served) -> ollama.Client:
    return sdk


def test_chat(client: ollama.Client, served: Served) -> None:
    answer = client.chat(model="fake:latest", messages=HI, options={"num_predict": 80, "temperature": 0.5, "seed": 7})
    assert answer.message.content == REPLY and answer.done and answer.done_reason == "stop"
    assert answer.eval_count == len(REPLY.encode()) and answer.prompt_eval_count and answer.total_duration
    sampling = served.backend.seen[-1][1]
    assert (sampling.max_tokens, sampling.temperature, sampling.top_k, sampling.top_p, sampling.seed) == (
        80,
        0.5,
        40,
        0.9,
        7,
    )
    lines = list(client.chat(model="fake", messages=HI, stream=True))
    assert "".join(line.message.content or "" for line in lines) == REPLY
    assert [line.done for line in lines] == [False] * (len(lines) - 1) + [True]
    assert lines[-1].eval_count == answer.eval_count
    assert client.chat(model="fake", messages=HI, options={"num_predict": -2}).message.content == REPLY
    cut = client.chat(model="fake", messages=HI, options={"num_predict": 3})
    assert cut.done_reason == "length"


def test_generate(client: ollama.Client, served: Served) -> None:
    answer = client.generate(model="fake", prompt="Hi", system="Be brief.", keep_alive="5m")
    assert answer.response == REPLY and answer.done
    prompt = served.backend.seen[-1][0]
    assert isinstance(prompt, ChatPrompt) and [m.role for m in prompt.messages] == ["system", "user"]
    assert "".join(part.response for part in client.generate(model="fake", prompt="Hi", stream=True)) == REPLY
    client.generate(model="fake", prompt="Hi", raw=True)
    assert served.backend.seen[-1][0] == TextPrompt(text="Hi", parse_special=True)
    assert client.generate(model="fake").done_reason == "load"
    served.backend.info = msgspec.structs.replace(served.backend.info, has_chat_template=False)
    client.generate(model="fake", prompt="Hi")
    assert isinstance(served.backend.seen[-1][0], TextPrompt)


def test_formats(client: ollama.Client, served: Served) -> None:
    client.chat(model="fake", messages=HI, format="json")
    assert served.backend.seen[-1][2].kind == "json_object"  # type: ignore[union-attr]
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    client.generate(model="fake", prompt="Hi", format=schema)
    constraint = served.backend.seen[-1][2]
    assert constraint is not None and constraint.kind == "json_schema" and strict(constraint.value) == schema


def test_tools(client: ollama.Client, served: Served) -> None:
    served.backend.reply = "Well. " + call("get_weather", '{"city": "東京"}') + "\n" + call("now", "{}")
    whole = client.chat(model="fake", messages=HI, tools=TOOLS)
    lines = list(client.chat(model="fake", messages=HI, tools=TOOLS, stream=True))
    streamed = [tool for line in lines for tool in line.message.tool_calls or ()]
    for calls in (whole.message.tool_calls, streamed):
        assert calls is not None
        assert [(c.function.name, c.function.arguments) for c in calls] == [
            ("get_weather", {"city": "東京"}),
            ("now", {}),
        ]
    history: Any = [*HI, whole.message, {"role": "tool", "content": "12 °C", "tool_name": "get_weather"}]
    client.chat(model="fake", messages=history, tools=TOOLS)
    prompt = served.backend.seen[-1][0]
    assert isinstance(prompt, ChatPrompt) and [m.role for m in prompt.messages] == ["user", "assistant", "tool"]
    # The protocol has no ids of calls, templates do: each call has one of its own, and its result the same.
    history += [{"role": "tool", "content": "12:30", "tool_name": "now"}, *history[1:3]]
    client.chat(model="fake", messages=history, tools=TOOLS)
    prompt = served.backend.seen[-1][0]
    assert isinstance(prompt, ChatPrompt)
    given = [made["id"] for m in prompt.messages for made in m.tool_calls or ()]
    assert len(given) == len(set(given)) == 4 and all(len(i) == 9 and i.isalnum() for i in given)
    assert [m.tool_call_id for m in prompt.messages if m.role == "tool"] == [given[0], given[1], given[2]]


def test_thoughts(client: ollama.Client, served: Served) -> None:
    served.backend.info = msgspec.structs.replace(served.backend.info, thinking=("<think>", "</think>"))
    served.backend.reply = "<think>\nHm.\n</think>\n\nYes."
    assert (
        answer := client.chat(model="fake", messages=HI)
    ).message.thinking == "Hm." and answer.message.content == "Yes."
    lines = list(client.chat(model="fake", messages=HI, stream=True))
    assert "".join(line.message.thinking or "" for line in lines) == "Hm."


def test_what_is_served(client: ollama.Client, served: Served) -> None:
    assert [model.model for model in client.list().models] == ["fake"]
    assert [model.model for model in client.ps().models] == ["fake"]
    assert client.show("fake").capabilities == ["completion", "tools"]
    assert served.http.get("/api/version").json()["version"]


def test_embed(client: ollama.Client, served: Served) -> None:
    answer = client.embed(model="fake", input=["Hi", "Ho"], keep_alive="5m", options={"num_ctx": 100})
    assert [len(vector) for vector in answer.embeddings] == [4, 4] and answer.embeddings[0] != answer.embeddings[1]
    assert all(abs(sum(x * x for x in vector) - 1) < 1e-6 for vector in answer.embeddings)
    assert answer.prompt_eval_count == 4 and answer.total_duration and answer.load_duration == 0
    assert client.embed(model="fake:latest", input="Hi").embeddings == answer.embeddings[:1]
    assert len(client.embed(model="fake", input="Hi", dimensions=2).embeddings[0]) == 2
    assert client.embed(model="fake", input="x" * 700).embeddings  # the end is left out unless truncate is false
    assert client.embed(model="fake", input=[]).embeddings == client.embed(model="fake", input="").embeddings == []
    assert client.embeddings(model="fake", prompt="Hi").embedding == answer.embeddings[0]
    assert strict(served.post("/api/embeddings", {"model": "fake"}).content) == {"embedding": []}


@pytest.mark.parametrize(
    ("path", "change", "status", "words"),
    [
        ("/api/chat", {"model": "other"}, 404, "other"),
        ("/api/chat", {"options": {"mirostat": 1}}, 400, "options.mirostat"),
        ("/api/chat", {"options": {"num_ctx": 10**6}}, 400, "--context-length"),
        ("/api/chat", {"format": 7}, 400, "format"),
        ("/api/chat", {"think": True}, 400, "think"),
        ("/api/generate", {"suffix": "x", "prompt": "x"}, 400, "suffix"),
        ("/api/generate", {"prompt": "BOOM"}, 500, "unexpected"),
        ("/api/embed", {"input": "x", "dimensions": 9}, 400, "dimensions"),
        ("/api/embed", {"input": "x" * 700, "truncate": False}, 400, "input 0 has 700"),
        ("/api/embed", {"input": [1, 2]}, 400, "input"),
        ("/api/embed", {"input": "x", "options": {"num_ctx": 10**6}}, 400, "--context-length"),
        ("/api/embeddings", {"prompt": "x", "model": "other"}, 404, "other"),
        ("/api/show", {"model": "other"}, 404, "other"),
    ],
)
def test_errors_have_the_protocols_shape(
    served: Served, path: str, change: dict[str, Any], status: int, words: str
) -> None:
    body = {"model": "fake", **({"messages": HI} if path == "/api/chat" else {}), **change}
    response = served.post(path, body)
    answer = strict(response.content)
    assert response.status_code == status and answer.keys() == {"error"} and words in answer["error"]


def test_an_error_in_the_middle_is_a_line(client: ollama.Client) -> None:
    with pytest.raises(ollama.ResponseError, match="dead end"):
        list(client.generate(model="fake", prompt="DEADEND", stream=True))
