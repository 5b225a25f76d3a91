"""From a client's messages to the ChatPrompt that the model's template renders."""

from __future__ import annotations

from typing import Any

import msgspec

from radixrt.errors import InvalidRequest
from radixrt.messages import ChatMessage, ChatPrompt
from radixrt.server.openai_types import ChatRequest, InMessage, ToolCall

ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}
"""Roles that are accepted, and the role that the template sees."""


def chat_prompt(request: ChatRequest) -> ChatPrompt:
    """The prompt of a chat request. InvalidRequest names the message and the field at fault."""
    if not request.messages:
        raise InvalidRequest("messages must hold at least one message", param="messages")
    _refuse_tools(request)
    kwargs = request.chat_template_kwargs or {}
    return prompt_of(
        request.messages, request.add_generation_prompt, request.continue_final_message, template_kwargs=kwargs
    )


def prompt_of(
    messages: list[InMessage],
    add_generation_prompt: bool | None,
    continue_final_message: bool | None,
    *,
    template_kwargs: dict[str, Any],
) -> ChatPrompt:
    open_end = bool(continue_final_message)
    if open_end and add_generation_prompt:
        raise InvalidRequest(
            "continue_final_message and add_generation_prompt exclude each other", param="continue_final_message"
        )
    return ChatPrompt(
        messages=[_message(message, f"messages[{i}]") for i, message in enumerate(messages)],
        add_generation_prompt=not open_end if add_generation_prompt is None else add_generation_prompt,
        continue_final_message=open_end,
        template_kwargs=template_kwargs,
    )


def _message(message: InMessage, where: str) -> ChatMessage:
    if message.role not in ROLES:
        raise InvalidRequest(
            f"{where}.role is {message.role!r}, but must be one of {', '.join(ROLES)}", param=f"{where}.role"
        )
    if message.tool_calls and message.role != "assistant":
        raise InvalidRequest(f"{where}.tool_calls belongs to the role assistant", param=f"{where}.tool_calls")
    if message.content is None and message.role != "assistant":
        raise InvalidRequest(f"{where}.content is required", param=f"{where}.content")
    return ChatMessage(
        role=ROLES[message.role],
        content=_text(message.content, f"{where}.content"),
        name=message.name,
        tool_calls=[_call(call) for call in message.tool_calls] if message.tool_calls else None,
        tool_call_id=message.tool_call_id,
    )


def _text(content: str | list[dict[str, Any]] | None, where: str) -> str:
    """The text of a message: parts are joined without anything between them, as if they had come as one string."""
    if not isinstance(content, list):
        return content or ""
    texts = []
    for i, part in enumerate(content):
        kind, text = part.get("type"), part.get("text")
        if kind != "text":
            raise InvalidRequest(
                f"{where}[{i}] is a part of type {kind!r}; this model reads only parts of type 'text'",
                param=f"{where}[{i}].type",
            )
        if not isinstance(text, str):
            raise InvalidRequest(f"{where}[{i}].text must be a string", param=f"{where}[{i}].text")
        texts.append(text)
    return "".join(texts)


def _call(call: ToolCall) -> dict[str, Any]:
    """A call as chat templates expect it: arguments as an object, where they are one."""
    arguments: dict[str, Any] | str
    try:
        arguments = msgspec.json.decode(call.function.arguments or "{}", type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError):
        arguments = call.function.arguments  # what a model once wrote need not be JSON; the template shows it as it is
    return {"id": call.id, "type": call.type, "function": {"name": call.function.name, "arguments": arguments}}


def _refuse_tools(request: ChatRequest) -> None:
    choice = request.tool_choice
    if request.tools and choice != "none":
        raise InvalidRequest(
            "tool calling is not available yet; leave tools out or give tool_choice 'none'",
            param="tools", code="tools_unavailable",
        )  # fmt: skip
    if choice not in (None, "none", "auto"):
        raise InvalidRequest("tool_choice needs tools, which are not available yet", param="tool_choice")
