"""What of a JSON Schema xgrammar (0.2) enforces: the gate in front of it, subschema by subschema.

The library ignores in silence what it does not know, and what stands beside what it knows. So here everything is
refused but the forms that it was found to enforce alone (`FORMS`), each with all the keywords that it may hold. The
schema has passed `gate.check_schema` before, and been rewritten there.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NoReturn

from radixrt.errors import ConstraintError
from radixrt.grammar import keywords as kw
from radixrt.grammar.schema_tree import Node, Tree, pointer

_BESIDE = kw.ANNOTATIONS | {"$anchor", "$defs", "$id", "definitions", "id"}
_INT64 = 2**63
_PLAIN_TYPES = frozenset({"string", "integer", "number", "boolean", "null"})
_PATTERN = re.compile(
    r"""\^(?:
        [A-Za-z0-9 _@%&=:;<>,!~#'`-]                      # itself, in every notation
      | \\[.+*?()\[\]{}|^$\\-] | \\d
      | \[(?!\^)(?:[A-Za-z0-9 _@%:;,.!+*?=-])+\]           # a class that lists what it holds
      | \((?:\?:)? | \)
      | \| | [*+?] | \{\d{1,3}(?:,\d{0,3})?\}
    )*\$""",
    re.VERBOSE,
)
FORMS = {
    "string": frozenset({"type", "minLength", "maxLength", "pattern"}),
    "integer": frozenset({"type", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}),
    "number": frozenset({"type"}),
    "boolean": frozenset({"type"}),
    "null": frozenset({"type"}),
    "array": frozenset({"type", "items", "prefixItems", "minItems", "maxItems"}),
    "object": frozenset({"type", "properties", "required", "additionalProperties"}),
}
"""Type -> keywords that are enforced beside it, as far as `check` lets them pass."""


def check(tree: Tree, *, lengths: bool) -> None:
    """Raises ConstraintError with a pointer to the first keyword that xgrammar would not enforce.

    `lengths`: strings of bounded length can be enforced. The library lets control characters into them, which is right
    only where the masks keep those out (compact JSON and nothing else).
    """
    for node in tree.judging():  # which has dictionaries only
        _check(node, lengths)


def _check(node: Node, lengths: bool) -> None:
    schema: dict[str, Any] = node.schema
    for name in ("$id", "id"):
        if node.path and isinstance(schema.get(name), str):
            _refuse(node, name, "references could start from it")
    for name, part in node.parts:
        if part.schema is True:
            _refuse(part, None, "any value would be allowed, with keys that repeat")
        if part.schema is False and name not in ("items", "additionalProperties"):
            _refuse(part, None, "false is enforced for items and additionalProperties only")
    asserts = [name for name in schema if name not in _BESIDE and name in kw.TABLE]
    if asserts in (["$ref"], ["anyOf"]):
        if "$ref" in schema and schema["$ref"] != "#" and not schema["$ref"].startswith("#/"):
            _refuse(node, "$ref", "only references by JSON pointer into the schema itself are enforced")
        return
    if "enum" in asserts or "const" in asserts:
        _values(node, asserts)
        return
    named = schema.get("type")
    if isinstance(named, list):
        if asserts != ["type"] or not set(named) <= _PLAIN_TYPES:
            _refuse(node, "type", "several types are enforced alone, and without array and object")
        return
    if named is None:
        _refuse(node, asserts[0] if asserts else None, "it is enforced only where the schema has a type")
    for name in asserts:
        if name not in FORMS[named]:
            _refuse(node, name, f"it is not enforced with type {named}")
    if named in _TYPES:
        _TYPES[named](node, schema, lengths)


def _values(node: Node, asserts: list[str]) -> None:
    name = "enum" if "enum" in asserts else "const"
    for other in asserts:
        if other not in (name, "type"):
            _refuse(node, other, f"it is not enforced beside {name}")
    values = node.schema["enum"] if name == "enum" else [node.schema["const"]]
    for value in values:
        if not (value is None or isinstance(value, str | bool | int)):
            _refuse(node, name, "only strings, integers, booleans and null are written as they are")
        if isinstance(value, int) and abs(value) >= 2**53:
            _refuse(node, name, "an integer so large is not written as it is")
        if "type" in asserts and not _is_of(value, node.types):
            _refuse(node, "type", f"it is not enforced beside {name}")


def _is_of(value: Any, types: set[str]) -> bool:
    if value is None:
        return "null" in types
    if isinstance(value, bool):
        return "boolean" in types
    return "string" in types if isinstance(value, str) else bool(types & {"integer", "number"})


def _string(node: Node, schema: dict[str, Any], lengths: bool) -> None:
    bounded = [name for name in ("minLength", "maxLength") if name in schema]
    if "pattern" in schema:
        if bounded:
            _refuse(node, bounded[0], "it is not enforced beside pattern")
        if not is_simple(schema["pattern"]):
            _refuse(node, "pattern", "only ^patterns$ of plain characters, classes, groups and counts are enforced")
    if bounded and not lengths:
        _refuse(node, bounded[0], "it is enforced in compact JSON only")


def is_simple(pattern: str) -> bool:
    """Whether the library reads the pattern as ECMA-262 does: anchored, and of what all notations share."""
    if not _PATTERN.fullmatch(pattern):
        return False
    try:
        re.compile(pattern)
    except re.error:
        return False
    depth = 0
    for token in re.findall(r"\\.|\[[^\]]*\]|[()|]", pattern):
        depth += (token == "(") - (token == ")")
        if depth < 0 or (token == "|" and not depth):
            return False  # an alternative outside of all groups has one of the anchors only
    return depth == 0


def _integer(node: Node, schema: dict[str, Any], _: bool) -> None:
    for name in FORMS["integer"] - {"type"}:
        bound = schema.get(name)
        if bound is not None and (
            not isinstance(bound, int) or isinstance(bound, bool) or not -_INT64 <= bound < _INT64
        ):
            _refuse(node, name, "only integers of 64 bits bound an integer")


def _array(node: Node, schema: dict[str, Any], _: bool) -> None:
    if not isinstance(schema.get("items"), dict | bool):
        _refuse(node, "items" if "items" in schema else "type", "one schema for all (other) items is needed")
    if schema["items"] is False and not schema.get("prefixItems"):
        _refuse(node, "items", "false is enforced behind prefixItems only")


def _object(node: Node, schema: dict[str, Any], _: bool) -> None:
    if schema.get("additionalProperties") is not False:
        if "additionalProperties" not in schema:
            why = "additionalProperties: false is missing, without which other keys might repeat"
            _refuse(node, "type", why, what="this object")
        _refuse(node, "additionalProperties", "an object is enforced only with false here; other keys might repeat")
    for name in schema.get("required", ()):
        if name not in schema.get("properties", {}):
            _refuse(node, "required", f"{name!r} is not among the properties")


_TYPES: dict[str, Callable[[Node, dict[str, Any], bool], None]] = {
    "string": _string,
    "integer": _integer,
    "array": _array,
    "object": _object,
}


def _refuse(node: Node, name: str | None, why: str, *, what: str | None = None) -> NoReturn:
    place = pointer(node.path if name is None else (*node.path, name))
    what = what or ("this schema" if name is None else f"the keyword {name!r}")
    raise ConstraintError(
        f"{what} is not enforced by xgrammar here: {why}; leave backend out, or write it in another way",
        param=place or "json_schema",
        code=kw.NOT_ENFORCED,
    )
