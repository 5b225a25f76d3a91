"""Tools for chat templates that know none: the system prompt explains them, and calls and results become plain turns.

The form is Hermes' (`radixrt.dialects.hermes`). The text depends on the tools alone, so that it stays a cached prefix.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

# Words that a small model follows: SmolLM2-135M forced to call ends its strings after these, and rambles after others.
_BEFORE = """\
# Tools

You can call functions to help the user.

The functions are described within <tools></tools> XML tags:
<tools>
"""
_AFTER = """
</tools>

To call one, write a JSON object with its name and its arguments within <tool_call></tool_call> XML tags:
<tool_call>
{"name": <function-name>, "arguments": <arguments-object>}
</tool_call>"""


def explain_tools(
    messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]], *, in_system: bool = True
) -> list[dict[str, Any]]:
    """The messages with the tools behind the system message's own text, or in a system message of their own; with
    `in_system` false, for templates that refuse one, before what the user says first."""
    lines = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
    text = f"{_BEFORE}{lines}{_AFTER}"
    if not in_system:
        for i, turn in enumerate(messages):
            if turn["role"] == "user":
                told = {**turn, "content": f"{text}\n\n{turn.get('content') or ''}"}
                return [*messages[:i], told, *messages[i + 1 :]]
    if messages and messages[0]["role"] in ("system", "developer"):
        first = messages[0]
        said = first.get("content") or ""
        return [{**first, "content": f"{said}\n\n{text}" if said else text}, *messages[1:]]
    return [{"role": "system", "content": text}, *messages]


def as_plain_turn(message: dict[str, Any]) -> dict[str, Any]:
    """A message whose calls are text, or a function's result as the user's turn; others as they are."""
    if message["role"] == "tool":
        return {"role": "user", "content": f"<tool_response>\n{message.get('content') or ''}\n</tool_response>"}
    if not (calls := message.get("tool_calls")):
        return message
    turn = {name: value for name, value in message.items() if name != "tool_calls"}
    said = [turn["content"]] if turn.get("content") else []
    return {**turn, "content": "\n".join([*said, *map(_call, calls)])}


def _call(call: dict[str, Any]) -> str:
    function = call.get("function") or {}
    name, arguments = function.get("name", ""), function.get("arguments") or "{}"
    if not isinstance(arguments, str):
        arguments = json.dumps(arguments, ensure_ascii=False)
    return f'<tool_call>\n{{"name": {json.dumps(name, ensure_ascii=False)}, "arguments": {arguments}}}\n</tool_call>'
