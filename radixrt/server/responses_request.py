"""From a request of the Responses protocol to the chat request that asks for the same."""

from __future__ import annotations

from collections.abc import Sequence

from radixrt.errors import InvalidRequest
from radixrt.server.openai_types import (
    AllowedChoice,
    AllowedTool,
    AllowedTools,
    ChatRequest,
    FunctionCall,
    FunctionName,
    FunctionSpec,
    InMessage,
    JsonSchema,
    NamedChoice,
    Tool,
    ToolCall,
)
from radixrt.server.openai_types import FormatJsonObject as ChatJsonObject
from radixrt.server.openai_types import FormatJsonSchema as ChatJsonSchema
from radixrt.server.responses_types import (
    AllowedFunctions,
    FormatJsonObject,
    FormatJsonSchema,
    InputItem,
    NamedFunction,
    Part,
    ResponsesRequest,
)

NAMES = {
    "max_completion_tokens": "max_output_tokens",
    "max_tokens": "max_output_tokens",
    "messages": "input",
    "prompt": "input",
    "reasoning_effort": "reasoning.effort",
    "response_format": "text.format",
    "response_format.json_schema.name": "text.format.name",
    "response_format.json_schema.schema": "text.format.schema",
}
"""This protocol's names of what a chat request calls otherwise."""
TOOLS = "parameters"
TEXT_PARTS = ("input_text", "output_text", "text", "summary_text", "reasoning_text")


def chat_request(body: ResponsesRequest, turns: Sequence[InMessage]) -> ChatRequest:
    """The chat request whose turns are `turns`, behind the instructions."""
    system = [InMessage(role="system", content=body.instructions)] if body.instructions else []
    chat = ChatRequest(
        model=body.model,
        messages=[*system, *turns],
        max_completion_tokens=body.max_output_tokens,
        temperature=body.temperature,
        top_p=body.top_p,
        seed=body.seed,
        tools=[
            Tool(
                function=FunctionSpec(
                    name=tool.name, description=tool.description, parameters=tool.parameters, strict=tool.strict
                )
            )
            for tool in body.tools or ()
        ] or None,
        parallel_tool_calls=body.parallel_tool_calls,
        reasoning_effort=body.reasoning.effort if body.reasoning is not None else None,
        priority=body.priority,
        cache_salt=body.cache_salt,
    )  # fmt: skip
    if body.top_logprobs is not None or "message.output_text.logprobs" in (body.include or ()):
        raise InvalidRequest("top_logprobs: log-probabilities are given by the chat route alone", param="top_logprobs")
    choice = body.tool_choice
    if isinstance(choice, NamedFunction):
        chat.tool_choice = NamedChoice(function=FunctionName(name=choice.name))
    elif isinstance(choice, AllowedFunctions):
        some = [AllowedTool(type="function", function=FunctionName(name=tool.name)) for tool in choice.tools]
        chat.tool_choice = AllowedChoice(allowed_tools=AllowedTools(mode=choice.mode, tools=some))
    else:
        chat.tool_choice = choice
    form = body.text.format if body.text is not None else None
    if isinstance(form, FormatJsonObject):
        chat.response_format = ChatJsonObject()
    elif isinstance(form, FormatJsonSchema):
        chat.response_format = ChatJsonSchema(
            json_schema=JsonSchema(name=form.name, schema=form.schema, strict=form.strict)
        )
    return chat


def turns_of(given: str | list[InputItem]) -> list[InMessage]:
    """The turns of a request's input. InvalidRequest names the item at fault."""
    if isinstance(given, str):
        return [InMessage(role="user", content=given)]
    if not given:
        raise InvalidRequest("input must hold at least one item", param="input")
    turns: list[InMessage] = []
    for i, item in enumerate(given):
        _add(turns, item, f"input[{i}]")
    return turns


def _add(turns: list[InMessage], item: InputItem, where: str) -> None:
    if item.type == "message":
        if item.role is None:
            raise InvalidRequest(f"{where}.role is required", param=f"{where}.role")
        text = _text(item.content, f"{where}.content")
        if item.role == "assistant":
            _answer(turns).content = (_answer(turns).content or "") + text  # type: ignore[operator]
        else:
            turns.append(InMessage(role=item.role, content=text))
    elif item.type == "function_call":
        if not item.call_id or not item.name or item.arguments is None:
            raise InvalidRequest(f"{where} needs call_id, name and arguments", param=where)
        call = ToolCall(id=item.call_id, function=FunctionCall(name=item.name, arguments=item.arguments))
        answer = _answer(turns)
        answer.tool_calls = [*(answer.tool_calls or ()), call]
    elif item.type == "function_call_output":
        if not item.call_id or item.output is None:
            raise InvalidRequest(f"{where} needs call_id and output", param=where)
        turns.append(InMessage(role="tool", content=_text(item.output, f"{where}.output"), tool_call_id=item.call_id))
    elif item.type == "reasoning":
        thought = _text(item.content or "", f"{where}.content")
        if thought:
            turns.append(InMessage(role="assistant", reasoning_content=thought))
    else:
        raise InvalidRequest(
            f"{where} is of type {item.type!r}; taken are message, function_call, function_call_output and reasoning",
            param=f"{where}.type",
        )


def _answer(turns: list[InMessage]) -> InMessage:
    """The assistant's turn that is being put together: a thought, text and calls in a row are one."""
    if not turns or turns[-1].role != "assistant":
        turns.append(InMessage(role="assistant"))
    return turns[-1]


def _text(content: str | list[Part] | None, where: str) -> str:
    if content is None:
        raise InvalidRequest(f"{where} is required", param=where)
    if isinstance(content, str):
        return content
    texts = []
    for i, part in enumerate(content):
        if part.type not in TEXT_PARTS:
            raise InvalidRequest(
                f"{where}[{i}] is a part of type {part.type!r}; this model reads text alone", param=f"{where}[{i}].type"
            )
        if part.text is None:
            param = f"{where}[{i}].text"
            raise InvalidRequest(f"{param} is required", param=param, code="missing_parameter")
        texts.append(part.text)
    return "".join(texts)
