"""From a chat request's tools to what the model may call."""

from __future__ import annotations

from radixrt.calls import Calls, checked_functions
from radixrt.dialects import DIALECTS
from radixrt.errors import InvalidRequest
from radixrt.results import ModelInfo
from radixrt.server.openai_types import ChatRequest, NamedChoice, Tool


def shown_tools(request: ChatRequest) -> list[Tool] | None:
    """The tools that the model is told of: none where it must not call any."""
    return None if request.tool_choice == "none" else request.tools or None


def calls_of(request: ChatRequest, info: ModelInfo) -> Calls | None:
    """What the model may call; None: nothing. InvalidRequest names the tool at fault."""
    tools = request.tools or []
    functions = checked_functions([(tool.function.name, tool.function.parameters) for tool in tools])
    choice = request.tool_choice or "auto"
    named = choice.function.name if isinstance(choice, NamedChoice) else None
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
        functions=tuple(functions.values()) if named is None else (functions[named],),
        forced=choice != "auto",
        # A small model that is forced to call rarely finds an end by itself: several only where the client asks.
        many=bool(many) and named is None if choice != "auto" else many is not False,
        controls=info.tool_controls,
    )
