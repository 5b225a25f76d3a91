"""The kinds of request that the chaos run mixes: each sends one thing and says what came of it.

A kind returns None when the answer is right, and raises: `Down` for a refusal that a dying engine explains, `Wrong` for
an answer that is not what it must be. Whether an outage explains a `Down` is decided by who knows of outages.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import httpx

KEY = "chaos-key-0123456789"
GONE = {500, 503}
"""Statuses of a request whose engine died or is not there."""
SILENCE_S = 45.0
"""A stream says something, if only a comment, at least every 15 s."""
WORDS = (
    "river",
    "stone",
    "lamp",
    "winter",
    "engine",
    "paper",
    "copper",
    "garden",
    "signal",
    "harbour",
    "velvet",
    "orbit",
)
SCHEMA = {
    "type": "object",
    "properties": {
        "kind": {"enum": ["cat", "dog", "newt"]}, "legs": {"type": "integer", "minimum": 0, "maximum": 9},
        "tags": {"type": "array", "items": {"type": "boolean"}, "maxItems": 3},
    },
    "required": ["kind", "legs", "tags"], "additionalProperties": False,
}  # fmt: skip
TOOLS = [{"type": "function", "function": {"name": "book", "parameters": {
    "type": "object", "properties": {"floor": {"enum": [1, 2, 3]}}, "required": ["floor"]}}}]  # fmt: skip
BOMBS: list[dict[str, Any]] = [
    {"regex": "((a{1,900}){1,900}){1,900}"},
    {"json_schema": {"type": "array", "items": {"type": "array", "maxItems": 90_000}, "maxItems": 90_000}},
    {"json_schema": {"$ref": "#"}},
    {"ebnf": "root ::= " + "(" * 3000 + "\"a\"" + ")" * 3000},
    {"stop_regex": "(a+)+$", "n": 8},
    {"json_schema": {"anyOf": [{"type": "object", "properties": {f"k{i}": {"type": "string"} for i in range(j, 400)}}
                               for j in range(60)]}},
]  # fmt: skip
MALFORMED = (
    b"", b"{", b"[]", b"nul", b'{"messages": 3}', b'{"messages": [{"role": "user", "content": "\xff"}]}',
    b'{"messages": ' + b"[" * 20_000, b'{"messages": [], "n": 1, "n": 2}', b'{"prompt": "a", "max_tokens": 1e999}',
    b'{"prompt": [-1]}', b'{"prompt": [99999999]}', b'{"prompt": "a", "logit_bias": {"x": 1}}', b"\x00" * 1000,
    b'{"messages": [{"role": "user", "content": "a"}], "temperature": -1}', b'{"nonsense": true, "prompt": "a"}',
)  # fmt: skip


class Down(Exception):
    """The engine was not there, or died meanwhile: fine if it did."""


class Wrong(Exception):
    """An answer that is not what it must be."""


@dataclass
class Load:
    """What all clients share."""

    http: httpx.AsyncClient
    address: tuple[str, int]
    choice: random.Random
    expected: dict[str, str] = field(default_factory=dict)
    """Reference answers, taken while nothing else ran."""

    async def post(self, path: str, body: Any, want: int = 200) -> Any:
        response = await self.http.post(path, json=body)
        if response.status_code != want:
            raise unexpected(response.status_code, response.text)
        if not response.headers.get("x-request-id", "").startswith("req_"):
            raise Wrong("an answer without an id")
        return response.json()

    def prompt(self) -> str:
        """A question with a long, shared beginning and an end of its own."""
        return " ".join(WORDS * self.choice.randint(1, 4)) + f" {self.choice.randrange(10**6)}?"

    def same(self, name: str, text: str) -> None:
        if self.expected.setdefault(name, text) != text:
            raise Wrong(f"{name}: {text!r}, but alone it was {self.expected[name]!r}")


def unexpected(status: int, text: str) -> Exception:
    return (Down if status in GONE else Wrong)(f"{status}: {text[:300]}")


def _chat(text: str, **more: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], "temperature": 0, "max_tokens": 16, **more}


async def read_stream(load: Load, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    """The chunks of a stream that ends as it should; Down where its last event is an error."""
    chunks: list[dict[str, Any]] = []
    async with load.http.stream("POST", path, json={**body, "stream": True}) as response:
        if response.status_code != 200:
            raise unexpected(response.status_code, (await response.aread()).decode())
        ended = False
        async for line in response.aiter_lines():
            if not line.startswith("data: "):
                continue
            if ended:
                raise Wrong("something follows [DONE]")
            if line == "data: [DONE]":
                ended = True
                continue
            chunks.append(json.loads(line.removeprefix("data: ")))
            if "error" in chunks[-1] or chunks[-1].get("type") == "error":
                raise Down(line[:300])
    if not ended and path != "/v1/responses":
        raise Wrong("a stream was cut off without a word")
    return chunks


async def chat(load: Load) -> None:
    i = load.choice.randrange(6)
    answer = await load.post("/v1/chat/completions", _chat(f"Question {i}: " + " ".join(WORDS[: i + 4])))
    load.same(f"chat {i}", answer["choices"][0]["message"]["content"])


async def stream(load: Load) -> None:
    i = load.choice.randrange(6)
    body = _chat(f"Question {i}: " + " ".join(WORDS[: i + 4]))
    chunks = await read_stream(load, "/v1/chat/completions", body)
    choices = [chunk["choices"][0] for chunk in chunks if chunk["choices"]]
    if [choice["finish_reason"] for choice in choices][-1] not in ("stop", "length"):
        raise Wrong("a stream without a finish_reason")
    load.same(f"chat {i}", "".join(choice["delta"].get("content") or "" for choice in choices))


async def completions(load: Load) -> None:
    prompts = [" ".join(WORDS[i:]) for i in range(3)]
    answer = await load.post("/v1/completions", {"prompt": prompts, "temperature": 0, "max_tokens": 8, "logprobs": 1})
    for choice in answer["choices"]:
        load.same(f"completion {choice['index']}", choice["text"])


async def samples(load: Load) -> None:
    body = _chat(load.prompt(), n=3, temperature=1.0, seed=7)
    if len({choice["index"] for choice in (await load.post("/v1/chat/completions", body))["choices"]}) != 3:
        raise Wrong("n=3 gave other than three choices")


async def json_answer(load: Load) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "animal", "schema": SCHEMA}}
    body = _chat(load.prompt(), response_format=form, temperature=1.0, max_tokens=200)
    choice = (await load.post("/v1/chat/completions", body))["choices"][0]
    check_animal(json.loads(choice["message"]["content"]))


def check_animal(value: Any) -> None:
    good = isinstance(value, dict) and set(value) == {"kind", "legs", "tags"}
    if not (
        good
        and value["kind"] in ("cat", "dog", "newt")
        and type(value["legs"]) is int and 0 <= value["legs"] <= 9
        and len(value["tags"]) <= 3 and all(type(tag) is bool for tag in value["tags"])
    ):  # fmt: skip
        raise Wrong(f"the schema does not allow {value}")


async def one_of(load: Load) -> None:
    body = _chat(load.prompt(), choice=["north", "south", "southern"], temperature=1.0)
    text = (await load.post("/v1/chat/completions", body))["choices"][0]["message"]["content"]
    if text not in ("north", "south", "southern"):
        raise Wrong(f"{text!r} is no choice")


async def tools(load: Load) -> None:
    body = _chat(load.prompt(), tools=TOOLS, tool_choice="required", temperature=1.0, max_tokens=60)
    choice = (await load.post("/v1/chat/completions", body))["choices"][0]
    call = choice["message"]["tool_calls"][0]["function"]
    if choice["finish_reason"] != "tool_calls" or json.loads(call["arguments"])["floor"] not in (1, 2, 3):
        raise Wrong(f"a call that the schema does not allow: {choice}")


async def select(load: Load) -> None:
    i = load.choice.randrange(4)
    body = {"prompt": f"{' '.join(WORDS[:8])} number {i} is", "options": [" a stone", " a lamp", " nothing at all"]}
    load.same(f"select {i}", (await load.post("/v1/select", body))["choice"])


async def program(load: Load) -> None:
    gen = {"type": "Gen", "sampling": {"max_tokens": 5, "temperature": 0}}
    items = [
        {"type": "Text", "text": "The capital is"}, {**gen, "index": 0},
        {"type": "Text", "text": ". It lies on the"}, {**gen, "index": 1},
    ]  # fmt: skip
    answer = await load.post("/v1/programs", {"items": items})
    load.same("program", json.dumps([gen["generation"]["choices"][0]["text"] for gen in answer["gens"]]))


async def responses(load: Load) -> None:
    body = {"input": "Name a lamp.", "temperature": 0, "max_output_tokens": 8}
    if load.choice.random() < 0.5:
        events = await read_stream(load, "/v1/responses", body)
        last = events[-1]
        if last["type"] not in ("response.completed", "response.incomplete"):
            raise Wrong(f"the last event is {last['type']}")
        answer = last["response"]
    else:
        answer = await load.post("/v1/responses", body)
    load.same("response", "".join(part["text"] for item in answer["output"] for part in item.get("content", ())))


async def other_protocols(load: Load) -> None:
    messages = [{"role": "user", "content": "Name a stone."}]
    if load.choice.random() < 0.5:
        answer = await load.post("/v1/messages", {"messages": messages, "max_tokens": 8, "temperature": 0})
        load.same("stone", "".join(block.get("text", "") for block in answer["content"]))
    else:
        options = {"temperature": 0, "num_predict": 8, "top_k": 0, "top_p": 1}
        body = {"model": "chaos", "messages": messages, "stream": False, "options": options}
        load.same("stone", (await load.post("/api/chat", body))["message"]["content"])


async def tokens(load: Load) -> None:
    text = load.prompt() + " Zwölf 🍎"
    ids = (await load.post("/tokenize", {"prompt": text, "add_special_tokens": False}))["tokens"]
    if (await load.post("/detokenize", {"tokens": ids}))["prompt"] != text:
        raise Wrong("tokens do not give their text back")


async def bomb(load: Load) -> None:
    response = await load.http.post("/v1/chat/completions", json=_chat("x", **load.choice.choice(BOMBS)))
    if response.status_code not in (200, 400):
        raise unexpected(response.status_code, response.text)


async def malformed(load: Load) -> None:
    path = load.choice.choice(("/v1/chat/completions", "/v1/completions", "/v1/responses", "/generate", "/v1/select"))
    response = await load.http.post(path, content=load.choice.choice(MALFORMED))
    if response.status_code != 400 or "error" not in response.json():
        raise unexpected(response.status_code, response.text)


async def too_long(load: Load) -> None:
    response = await load.http.post("/v1/completions", json={"prompt": "stone " * 9000, "max_tokens": 4})
    if response.status_code != 400:
        raise unexpected(response.status_code, response.text)


async def wrong_key(load: Load) -> None:
    headers = {"authorization": load.choice.choice(("Bearer wrong", "Basic x", "", "Bearer " + KEY[:-1]))}
    response = await load.http.post("/v1/chat/completions", json=_chat("x"), headers=headers)
    if response.status_code != 401:
        raise Wrong(f"{response.status_code} for a wrong key")


async def _begin(load: Load, *, streamed: bool) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    body = json.dumps(_chat(load.prompt(), max_tokens=48, ignore_eos=True, stream=streamed)).encode()
    reader, writer = await asyncio.open_connection(*load.address)
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {KEY}\r\n"
    writer.write(f"{head}Connection: close\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
    await writer.drain()
    return reader, writer


async def disconnect(load: Load) -> None:
    _, writer = await _begin(load, streamed=load.choice.random() < 0.5)
    await asyncio.sleep(load.choice.random())
    writer.transport.abort()


async def slow_reader(load: Load) -> None:
    reader, writer = await _begin(load, streamed=True)
    received = b""
    try:
        while True:
            if len(received) < 2000:
                await asyncio.sleep(load.choice.random() / 2)
            async with asyncio.timeout(SILENCE_S):
                more = await reader.read(512)
            if not more:
                break
            received += more
    except TimeoutError:
        raise Wrong(f"silent for {SILENCE_S:.0f} s after {received[-200:]!r}") from None
    except asyncio.CancelledError:
        print(f"a slow reader is given up after {len(received)} bytes, the last: {received[-300:]!r}", file=sys.stderr)
        raise
    finally:
        writer.close()
    if b'"error"' in received:
        raise Down(received[-300:].decode(errors="replace"))
    if b"[DONE]" not in received:
        raise Wrong("a slow reader's stream was cut off without a word")


Kind = Callable[[Load], Awaitable[None]]
KINDS: dict[Kind, int] = {
    chat: 6, stream: 6, completions: 3, samples: 2, json_answer: 4, one_of: 3, tools: 3, select: 3, program: 3,
    responses: 3, other_protocols: 3, tokens: 2, bomb: 1, malformed: 3, too_long: 1, wrong_key: 2, disconnect: 3,
    slow_reader: 2,
}  # fmt: skip
"""With their weights."""
REFERENCES: dict[Kind, int] = {chat: 6, completions: 3, select: 4, program: 1, responses: 1, other_protocols: 1}
"""Kinds whose answers are always the same, with how many there are."""
