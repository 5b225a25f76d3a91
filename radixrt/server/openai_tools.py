"""From a chat request's tools to what the model may call."""

from __future__ import annotations

from collections.abc import Mapping

from radixrt.calls import Calls, checked_functions
from radixrt.dialects import DIALECTS, Function
from radixrt.errors import InvalidRequest
from radixrt.results import ModelInfo
from radixrt.server.faults import short
from radixrt.server.openai_types import AllowedChoice, AllowedTools, ChatRequest, NamedChoice, Tool


def shown_tools(request: ChatRequest) -> list[Tool] | None:
    """The tools that the model is told of: none where it must not call any."""
    return None if request.tool_choice == "none" else request.tools or None


def calls_of(request: ChatRequest, info: ModelInfo) -> Calls | None:
    """What the model may call; None: nothing. InvalidRequest names the tool at fault."""
    tools = request.tools or []
    functions = checked_functions([(tool.function.name, tool.function.parameters) for tool in tools])
    named: str | None = None
    allowed: list[str] | None = None
    choice: str = "required"
    if isinstance(request.tool_choice, NamedChoice):
        named = request.tool_choice.function.name
        allowed = [named]
    elif isinstance(request.tool_choice, AllowedChoice):
        choice = request.tool_choice.allowed_tools.mode
        allowed = _allowed(request.tool_choice.allowed_tools, functions)
    else:
        choice = request.tool_choice or "auto"
    if choice == "none" or (not functions and choice == "auto"):
        return None
    if not functions:
        raise InvalidRequest("tool_choice needs tools, and there are none", param="tool_choice")
    if named is not None and named not in functions:
        raise InvalidRequest(f"tool_choice names {named!r}, which is not in tools", param="tool_choice")
    if not info.has_chat_template:
        return None  # and no chat: the template's own fault is the answer
    if info.tool_dialect is None:
        raise InvalidRequest(
            "how this model's chat template writes calls is not known; leave tools out or give tool_choice 'none'",
            param="tools", code="tools_unavailable",
        )  # fmt: skip
    if request.continue_final_message:
        raise InvalidRequest("a message that is continued cannot become a call", param="continue_final_message")
    many = request.parallel_tool_calls
    return Calls(
        dialect=DIALECTS[info.tool_dialect],
        functions=tuple(function for name, function in functions.items() if allowed is None or name in allowed),
        forced=choice != "auto",
        # A small model that is forced to call rarely finds an end by itself: several only where the client asks.
        many=bool(many) and named is None if choice != "auto" else many is not False,
        controls=info.tool_controls,
    )


def _allowed(given: AllowedTools, functions: Mapping[str, Function]) -> list[str]:
    """The names of the tools that may be called."""
    where = "tool_choice.allowed_tools.tools"
    if not given.tools:
        raise InvalidRequest(f"{where} must hold at least one tool; for none give tool_choice 'none'", param=where)
    names = [tool.function.name for tool in given.tools]
    for i, name in enumerate(names):
        if name not in functions:
            raise InvalidRequest(f"{where}[{i}] names {short(name)}, which is not in tools", param=f"{where}[{i}]")
    return names
