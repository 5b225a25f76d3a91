"""What a model may call, and the constraint that holds its answer to that: for chat requests and for programs."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from radixrt.dialects import Dialect, Function, formats
from radixrt.errors import InvalidRequest
from radixrt.params import Constraint

MAX_TOOLS = 128
MAX_DEPTH = 128
"""Levels of a schema of parameters; what a constraint may have is less, and the grammar room's to say."""
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_PLACE = re.compile(r".*?/tags/(?P<tag>\d+)/content/json_schema(?P<rest>/.*)?")
_TEXT_PLACE = re.compile(r"/format/elements/0/json_schema(?P<rest>/.*)?")


@dataclass(frozen=True)
class Calls:
    """What may be called, and how it is written."""

    dialect: Dialect
    functions: tuple[Function, ...]
    forced: bool
    """The answer is a call, not text."""
    many: bool
    controls: tuple[str, ...] = ()
    """The dialect's words that are control tokens of the vocabulary."""

    @property
    def names(self) -> frozenset[str]:
        return frozenset(function.name for function in self.functions)

    @property
    def opening(self) -> str:
        """What a forced call puts into the prompt: that with which every call begins, so that its token ids are those
        that the history will have.

        It ends before a space, where tokenizers begin a new token. Empty where several calls may come.
        """
        if not self.forced or self.many:
            return ""
        begins: list[str] = [tag["begin"] for tag in self.dialect.tags(self.functions)]
        first, last = min(begins), max(begins)
        size = next(
            (i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), min(len(first), len(last))
        )
        return first[: max(first.rfind(" ", 0, size), 0)]

    def constraint(self, opening: str = "", text: Constraint | None = None) -> Constraint:
        """Of the answer behind `opening`; with `text` of an answer that is either calls or JSON of that constraint.

        The calls may be written with control tokens: the constraint allows these where the dialect has them, and in
        free text nothing that reads like one.
        """
        if opening:
            tags = self.dialect.tags(self.functions)
            form = formats.separated([{**tag, "begin": tag["begin"][len(opening) :]} for tag in tags], "", many=False)
        elif not self.forced and text is None and self.dialect.opener not in self.controls:
            form = self.dialect.free(self.functions, many=self.many)
        else:
            form = self.dialect.forced(self.functions, many=self.many)
            if not self.forced:
                form = formats.behind_text(self.dialect.opener, form) if text is None else _beside(text, form)
        return Constraint(
            kind="structural_tag",
            value=formats.source(form),
            spaced=True,
            controls=self.controls,
            backend=text.backend if text is not None and not self.forced else "auto",
        )

    def place(self, param: str | None) -> tuple[str | None, str]:
        """Where in the request the fault lies that the grammar room found at `param` of the constraint: field (None:
        what holds an answer that is no call), and a JSON pointer into it."""
        text = _TEXT_PLACE.fullmatch(param or "")
        if text is not None:
            return None, text["rest"] or ""
        match = _PLACE.fullmatch(param or "")
        if match is None:
            return "tools", ""
        function = self.functions[int(match["tag"]) % len(self.functions)]
        return f"tools[{function.position}].function.parameters", match["rest"] or ""


def _beside(text: Constraint, form: formats.Format) -> formats.Format:
    return formats.beside_json(json.loads(text.value) if text.kind == "json_schema" else {"type": "object"}, form)


def checked_functions(tools: Sequence[tuple[str, Mapping[str, Any] | None]]) -> dict[str, Function]:
    """Functions by name, from names and schemas of parameters. InvalidRequest names the tool at fault."""
    if len(tools) > MAX_TOOLS:
        raise InvalidRequest(f"tools may hold at most {MAX_TOOLS} entries, but holds {len(tools)}", param="tools")
    functions: dict[str, Function] = {}
    for i, (name, parameters) in enumerate(tools):
        where = f"tools[{i}].function"
        if _NAME.fullmatch(name) is None:
            raise InvalidRequest(
                f"{where}.name must be 1 to 64 of the characters a-z, A-Z, 0-9, _ . and -, but is {name[:80]!r}",
                param=f"{where}.name",
            )
        if name in functions:
            raise InvalidRequest(f"{where}.name {name!r} is there twice", param=f"{where}.name")
        if not _within(parameters, MAX_DEPTH):
            raise InvalidRequest(
                f"{where}.parameters nests more than {MAX_DEPTH} levels deep, which is the limit",
                param=f"{where}.parameters",
            )
        kind = (parameters or {}).get("type", "object")
        if kind != "object":
            raise InvalidRequest(
                f"{where}.parameters must be the schema of an object, but has type {kind!r}",
                param=f"{where}.parameters.type",
            )
        functions[name] = Function.of(name, dict(parameters or {}), i)
    return functions


def _within(value: object, levels: int) -> bool:
    """Whether objects and lists nest at most so deep."""
    here = [value]
    for _ in range(levels + 1):
        below: list[object] = []
        for one in here:
            below += one.values() if isinstance(one, Mapping) else one if isinstance(one, list) else ()
        if not below:
            return True
        here = below
    return False


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
