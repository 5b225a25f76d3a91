"""Models whose chat template is odd, and what a live server says of them (R47)."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from .events import error_of
from .live import Live

REFUSING = (
    "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Roles must alternate') }}{% endif %}"
    "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""Refuses a system message, as Gemma 2's does, and turns that do not alternate."""
USER = {"role": "user", "content": "Hi"}


def without_template(model: Path, directory: Path) -> Path:
    """A copy of a model that has no chat template."""
    shutil.copytree(model, directory)
    config = json.loads((directory / "tokenizer_config.json").read_text())
    config.pop("chat_template")
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    return directory


def chat(live: Live, *messages: dict[str, Any], **body: Any) -> Any:
    return live.post("/v1/chat/completions", messages=list(messages), **{"max_tokens": 4, **body})


def a_template_that_refuses(live: Live) -> None:
    """What it raises is the answer, also to a stream; tools that it does not know are explained to the user instead."""
    turn = {"role": "assistant", "content": "x"}
    for stream in (False, True):
        for role in ("system", "developer"):
            error = error_of(chat(live, {"role": role, "content": "x"}, USER, stream=stream), 400)
            assert "System role not supported" in error["message"] and error["param"] == "messages"
        for odd in ((turn,), (USER, USER)):
            assert "must alternate" in error_of(chat(live, *odd, stream=stream), 400)["message"]
        error = error_of(chat(live, {"role": "banana", "content": "x"}, stream=stream), 400)
        assert error["param"] == "messages[0].role"
    assert chat(live, USER, turn, USER).status_code == 200
    body = live.post("/v1/responses", input="Hi", instructions="x")
    assert error_of(body, 400)["param"] == "input"
    tools = [{"type": "function", "function": {"name": "now"}}]
    choice = chat(live, USER, tools=tools, tool_choice="required", max_tokens=40).json()["choices"][0]
    assert choice["message"]["tool_calls"][0]["function"]["name"] == "now" and choice["finish_reason"] == "tool_calls"
    shown = live.post("/apply-template", messages=[USER], tools=tools).json()["prompt"]
    assert shown.startswith("<|im_start|>user\n# Tools") and shown.count("<|im_start|>") == 2


def no_template(live: Live) -> None:
    """A chat is told what to do, with tools as without; completions do not need one."""
    tools = [{"type": "function", "function": {"name": "now"}}]
    for more in ({}, {"stream": True}, {"tools": tools}, {"tools": tools, "tool_choice": "required"}):
        error = error_of(chat(live, USER, **more), 400)
        assert error["code"] == "no_chat_template" and "--chat-template" in error["message"], more
    assert live.complete("Hi", max_tokens=3).status_code == 200
