"""A made-up thinking model: where its prompt opens a thought the constraint waits for the end of it."""

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
    "{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n"
    "{% if enable_thinking is defined and not enable_thinking %}{{ '\n</think>\n\n' }}{% endif %}{% endif %}"
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
