"""What a model may call, and the constraint that holds its answer to that: for chat requests and for programs."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from radixrt.dialects import Dialect, Function, Marks, formats
from radixrt.errors import InvalidRequest
from radixrt.params import Constraint

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

    def constraint(self, opening: str = "", behind: Marks | None = None, text: Constraint | None = None) -> Constraint:
        """Of the answer behind `opening`; with `behind` of what follows a thought that the prompt has begun; with
        `text` of an answer that is either one call or JSON of that constraint.

        Where a control token opens calls and none is forced, the constraint begins with that token.
        """
        tags = self.dialect.tags(self.functions)
        if not self.forced and text is not None:
            return self._or_text(tags, text, behind)
        if not self.forced:
            if self.opener_is_control:
                form = self.dialect.opened(self.functions, many=self.many)
                source = formats.source(form)
                return Constraint(kind="structural_tag", value=source, spaced=True, opener=self.dialect.opener)
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


def checked_functions(tools: Sequence[tuple[str, Mapping[str, Any] | None]]) -> dict[str, Function]:
    """Functions by name, from names and schemas of parameters. InvalidRequest names the tool at fault."""
    if len(tools) > MAX_TOOLS:
        raise InvalidRequest(f"tools may hold at most {MAX_TOOLS} entries, but holds {len(tools)}", param="tools")
    functions: dict[str, Function] = {}
    for i, (name, parameters) in enumerate(tools):
        where = f"tools[{i}].function"
        if _NAME.fullmatch(name) is None:
            raise InvalidRequest(
                f"{where}.name must be 1 to 64 of the characters a-z, A-Z, 0-9, _ . and -", param=f"{where}.name"
            )
        if name in functions:
            raise InvalidRequest(f"{where}.name {name!r} is there twice", param=f"{where}.name")
        kind = (parameters or {}).get("type", "object")
        if kind != "object":
            raise InvalidRequest(
                f"{where}.parameters must be the schema of an object, but has type {kind!r}",
                param=f"/tools/{i}/function/parameters/type",
            )
        functions[name] = Function.of(name, dict(parameters or {}), i)
    return functions


def checked_tools(tools: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Tools as OpenAI's API writes them; InvalidRequest names the one at fault."""
    specs = []
    for i, tool in enumerate(tools):
        spec = tool.get("function") if tool.get("type") == "function" else None
        if not isinstance(spec, Mapping) or not isinstance(spec.get("name"), str):
            raise InvalidRequest(
                f'tools[{i}] must be {{"type": "function", "function": {{"name": ..., ...}}}}', param=f"tools[{i}]"
            )
        if not isinstance(spec.get("parameters") or {}, Mapping):
            raise InvalidRequest(f"tools[{i}].function.parameters must be a JSON schema", param=f"tools[{i}]")
        specs.append((spec["name"], spec.get("parameters")))
    checked_functions(specs)
    return [dict(tool) for tool in tools]
