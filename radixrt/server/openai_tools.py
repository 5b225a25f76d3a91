"""From a request's tools to what the model may call, and to the constraint that holds it to that."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

from radixrt.dialects import DIALECTS, Dialect, Function, Marks, formats
from radixrt.errors import InvalidRequest
from radixrt.params import Constraint
from radixrt.results import ModelInfo
from radixrt.server.openai_types import ChatRequest, NamedChoice, Tool

MAX_TOOLS = 128
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_PLACE = re.compile(r".*/tags/(?P<tag>\d+)/content/json_schema(?P<rest>/.*)?")


@dataclass(frozen=True)
class Calls:
    """What may be called, and how it is written."""

    dialect: Dialect
    functions: tuple[Function, ...]
    forced: bool
    """The answer is a call, not text."""
    many: bool
    opener_is_control: bool

    @property
    def names(self) -> frozenset[str]:
        return frozenset(function.name for function in self.functions)

    @property
    def opening(self) -> str:
        """What a forced call puts into the prompt: that with which every call begins, so that its token ids are those
        that the history will have, and so that an opener is there which no constraint lets the model write.

        It ends before a space, where tokenizers begin a new token. Empty where several calls may come.
        """
        if not self.forced or (self.many and not self.opener_is_control):
            return ""
        begins: list[str] = [tag["begin"] for tag in self.dialect.tags(self.functions)]
        first, last = min(begins), max(begins)
        size = next(
            (i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), min(len(first), len(last))
        )
        return first[: max(first.rfind(" ", 0, size), 0)]

    def constraint(
        self, opening: str = "", behind: Marks | None = None, text: Constraint | None = None
    ) -> Constraint | None:
        """Of the answer behind `opening`; with `behind` of what follows a thought that the prompt has begun; with
        `text` of an answer that is either one call or JSON of that constraint.

        None where the model may write anything and only a control token would open a call.
        """
        tags = self.dialect.tags(self.functions)
        if not self.forced and text is not None:
            return self._or_text(tags, text, behind)
        if not self.forced:
            if self.opener_is_control:
                return None
            form = self.dialect.free(self.functions, many=self.many)
        elif opening:
            form = formats.separated([{**tag, "begin": tag["begin"][len(opening) :]} for tag in tags], "", many=False)
        elif self.opener_is_control:
            raise InvalidRequest(
                "this model opens calls with a control token, which must stand at the prompt's end: no call can be "
                "forced behind a thought, nor without a generation prompt; use tool_choice auto",
                param="tool_choice",
            )
        elif behind is None:
            form = self.dialect.forced(self.functions, many=self.many)
        else:
            late = [{**tag, "begin": f"{behind.close}\n\n{tag['begin']}"} for tag in tags]
            form = formats.triggered([behind.close], late, many=False, needed=True)
        return Constraint(kind="structural_tag", value=formats.source(form), spaced=True)

    def _or_text(self, tags: list[formats.Format], text: Constraint, behind: Marks | None) -> Constraint:
        if self.opener_is_control:
            raise InvalidRequest(
                "this model opens calls with a control token: tools and a response_format exclude each other with "
                "tool_choice auto",
                param="response_format",
            )
        schema = json.loads(text.value) if text.kind == "json_schema" else {"type": "object"}
        form = formats.separated([*tags, formats.tag("", schema, "")], "", many=False)
        return Constraint(
            kind="structural_tag",
            value=formats.source(form),
            spaced=True,
            behind=behind.close if behind is not None else "",
            backend=text.backend,
        )

    def place(self, param: str | None, *, with_text: bool = False) -> str:
        """Where in the request the fault lies that the grammar room found at `param` of the constraint."""
        match = _PLACE.fullmatch(param or "")
        if match is None:
            return "tools"
        tag = int(match["tag"])
        if with_text and tag == len(self.dialect.tags(self.functions)):
            return match["rest"] or "response_format"
        function = self.functions[tag % len(self.functions)]
        return f"/tools/{function.position}/function/parameters{match['rest'] or ''}"


def shown_tools(request: ChatRequest) -> list[Tool] | None:
    """The tools that the model is told of: none where it must not call any."""
    return None if request.tool_choice == "none" else request.tools or None


def calls_of(request: ChatRequest, info: ModelInfo) -> Calls | None:
    """What the model may call; None: nothing. InvalidRequest names the tool at fault."""
    functions = _functions(request.tools or [])
    choice = request.tool_choice or "auto"
    named = choice.function.name if isinstance(choice, NamedChoice) else None
    if choice == "none" or (not functions and choice == "auto"):
        return None
    if not functions:
        raise InvalidRequest("tool_choice needs tools, and there are none", param="tool_choice")
    if named is not None and named not in functions:
        raise InvalidRequest(f"tool_choice names {named!r}, which is not in tools", param="tool_choice")
    if info.tool_dialect is None:
        raise InvalidRequest(
            "how this model's chat template writes calls is not known; leave tools out or give tool_choice 'none'",
            param="tools", code="tools_unavailable",
        )  # fmt: skip
    if request.continue_final_message:
        raise InvalidRequest("a message that is continued cannot become a call", param="continue_final_message")
    if choice == "auto" and info.tool_opener_is_control and any(tool.function.strict for tool in request.tools or ()):
        raise InvalidRequest(
            "this model opens calls with a control token, which no constraint can wait for: with tool_choice auto the "
            "arguments cannot be enforced; use required, or leave strict out",
            param="tools", code="strict_unavailable",
        )  # fmt: skip
    many = request.parallel_tool_calls
    return Calls(
        dialect=DIALECTS[info.tool_dialect],
        functions=tuple(functions.values()) if named is None else (functions[named],),
        forced=choice != "auto",
        # A small model that is forced to call rarely finds an end by itself: several only where the client asks.
        many=bool(many) and named is None if choice != "auto" else many is not False,
        opener_is_control=info.tool_opener_is_control,
    )


def _functions(tools: list[Tool]) -> dict[str, Function]:
    if len(tools) > MAX_TOOLS:
        raise InvalidRequest(f"tools may hold at most {MAX_TOOLS} entries, but holds {len(tools)}", param="tools")
    functions: dict[str, Function] = {}
    for i, tool in enumerate(tools):
        spec, where = tool.function, f"tools[{i}].function"
        if _NAME.fullmatch(spec.name) is None:
            raise InvalidRequest(
                f"{where}.name must be 1 to 64 of the characters a-z, A-Z, 0-9, _ . and -", param=f"{where}.name"
            )
        if spec.name in functions:
            raise InvalidRequest(f"{where}.name {spec.name!r} is there twice", param=f"{where}.name")
        kind = (spec.parameters or {}).get("type", "object")
        if kind != "object":
            raise InvalidRequest(
                f"{where}.parameters must be the schema of an object, but has type {kind!r}",
                param=f"/tools/{i}/function/parameters/type",
            )
        functions[spec.name] = Function.of(spec.name, spec.parameters, i)
    return functions
