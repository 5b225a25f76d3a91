"""From a request of Anthropic's protocol to the chat request that asks for the same."""

from __future__ import annotations

from typing import Any, Literal

from radixrt.errors import InvalidRequest
from radixrt.server.anthropic_types import (
    Block,
    BoundThinking,
    CountTokensRequest,
    DocumentBlock,
    ImageBlock,
    InMessage,
    MessagesRequest,
    NoThinking,
    TextBlock,
    ThinkingBlock,
    ToolChoice,
    ToolResultBlock,
    ToolUseBlock,
)
from radixrt.server.openai_types import (
    ChatRequest,
    FormatJsonSchema,
    FunctionCall,
    FunctionName,
    FunctionSpec,
    JsonSchema,
    NamedChoice,
    Tool,
    ToolCall,
)
from radixrt.server.openai_types import InMessage as ChatMessage

NAMES = {
    "stop": "stop_sequences",
    "response_format.json_schema.schema": "output_config.format.schema",
    "thinking_token_budget": "thinking.budget_tokens",
}
"""This protocol's names of what a chat request calls otherwise."""
TOOLS = "input_schema"
"""Where a tool has its schema."""


def chat_request(body: CountTokensRequest) -> ChatRequest:
    """Raises InvalidRequest for what has no counterpart; it names the place in the client's request."""
    messages = []
    if body.system:
        messages.append(ChatMessage(role="system", content=_text(body.system, "system")))
    for i, message in enumerate(body.messages):
        messages += _turn(message, f"messages[{i}]")
    if not body.messages:
        raise InvalidRequest("messages must hold at least one message", param="messages")
    choice, parallel = _tool_choice(body.tool_choice)
    chat = ChatRequest(
        model=body.model,
        messages=messages,
        tools=[_tool(tool.name, tool.description, tool.input_schema) for tool in body.tools or ()] or None,
        tool_choice=choice,
        parallel_tool_calls=parallel,
    )
    if body.thinking is not None:
        chat.chat_template_kwargs = {"enable_thinking": not isinstance(body.thinking, NoThinking)}
    if isinstance(body.thinking, BoundThinking):
        chat.thinking_token_budget = body.thinking.budget_tokens
    # The protocol lets the last message be the beginning of the answer.
    if body.messages[-1].role == "assistant" and not messages[-1].tool_calls:
        chat.continue_final_message = True
    if body.output_config is not None and body.output_config.format is not None:
        chat.response_format = FormatJsonSchema(
            json_schema=JsonSchema(name="output", schema=body.output_config.format.schema)
        )
    if isinstance(body, MessagesRequest):
        chat.max_tokens = body.max_tokens
        chat.stop = body.stop_sequences
        chat.temperature, chat.top_p, chat.top_k = body.temperature, body.top_p, body.top_k
    return chat


def _tool(name: str, description: str | None, schema: dict[str, Any]) -> Tool:
    return Tool(function=FunctionSpec(name=name, description=description, parameters=schema))


def _tool_choice(
    choice: ToolChoice | None,
) -> tuple[Literal["none", "auto", "required"] | NamedChoice | None, bool | None]:
    if choice is None:
        return None, None
    parallel = False if choice.disable_parallel_tool_use else None
    if choice.type == "tool":
        if choice.name is None:
            raise InvalidRequest("tool_choice of type tool needs a name", param="tool_choice.name")
        return NamedChoice(function=FunctionName(name=choice.name)), parallel
    if choice.name is not None:
        raise InvalidRequest(f"tool_choice of type {choice.type} takes no name", param="tool_choice.name")
    return {"any": "required", "auto": "auto", "none": "none"}[choice.type], parallel  # type: ignore[return-value]


def _turn(message: InMessage, where: str) -> list[ChatMessage]:
    """A message's blocks as turns of a chat: results of tools are turns of their own, before the user's text."""
    if isinstance(message.content, str):
        return [ChatMessage(role=message.role, content=message.content)]
    return (_assistant if message.role == "assistant" else _user)(message.content, where)


def _user(blocks: list[Block], where: str) -> list[ChatMessage]:
    turns, texts = list[ChatMessage](), list[str]()
    for i, block in enumerate(blocks):
        if isinstance(block, ToolResultBlock):
            text = _text(block.content, f"{where}.content[{i}].content")
            turns.append(ChatMessage(role="tool", content=text, tool_call_id=block.tool_use_id))
        else:
            texts.append(_text([block], f"{where}.content[{i}]"))
    return turns + ([ChatMessage(role="user", content="".join(texts))] if texts or not turns else [])


def _assistant(blocks: list[Block], where: str) -> list[ChatMessage]:
    said, thought, calls = "", "", list[ToolCall]()
    for i, block in enumerate(blocks):
        if isinstance(block, ToolUseBlock):
            arguments = bytes(block.input).decode()
            if not arguments.lstrip().startswith("{"):
                raise InvalidRequest(f"{where}.content[{i}].input must be an object", param=f"{where}.content[{i}]")
            calls.append(ToolCall(id=block.id, function=FunctionCall(name=block.name, arguments=arguments)))
        elif isinstance(block, ThinkingBlock):
            thought += block.thinking
        else:
            said += _text([block], f"{where}.content[{i}]")
    return [
        ChatMessage(role="assistant", content=said, reasoning_content=thought or None, tool_calls=calls or None)
    ]  # fmt: skip


def _text(content: str | list[Any], where: str) -> str:
    if isinstance(content, str):
        return content
    for block in content:
        if isinstance(block, ImageBlock | DocumentBlock):
            raise InvalidRequest(f"{where}: this model reads text, no images and no documents", param=where)
        if not isinstance(block, TextBlock):
            raise InvalidRequest(f"{where}: a block of this type has no place here", param=where)
    return "".join(block.text for block in content)
