"""Lax mode: what cannot be enforced is left out and named; all the rest holds."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from radixrt.errors import ConstraintError, InvalidRequest
from radixrt.grammar import Grammar
from radixrt.grammar.backends import Backends
from radixrt.params import Constraint

Accepts = Callable[[Grammar, str], bool]


def lax(schema: Any) -> Constraint:
    return Constraint(kind="json_schema", value=json.dumps(schema), lax=True)


@pytest.mark.parametrize(
    ("schema", "ignored", "taken", "refused"),
    [
        ({"type": "array", "uniqueItems": True, "items": {"type": "string"}}, ["/uniqueItems"], '["a","a"]', "[1]"),
        ({"type": "string", "pattern": "a(?=b)", "minLength": 2}, ["/pattern"], '"xx"', '"x"'),
        ({"type": "string", "format": "phone", "maxLength": 2}, ["/format"], '"12"', '"123"'),
        ({"type": "integer", "oneOf": [{"multipleOf": 2}, {"multipleOf": 3}]}, ["/oneOf"], "6", "7"),
        (
            {"properties": {"a": {"type": "integer"}, "b": {}}, "minProperties": 3, "type": "object"},
            ["/minProperties"],
            '{"a":1}',
            "[]",
        ),
        (
            {"type": "object", "patternProperties": {"a(?!b)": {"type": "null"}}, "additionalProperties": False},
            ["/patternProperties"],
            '{"a":1}',
            "[]",
        ),
        (
            {"type": "array", "contains": {"const": 1}, "minContains": 2, "items": {"type": "integer"}},
            ["/contains"],
            "[2]",
            '["a"]',
        ),
        ({"anyOf": [{"const": 2**53 + 1}, {"type": "null"}]}, ["/anyOf/0/const"], "3", '"'),
        (
            {"type": "object", "properties": {"x": {"format": "regex"}, "y": {"not": {"type": "integer"}}}},
            ["/properties/x/format", "/properties/y/not"],
            '{"x":"(","y":1}',
            "1",
        ),
    ],
    ids=lambda value: str(value)[:40],
)
def test_the_rest_is_enforced_and_what_is_left_out_is_named(
    schema: Any, ignored: list[str], taken: str, refused: str, compiler: Backends, accepts: Accepts
) -> None:
    with pytest.raises(ConstraintError) as caught:
        compiler.compile(Constraint(kind="json_schema", value=json.dumps(schema)))
    assert (caught.value.param or "").startswith(ignored[0])
    grammar = compiler.compile(lax(schema))
    assert sorted(grammar.ignored) == sorted(ignored)
    assert accepts(grammar, taken) and not accepts(grammar, refused)


def test_nothing_is_left_out_where_all_is_enforced(compiler: Backends) -> None:
    assert compiler.compile(lax({"type": "integer", "not": {"const": 3}})).ignored == ()


@pytest.mark.parametrize(
    "schema",
    [{"type": "xml"}, {"pattern": "[a"}, {"$ref": "#/nope"}, {"minItems": 10**6}, {"enum": []}, {"x-guidance": {}}],
    ids=str,
)
def test_faults_of_the_schema_itself_stay_faults(schema: Any, compiler: Backends) -> None:
    with pytest.raises(ConstraintError):
        compiler.compile(lax(schema))


def test_lax_is_for_schemas() -> None:
    with pytest.raises(InvalidRequest, match="lax"):
        Constraint(kind="regex", value="a", lax=True)
