"""A part that nothing satisfies costs its schema that part alone, where it need not be there: against jsonschema."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest

from radixrt.checkpoint import Vocabulary
from radixrt.errors import ConstraintError
from radixrt.grammar.backends import Backends
from radixrt.grammar.instances import verdict
from radixrt.params import Constraint

NOTHING: list[dict[str, Any]] = [
    {"type": "string", "minLength": 3, "maxLength": 2},
    {"type": "array", "minItems": 2, "maxItems": 1},
    {"type": "object", "minProperties": 3, "maxProperties": 2},
    {"type": "object", "minProperties": 2, "maxProperties": 1, "properties": {"x": {}}, "additionalProperties": False},
    {"type": "integer", "minimum": 4, "maximum": 3},
    {"type": "object", "required": ["a"], "additionalProperties": False},
]
ANY = ["xx", "xxxx", [], [1], [1, 2], {}, {"a": 1}, {"x": 1, "y": 2}, {"x": 1, "y": 2, "z": 3}, 3, 4]


def around(part: dict[str, Any]) -> list[tuple[dict[str, Any], list[Any]]]:
    """Schemas that hold the part where it need not be, and values to judge."""
    inside = [{"a": one} for one in ANY]
    return [
        ({"type": "object", "properties": {"a": part, "b": {}}, "additionalProperties": False}, [{"b": 1}, *inside]),
        ({"type": "object", "additionalProperties": part}, [{}, *inside]),
        ({"type": "array", "items": part}, [[], *([one] for one in ANY)]),
        ({"anyOf": [part, {"const": "c"}]}, ["c", *ANY]),
        ({"const": 1, "$defs": {"unused": part}}, [1, *ANY]),
    ]


@pytest.mark.parametrize("part", NOTHING, ids=json.dumps)
def test_the_rest_of_a_schema_is_served(part: dict[str, Any], compiler: Backends, vocabulary: Vocabulary) -> None:
    for schema, values in around(part):
        grammar = compiler.compile(Constraint(kind="json_schema", value=json.dumps(schema)))
        judge = jsonschema.Draft202012Validator(schema)
        taken = [verdict(grammar, vocabulary.encode, value, schema) == "accepted" for value in values]
        assert taken == [judge.is_valid(value) for value in values], schema
        assert taken.count(True) == 1


@pytest.mark.parametrize("part", NOTHING, ids=json.dumps)
def test_where_it_must_be_there_nothing_is(part: dict[str, Any], compiler: Backends) -> None:
    for schema in (part, {"type": "object", "properties": {"a": part}, "required": ["a"]}):
        with pytest.raises(ConstraintError) as caught:
            compiler.compile(Constraint(kind="json_schema", value=json.dumps(schema)))
        assert caught.value.code == "schema_unsatisfiable"
        assert (caught.value.param or "").startswith("/")


@pytest.mark.parametrize("draft", ["draft-04", "draft-06", "draft-07"])
def test_the_opposite_of_values_is_said_in_words_of_the_draft(
    draft: str, compiler: Backends, vocabulary: Vocabulary
) -> None:
    schema = {"$schema": f"http://json-schema.org/{draft}/schema#", "not": {"enum": [100, None, True]}}
    grammar = compiler.compile(Constraint(kind="json_schema", value=json.dumps(schema)))
    found = {json.dumps(one): verdict(grammar, vocabulary.encode, one, schema) for one in (None, True, False, 100, 3)}
    assert found == {"null": "refused", "true": "refused", "false": "accepted", "100": "refused", "3": "accepted"}
