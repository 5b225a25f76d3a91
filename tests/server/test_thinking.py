"""A made-up thinking model: where its prompt, or the model itself, opens a thought the constraint waits for its end."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi.testclient import TestClient

from radixrt import Engine
from radixrt.server.app import create_app

THINKING = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content.split('</think>')[-1] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% if not itself %}<think>\n"
    "{% if enable_thinking is defined and not enable_thinking and not always %}{{ '\n</think>\n\n' }}{% endif %}"
    "{% endif %}{% endif %}"
)
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer", "maximum": 9, "minimum": 0}}, "required": ["n"]}


@pytest.fixture(scope="module")
def http(tiny_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    template = tmp_path_factory.mktemp("template") / "thinking.jinja"
    template.write_text(THINKING)
    with Engine(str(tiny_path), chat_template=str(template), check=True) as engine:
        assert engine.info.thinking == ("<think>", "</think>") and engine.info.tool_dialect == "hermes"
        with TestClient(create_app(engine)) as client:
            yield client


def ask(http: httpx.Client, **body: Any) -> dict[str, Any]:
    base = {
        "messages": [{"role": "user", "content": "?"}],
        "temperature": 0,
        "max_tokens": 24,
        "logit_bias": {"198": -100},
    }
    answer = http.post("/v1/chat/completions", json={**base, **body})
    assert answer.status_code == 200, answer.text
    choice: dict[str, Any] = answer.json()["choices"][0]
    return choice


def test_a_thought_is_free_and_a_cut_one_no_answer(http: httpx.Client) -> None:
    asked: tuple[dict[str, Any], ...] = ({}, {"json_schema": SCHEMA}, {"choice": ["yes", "no"]}, {"regex": "[ab]/x"})
    for more in asked:
        choice = ask(http, **more)
        assert choice["finish_reason"] == "length" and choice["message"]["content"] == ""
        assert choice["message"]["reasoning_content"][:1] not in ("", "{", "y", "n")
    tool = {"type": "function", "function": {"name": "set", "parameters": SCHEMA}}
    message = ask(http, tools=[tool], tool_choice="required")["message"]
    assert message["content"] is None and message["reasoning_content"] and "tool_calls" not in message


def test_without_thoughts_the_constraint_begins_at_once(http: httpx.Client) -> None:
    off = {"chat_template_kwargs": {"enable_thinking": False}}
    choice = ask(http, json_schema={**SCHEMA, "additionalProperties": False}, **off)
    assert choice["finish_reason"] == "stop" and 0 <= json.loads(choice["message"]["content"])["n"] <= 9
    assert "reasoning_content" not in choice["message"]
    tool = {"type": "function", "function": {"name": "set", "parameters": SCHEMA}}
    choice = ask(http, tools=[tool], tool_choice="required", **off)
    assert choice["finish_reason"] == "tool_calls"
    assert 0 <= json.loads(choice["message"]["tool_calls"][0]["function"]["arguments"])["n"] <= 9


def test_the_answer_of_the_history_has_no_thought(http: httpx.Client) -> None:
    said = {"role": "assistant", "content": "4", "reasoning_content": "Hm."}
    messages = [{"role": "user", "content": "?"}, said, {"role": "user", "content": "?"}]
    ids = http.post("/tokenize", json={"messages": messages}).json()["tokens"]
    text = http.post("/detokenize", json={"tokens": ids}).json()["prompt"]
    assert "Hm." not in text and text.endswith("<think>\n")


ITSELF = {"chat_template_kwargs": {"itself": True}}
"""The prompt leaves it to the model to open a thought."""


def text_of(http: httpx.Client, text: str) -> list[int]:
    """The tokens of a text, as the tokenizer writes it."""
    tokens: list[int] = http.post("/tokenize", json={"prompt": text, "add_special_tokens": False}).json()["tokens"]
    return tokens


def test_a_model_that_opens_a_thought_itself(http: httpx.Client) -> None:
    # Tokens that spell the marks are so likely that the model writes them wherever they may stand.
    likely = {str(token): 60 for token in {*text_of(http, "<think>"), *text_of(http, "</think>\n\n")}}
    tool = {"type": "function", "function": {"name": "set", "parameters": SCHEMA}}
    closed = {**SCHEMA, "additionalProperties": False}
    asked: tuple[dict[str, Any], ...] = ({"json_schema": closed}, {"tools": [tool], "tool_choice": "required"})
    for more in asked:
        choice = ask(http, **ITSELF, **more, logit_bias={"198": -100, **likely}, max_tokens=30)
        message = choice["message"]
        assert message["reasoning_content"] and choice["finish_reason"] == "length", "the thought is free, and cut"
        assert not message["content"] and "tool_calls" not in message
        # Where it begins with something else it answers at once, and where no thought is wanted.
        if "json_schema" in more:
            choice = ask(http, **ITSELF, **more, logit_bias={"198": -100, **dict.fromkeys(likely, -100)})
            assert "reasoning_content" not in choice["message"] and choice["finish_reason"] == "stop"
        off = {"chat_template_kwargs": {"itself": True, "enable_thinking": False}}
        choice = ask(http, **off, **more, logit_bias={"198": -100, **likely}, max_tokens=60)
        assert "reasoning_content" not in choice["message"] and choice["finish_reason"] in ("stop", "tool_calls")


@pytest.mark.parametrize("prompt", [{}, ITSELF], ids=["opened", "itself"])
def test_a_thought_keeps_its_budget(http: httpx.Client, prompt: dict[str, Any]) -> None:
    likely = {str(token): 60 for token in text_of(http, "<think>")} if prompt else {}
    closed = {**SCHEMA, "additionalProperties": False}
    asked: list[dict[str, Any]] = [{"json_schema": closed}, {"choice": ["yes", "no"]}]
    for more in asked if prompt else [{}, *asked]:
        choice = ask(
            http, **prompt, **more, thinking_token_budget=5, max_tokens=60, logit_bias={"198": -100, **likely},
            return_token_ids=True,
        )  # fmt: skip
        ids, message = choice["token_ids"], choice["message"]
        texts = [http.post("/detokenize", json={"tokens": ids[:n]}).json()["prompt"] for n in range(len(ids) + 1)]
        before = next(n for n, text in enumerate(texts) if "<think>" in text) if prompt else 0
        thought = texts[-1][: texts[-1].index("</think>")]
        assert texts[before + 5] == thought and message["reasoning_content"], "five tokens, and then it is closed"
        assert "</think>\n\n" in texts[-1] and (not more or choice["finish_reason"] == "stop")
    assert choice["message"]["content"] in ("yes", "no")


@pytest.mark.parametrize(
    ("body", "param"),
    [({"thinking_token_budget": 0}, "thinking_token_budget"), ({"thinking_token_budget": 9}, "thinking_token_budget")],
)
def test_a_budget_that_leaves_nothing(http: httpx.Client, body: dict[str, Any], param: str) -> None:
    asked = {"messages": [{"role": "user", "content": "?"}], "max_tokens": 9}
    answer = http.post("/v1/chat/completions", json={**asked, **body})
    assert answer.status_code == 400 and answer.json()["error"]["param"] == param


def test_effort(http: httpx.Client) -> None:
    closed = {**SCHEMA, "additionalProperties": False}
    assert ask(http, json_schema=closed, reasoning_effort="none")["finish_reason"] == "stop"
    assert ask(http, json_schema=closed, reasoning_effort="low")["message"]["reasoning_content"]
    body = {"messages": [{"role": "user", "content": "?"}], "reasoning_effort": "none", "max_tokens": 4}
    always = http.post("/v1/chat/completions", json={**body, "chat_template_kwargs": {"always": True}})
    assert always.status_code == 400 and always.json()["error"]["param"] == "reasoning_effort"


def test_the_other_protocols_ask_and_tell(http: httpx.Client) -> None:
    asked = {"model": http.get("/v1/models").json()["data"][0]["id"], "messages": [{"role": "user", "content": "?"}]}
    options = {"num_predict": 8, "temperature": 50, "top_k": 0, "top_p": 1, "seed": 1}
    for think, thought in ((True, True), ("low", True), (False, False)):
        body = {**asked, "stream": False, "think": think, "options": options, "format": SCHEMA}
        answer = http.post("/api/chat", json=body).json()
        assert bool(answer["message"].get("thinking")) is thought and answer["done_reason"] == "length"
        assert answer["message"]["content"] == "" or not thought
    body = {**asked, "max_tokens": 8, "temperature": 50}
    kinds = [block["type"] for block in http.post("/v1/messages", json=body).json()["content"]]
    assert kinds == ["thinking"]
    kinds = [
        b["type"] for b in http.post("/v1/messages", json={**body, "thinking": {"type": "disabled"}}).json()["content"]
    ]
    assert kinds == ["text"]
    body |= {"max_tokens": 40, "thinking": {"type": "enabled", "budget_tokens": 4}}
    blocks = http.post("/v1/messages", json=body).json()["content"]
    assert [block["type"] for block in blocks] == ["thinking", "text"], "what is left of max_tokens is for the answer"
    refused = http.post("/v1/messages", json={**body, "max_tokens": 4})
    assert refused.status_code == 400 and "thinking.budget_tokens" in refused.json()["error"]["message"]
    for effort, kind in (("high", "reasoning"), ("none", "message")):
        body = {"input": "?", "max_output_tokens": 8, "temperature": 50, "seed": 1, "reasoning": {"effort": effort}}
        answer = http.post("/v1/responses", json=body).json()
        assert [item["type"] for item in answer["output"]] == [kind] and answer["status"] == "incomplete"
