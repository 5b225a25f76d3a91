"""Structural tags for xgrammar: its own formats, checked field by field before they reach it.

Formats that name tokens (which would reach control tokens), that write parameters as XML, or whose bounds are counted
in tokens are refused, and so is every field that is not known here. Schemas pass the room's gate and the library's.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, NoReturn

from radixrt.errors import ConstraintError
from radixrt.grammar import xgrammar_gate
from radixrt.grammar.cfg import check_gbnf, is_gbnf
from radixrt.grammar.gate import check_schema
from radixrt.grammar.keywords import NOT_ENFORCED
from radixrt.grammar.limits import Limits
from radixrt.grammar.schema_text import parse
from radixrt.grammar.schema_tree import pointer
from radixrt.grammar.structural import MAX_TAGS

PARAM = "structural_tag"
Path = tuple[str | int, ...]
_SIMPLE_REGEX = re.compile(r"\^?(.*?)\$?", re.DOTALL)


def check_tag(text: str, limits: Limits) -> tuple[str, tuple[str, ...]]:
    """(the tag for the library, pointers to keywords that were said in other words). Raises ConstraintError."""
    value = parse(text, max_depth=limits.max_depth, param=PARAM)
    if not isinstance(value, dict):
        _refuse((), "must be an object")
    if "structures" in value:
        value = _modern(value)
    _known(value, {"type", "format"}, ())
    reader = _Reader(limits)
    form = reader.read(value.get("format"), ("format",))
    made = {"type": "structural_tag", "format": form}
    return json.dumps(made, ensure_ascii=False, separators=(",", ":")), tuple(reader.added)


def _modern(value: dict[str, Any]) -> dict[str, Any]:
    """The older shape in the words of the newer one."""
    _known(value, {"type", "structures", "triggers"}, ())
    structures = value["structures"]
    if not isinstance(structures, list):
        _refuse(("structures",), "must be a list")
    tags = []
    for i, one in enumerate(structures):
        _known(one, {"begin", "schema", "end"}, ("structures", i))
        content = {"type": "json_schema", "json_schema": one.get("schema")}
        tags.append({"type": "tag", "begin": one.get("begin"), "content": content, "end": one.get("end")})
    return {"format": {"type": "triggered_tags", "triggers": value.get("triggers"), "tags": tags}}


class _Reader:
    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.added: list[str] = []
        self._readers: dict[str, Callable[[dict[str, Any], Path], dict[str, Any]]] = {
            "any_text": self._any_text,
            "const_string": self._const,
            "grammar": self._grammar,
            "json_schema": self._schema,
            "optional": self._one,
            "or": self._several,
            "plus": self._one,
            "regex": self._regex,
            "repeat": self._repeat,
            "sequence": self._several,
            "star": self._one,
            "tag": self._tag,
            "tags_with_separator": self._tags,
            "triggered_tags": self._tags,
        }

    def read(self, form: Any, path: Path) -> dict[str, Any]:
        if not isinstance(form, dict):
            _refuse(path, "must be an object")
        reader = self._readers.get(form.get("type", ""))
        if reader is None:
            known = ", ".join(self._readers)
            _refuse((*path, "type"), f"{form.get('type')!r} cannot be enforced: the formats are {known}", NOT_ENFORCED)
        return {"type": form["type"], **reader(form, path)}

    def _any_text(self, form: dict[str, Any], path: Path) -> dict[str, Any]:
        _known(form, {"type", "excludes"}, path)
        return {"excludes": _texts(form.get("excludes", []), (*path, "excludes"))}

    def _const(self, form: dict[str, Any], path: Path) -> dict[str, Any]:
        _known(form, {"type", "value"}, path)
        return {"value": _text(form.get("value"), (*path, "value"))}

    def _grammar(self, form: dict[str, Any], path: Path) -> dict[str, Any]:
        _known(form, {"type", "grammar"}, path)
        text = _text(form.get("grammar"), (*path, "grammar"))
        if not is_gbnf(text):
            _refuse((*path, "grammar"), "must be GBNF (name ::= ...)")
        try:
            return {"grammar": check_gbnf(text, self.limits)}
        except ConstraintError as error:
            raise ConstraintError(error.message, param=pointer((*path, "grammar")), code=error.code) from error

    def _regex(self, form: dict[str, Any], path: Path) -> dict[str, Any]:
        _known(form, {"type", "pattern"}, path)
        pattern = _text(form.get("pattern"), (*path, "pattern"))
        match = _SIMPLE_REGEX.fullmatch(pattern)
        inner = match[1] if match else ""
        if not xgrammar_gate.is_simple(f"^(?:{inner})$"):
            _refuse(
                (*path, "pattern"),
                "only plain characters, classes, groups and counts are enforced in a pattern; write a grammar",
                NOT_ENFORCED,
            )
        return {"pattern": inner}

    def _schema(self, form: dict[str, Any], path: Path) -> dict[str, Any]:
        _known(form, {"type", "json_schema"}, path)
        schema = form.get("json_schema")
        place = (*path, "json_schema")
        if not isinstance(schema, dict | bool):
            _refuse(place, "must be a JSON Schema")
        try:
            gated = check_schema(
                json.dumps(schema, ensure_ascii=False),
                self.limits,
                also=lambda tree: xgrammar_gate.check(tree, lengths=False),
            )
        except ConstraintError as error:
            inside = error.param if error.param and error.param.startswith("/") else ""
            raise ConstraintError(error.message, param=f"{pointer(place)}{inside}", code=error.code) from error
        self.added += [f"{pointer(place)}{one}" for one in gated.added]
        return {"json_schema": json.loads(gated.source)}

    def _one(self, form: dict[str, Any], path: Path) -> dict[str, Any]:
        _known(form, {"type", "content"}, path)
        return {"content": self.read(form.get("content"), (*path, "content"))}

    def _repeat(self, form: dict[str, Any], path: Path) -> dict[str, Any]:
        _known(form, {"type", "min", "max", "content"}, path)
        bounds = {}
        for name in ("min", "max"):
            value = form.get(name)
            if not isinstance(value, int) or isinstance(value, bool) or not -1 <= value <= self.limits.max_repetition:
                _refuse((*path, name), f"must be an integer of at most {self.limits.max_repetition}")
            bounds[name] = value
        return {**bounds, "content": self.read(form.get("content"), (*path, "content"))}

    def _several(self, form: dict[str, Any], path: Path) -> dict[str, Any]:
        _known(form, {"type", "elements"}, path)
        parts = _list(form.get("elements"), (*path, "elements"))
        return {"elements": [self.read(one, (*path, "elements", i)) for i, one in enumerate(parts)]}

    def _tag(self, form: dict[str, Any], path: Path) -> dict[str, Any]:
        _known(form, {"type", "begin", "content", "end"}, path)
        end = form.get("end")
        return {
            "begin": _text(form.get("begin"), (*path, "begin")),
            "content": self.read(form.get("content"), (*path, "content")),
            "end": _texts(end, (*path, "end")) if isinstance(end, list) else _text(end, (*path, "end")),
        }

    def _tags(self, form: dict[str, Any], path: Path) -> dict[str, Any]:
        between = "triggers" if form["type"] == "triggered_tags" else "separator"
        flags = ("at_least_one", "stop_after_first")
        _known(form, {"type", "tags", between, *flags}, path)
        made: dict[str, Any] = {}
        for name in flags:
            if not isinstance(form.get(name, False), bool):
                _refuse((*path, name), "must be true or false")
            made[name] = form.get(name, False)
        if between == "triggers":
            made[between] = _texts(form.get(between), (*path, between))
            if not all(made[between]):
                _refuse((*path, between), "must hold strings that are not empty")
        else:
            made[between] = _text(form.get(between), (*path, between))
        made["tags"] = []
        for i, one in enumerate(_list(form.get("tags"), (*path, "tags"))):
            if not isinstance(one, dict):
                _refuse((*path, "tags", i), "must be an object")
            made["tags"].append(self.read({"type": "tag", **one}, (*path, "tags", i)))
        return made


def _list(value: Any, path: Path) -> list[Any]:
    if not isinstance(value, list) or not value:
        _refuse(path, "must be a list, not empty")
    if len(value) > MAX_TAGS:
        _refuse(path, f"holds {len(value)} entries; the limit is {MAX_TAGS}")
    return value


def _text(value: Any, path: Path) -> str:
    if not isinstance(value, str):
        _refuse(path, "must be a string")
    return value


def _texts(value: Any, path: Path) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value) or len(value) > MAX_TAGS:
        _refuse(path, f"must be a list of at most {MAX_TAGS} strings")
    return value


def _known(value: Any, names: set[str], path: Path) -> None:
    if not isinstance(value, dict):
        _refuse(path, "must be an object")
    for name in sorted(value.keys() - names):
        _refuse((*path, name), f"the field {name!r} is not known, and would be ignored")


def _refuse(path: Path, why: str, code: str | None = None) -> NoReturn:
    place = pointer(path)
    raise ConstraintError(f"structural_tag{place}: {why}", param=place or PARAM, code=code)
