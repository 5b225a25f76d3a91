"""Tools of a `gen`: what the model is told of them, and what it called.

s += user("What does soup cost?")
s += assistant(gen("step", tools=[price], max_tokens=80))
for call in s["step"].tool_calls:
    s += tool(str(call()), tool_call_id=call.id, name=call.name)
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from radixrt.called import CallText, read_calls
from radixrt.calls import Calls, checked_functions, checked_tools
from radixrt.dialects import DIALECTS, Function
from radixrt.errors import InvalidRequest
from radixrt.lang.typed import Codec
from radixrt.results import ModelInfo

if TYPE_CHECKING:
    from pydantic import TypeAdapter


@dataclass(frozen=True, slots=True)
class ToolCall:
    """What the model wants called. `arguments` are the call's JSON.

    `call()` calls the Python function that was given as the tool, with what its annotations say: a pydantic model, a
    date, an Enum, as in `gen(type=...)`. ValueError (pydantic's ValidationError) where the arguments do not fit them.
    """

    id: str
    name: str
    arguments: dict[str, Any]
    function: Callable[..., Any] | None = field(default=None, repr=False, compare=False)

    def __call__(self) -> Any:
        if self.function is None:
            raise InvalidRequest(f"{self.name} was given as a schema: there is no Python function to call")
        return _adapter(self.function).validate_json(json.dumps(self.arguments))


@dataclass(frozen=True, slots=True)
class Reply:
    """The value of a gen with tools: its text but for the calls, and the calls in the order in which they came."""

    text: str
    tool_calls: tuple[ToolCall, ...] = ()

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class Toolbox:
    """The tools of one gen. `shown`: as the chat template and OpenAI's API have them."""

    shown: tuple[dict[str, Any], ...]
    functions: Mapping[str, Function]
    python: Mapping[str, Callable[..., Any]]
    choice: str
    """auto, required, or a name."""
    many: bool | None

    def codec(self, info: ModelInfo, place: str) -> Codec:
        """How this model's text is held to calls, and read; `place` as in `CallText`."""
        named = self.functions.get(self.choice)
        calls = Calls(
            dialect=DIALECTS[_dialect(info)],
            functions=tuple(self.functions.values()) if named is None else (named,),
            forced=self.choice != "auto",
            many=bool(self.many) and named is None if self.choice != "auto" else self.many is not False,
            controls=info.tool_controls,
        )
        how = self.reading(info, place)
        return Codec(Reply, calls.constraint(), lambda text: self._read(calls, text, how), False)

    def reading(self, info: ModelInfo, place: str) -> CallText:
        """How the calls of this model's answer stand in its text."""
        return CallText(
            dialect=_dialect(info), names=list(self.functions), place=place, structured=bool(info.tool_controls)
        )

    def fields(self) -> dict[str, Any]:
        """Of a request to a service."""
        choice: Any = self.choice
        if self.choice in self.functions:
            choice = {"type": "function", "function": {"name": self.choice}}
        fields = {"tools": list(self.shown), "tool_choice": choice}
        return fields if self.many is None else {**fields, "parallel_tool_calls": self.many}

    def called(self, name: str, arguments: str, id_: str) -> ToolCall:
        """ValueError for arguments that are no JSON object."""
        value = json.loads(arguments)
        if not isinstance(value, dict):
            raise ValueError(f"the arguments of {name} are no object: {arguments}")
        return ToolCall(id_, name, value, self.python.get(name))

    def _read(self, calls: Calls, text: str, how: CallText) -> Reply:
        said, found = read_calls(how, text)
        opener = calls.dialect.opener
        if (calls.forced and not found) or (opener and opener in said):
            raise ValueError("the call is not complete")
        return Reply(said, tuple(self.called(call.name, call.arguments, call.id) for call in found))


def _dialect(info: ModelInfo) -> str:
    if info.tool_dialect is None:
        raise InvalidRequest(
            "how this model's chat template writes calls is not known: leave tools out",
            param="tools", code="tools_unavailable",
        )  # fmt: skip
    return info.tool_dialect


def toolbox(tools: Sequence[object], choice: str, many: bool | None) -> Toolbox:
    """Python functions (their signature is the schema, their docstring the description), and tools as OpenAI's API
    writes them. InvalidRequest names the tool at fault."""
    if isinstance(tools, str | bytes | Mapping) or not isinstance(tools, Sequence) or not tools:
        raise InvalidRequest("tools must be a list of functions or of tool definitions, at least one", param="tools")
    if many is not None and not isinstance(many, bool):
        raise InvalidRequest("parallel_tool_calls must be True, False or None", param="parallel_tool_calls")
    shown = tuple(checked_tools([_shown(tool, i) for i, tool in enumerate(tools)]))
    specs = [entry["function"] for entry in shown]
    functions = checked_functions([(spec["name"], spec.get("parameters")) for spec in specs])
    if choice not in ("auto", "required") and choice not in functions:
        raise InvalidRequest(
            f"tool_choice must be auto, required or one of {', '.join(functions)}, but is {choice!r}",
            param="tool_choice",
        )
    python = {spec["name"]: tool for spec, tool in zip(specs, tools, strict=True) if callable(tool)}
    return Toolbox(shown, functions, python, choice, many)


def _shown(tool: object, position: int) -> dict[str, Any]:
    where = f"tools[{position}]"
    if callable(tool):
        return _described(tool, where)
    if not isinstance(tool, Mapping):
        raise InvalidRequest(f"{where} must be a Python function or a dict as OpenAI's API has them", param=where)
    try:
        copied: dict[str, Any] = json.loads(json.dumps(tool))
    except (TypeError, ValueError) as error:
        raise InvalidRequest(f"{where} cannot be written as JSON: {error}", param=where) from error
    return copied


def _adapter(function: Callable[..., Any]) -> TypeAdapter[Any]:
    """Of a call of `function`: its schema is that of the arguments, and what it validates it calls."""
    from pydantic import TypeAdapter

    return TypeAdapter(function)  # type: ignore[arg-type]


def _described(function: Callable[..., Any], where: str) -> dict[str, Any]:
    from pydantic import PydanticUserError
    from pydantic.errors import PydanticInvalidForJsonSchema

    name = getattr(function, "__name__", "")
    try:
        schema = _adapter(function).json_schema()
    except (PydanticUserError, PydanticInvalidForJsonSchema, NameError) as error:
        raise InvalidRequest(f"{where}: {name}'s parameters have no JSON schema: {error}", param=where) from error
    if schema.get("type") != "object":
        raise InvalidRequest(f"{where}: {name} takes positional or variable arguments, which no call has", param=where)
    spec: dict[str, Any] = {"name": name, "parameters": schema}
    if words := inspect.getdoc(function):
        spec["description"] = words
    return {"type": "function", "function": spec}
