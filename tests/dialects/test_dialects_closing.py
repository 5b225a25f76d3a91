"""Objects of a function's parameters are closed where one schema describes them alone, and only there."""

from __future__ import annotations

from typing import Any

import jsonschema
import pytest

from radixrt.dialects import Function

OBJECT: dict[str, Any] = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
NAMED = {**OBJECT, "properties": {"n": {"type": "integer"}, "kind": {"const": "a"}}, "required": ["n", "kind"]}
OTHER = {**NAMED, "properties": {"n": {"type": "integer"}, "kind": {"enum": ["b", "c"]}}}
REF = {"$ref": "#/$defs/A"}
GOOD, MORE = {"n": 1}, {"n": 1, "extra": 2}


def parameters(value: Any, **others: Any) -> dict[str, Any]:
    return {"properties": {"x": value}, "required": ["x"], "$defs": {"A": OBJECT, **others}}


CLOSED = [
    (REF, GOOD, MORE),
    ({**REF, "description": "where", "default": None}, GOOD, MORE),
    ({"anyOf": [REF, {"type": "null"}]}, GOOD, MORE),
    ({"anyOf": [{"type": "null"}, OBJECT]}, GOOD, MORE),
    ({"oneOf": [REF, {"type": "null"}]}, GOOD, MORE),
    ({"oneOf": [NAMED, OTHER]}, {"n": 1, "kind": "c"}, {"n": 1, "kind": "c", "extra": 2}),
    ({"allOf": [REF]}, GOOD, MORE),
    ({"type": "array", "items": REF}, [GOOD], [MORE]),
    ({"type": "array", "items": {"anyOf": [{"type": "string"}, REF]}}, ["a", GOOD], ["a", MORE]),
    ({"type": "array", "prefixItems": [REF, OBJECT]}, [GOOD, GOOD], [GOOD, MORE]),
    ({"type": "object", "additionalProperties": REF}, {"k": GOOD}, {"k": MORE}),
    ({"type": "object", "patternProperties": {"^k": REF}}, {"k": GOOD}, {"k": MORE}),
    ({**OBJECT, "type": ["object", "null"]}, GOOD, MORE),
    ({"$ref": "#/$defs/B"}, {"b": GOOD}, {"b": MORE}),
    ({"$ref": "#/$defs/C"}, {"n": 1, "next": GOOD}, {"n": 1, "next": MORE}),
]
B = {"type": "object", "properties": {"b": {"anyOf": [REF, {"type": "null"}]}}}
C = {**OBJECT, "properties": {"n": {"type": "integer"}, "next": {"$ref": "#/$defs/C"}}}


@pytest.mark.parametrize(("value", "good", "more"), CLOSED)
def test_a_nested_object_takes_no_undeclared_key(value: Any, good: Any, more: Any) -> None:
    given = parameters(value, B=B, C=C)
    before = jsonschema.Draft202012Validator(given)
    assert before.is_valid({"x": good}) and before.is_valid({"x": more})
    after = jsonschema.Draft202012Validator(Function.of("f", given).schema)
    assert after.is_valid({"x": good}) and not after.is_valid({"x": more}) and not after.is_valid({"x": good, "y": 1})
    assert given == parameters(value, B=B, C=C)  # the caller's own stays as it was


TOGETHER = [
    {"allOf": [REF, {"type": "object", "properties": {"extra": {}}}]},
    {**REF, "properties": {"extra": {}}},
    {**OBJECT, "anyOf": [{"properties": {"extra": {"type": "integer"}}}, {"required": ["other"]}]},
    {"oneOf": [REF, {"type": "object", "properties": {"n": {"type": "string"}}}]},
    {"$ref": "#/$defs/Both"},
    {**OBJECT, "if": REF, "then": {"properties": {"extra": {"type": "integer"}}}},
    {"type": "object", "propertyNames": {"maxLength": 5}},
    {"type": "object", "enum": [MORE]},
]


@pytest.mark.parametrize("value", TOGETHER)
def test_what_several_parts_describe_stays_open(value: Any) -> None:
    both = {"allOf": [REF, {"type": "object", "properties": {"extra": {"type": "integer"}}, "required": ["extra"]}]}
    schema = Function.of("f", parameters(value, Both=both)).schema
    assert jsonschema.Draft202012Validator(schema).is_valid({"x": MORE})


def test_closing_widens_nothing() -> None:
    """Under `not`, and in branches that overlap, a closed object would let more pass."""
    for value, refused in (
        ({"type": "object", "not": REF}, MORE),
        ({"oneOf": [REF, {"type": "object", "properties": {"extra": {"type": "integer"}}}]}, MORE),
    ):
        given = parameters(value)
        for schema in (given, Function.of("f", given).schema):
            assert not jsonschema.Draft202012Validator(schema).is_valid({"x": refused})


def test_depth_is_nobodys_limit_here() -> None:
    deep: dict[str, Any] = dict(OBJECT)
    for _ in range(1000):
        deep = {"type": "object", "properties": {"n": deep}}
    inner = Function.of("f", deep).schema
    for _ in range(1000):
        assert inner["additionalProperties"] is False
        inner = inner["properties"]["n"]
    assert inner["additionalProperties"] is False
