"""Schemas said in other words mean the same: original and rewritten, both judged by jsonschema, on many instances."""

from __future__ import annotations

import itertools
import json
import random
import re
from collections.abc import Callable
from typing import Any

import jsonschema
import pytest

from radixrt.errors import ConstraintError
from radixrt.grammar import Grammar, Limits
from radixrt.grammar.backends import Backends
from radixrt.grammar.complement import all_but
from radixrt.grammar.gate import check_schema
from radixrt.grammar.judge import Judge, Unsure, equal
from radixrt.grammar.schema_tree import Tree
from radixrt.params import Constraint

KEYS = ("a", "b", "c")
NAMES: list[Any] = [{"enum": ["a", "b"]}, {"pattern": "^[ab]$"}, {"maxLength": 1}, {"minLength": 2}, False]
SCALARS: list[Any] = [None, True, False, 0, 1, 2, 3, -1, 1.5, 2.5, "", "a", "b", "ab", "c", "xyz"]


def instance(rng: random.Random, depth: int = 0) -> Any:
    kind = rng.random()
    if depth > 2 or kind < 0.45:
        return rng.choice(SCALARS)
    if kind < 0.65:
        return [instance(rng, depth + 1) for _ in range(rng.randint(0, 3))]
    return {key: instance(rng, depth + 1) for key in rng.sample([*KEYS, "d", "e"], rng.randint(0, 4))}


def leaf(rng: random.Random) -> Any:
    return rng.choice(
        [
            True,
            {},
            {"type": rng.choice(["string", "integer", "number", "object", "array", "null", "boolean"])},
            {"type": rng.sample(["string", "number", "object", "array", "null"], 2)},
            {"const": rng.choice(SCALARS)},
            {"enum": rng.sample(SCALARS, rng.randint(1, 4))},
            {"minLength": rng.randint(0, 2)},
            {"type": "string", "maxLength": rng.randint(0, 2)},
            {"minimum": rng.randint(-1, 3)},
            {"type": "number", "exclusiveMaximum": rng.randint(-1, 3)},
            {"multipleOf": rng.randint(2, 3)},
            {"type": "integer", "multipleOf": 2},
            {"pattern": "^a"},
            {"minItems": rng.randint(0, 2)},
            {"type": "array", "maxItems": rng.randint(0, 2)},
            {"maxProperties": rng.randint(0, 2)},
            {"required": rng.sample(KEYS, rng.randint(0, 2))},
        ]
    )


def schema(rng: random.Random, depth: int = 0) -> Any:
    if depth > 2 or rng.random() < 0.2:
        return leaf(rng)

    def inner() -> Any:
        return schema(rng, depth + 1)

    made: dict[str, Any] = {}
    for _ in range(rng.choice([1, 1, 2, 3])):
        made |= rng.choice(
            [
                lambda: {"not": inner()},
                lambda: {"if": inner(), "then": inner()},
                lambda: {"if": inner(), "then": inner(), "else": inner()},
                lambda: {"oneOf": [inner() for _ in range(rng.randint(1, 3))]},
                lambda: {"anyOf": [inner(), inner()]},
                lambda: {"allOf": [inner(), inner()]},
                lambda: {"dependentRequired": {key: rng.sample(KEYS, 1) for key in rng.sample(KEYS, 2)}},
                lambda: {"dependentSchemas": {rng.choice(KEYS): inner()}},
                lambda: {"properties": {key: inner() for key in rng.sample(KEYS, 2)}},
                lambda: {"properties": {key: inner() for key in KEYS}, "additionalProperties": rng.random() < 0.5},
                lambda: {"properties": {"a": True, "b": True}, "minProperties": rng.randint(0, 3)},
                lambda: {"properties": {"a": True, "b": True, "c": True}, "maxProperties": rng.randint(0, 3)},
                lambda: {"propertyNames": rng.choice(NAMES)},
                lambda: {"contains": inner(), "maxItems": rng.randint(0, 3)},
                lambda: {"contains": True, "minContains": rng.randint(0, 2)},
                lambda: {"uniqueItems": True, "items": {"enum": rng.sample(SCALARS, rng.randint(1, 3))}},
                lambda: {"items": inner(), "minItems": rng.randint(0, 1)},
                lambda: {"prefixItems": [inner()], "items": rng.choice([True, False])},
                lambda: {"unevaluatedProperties": rng.choice([False, leaf(rng)]), "properties": {"a": inner()}},
                lambda: {"unevaluatedItems": False, "prefixItems": [inner()]},
                lambda: {"type": ["object", "array", "string"]},
                lambda: {"$ref": "#/$defs/x"},
            ]
        )()  # fmt: skip
    return made


def test_random_schemas_keep_their_meaning() -> None:
    rng = random.Random(41)
    taken = refused = told_apart = 0
    added: set[str] = set()
    where: list[str | None] = []
    for _ in range(2500):
        made = schema(rng)
        if not isinstance(made, dict):
            continue
        made["$defs"] = {"x": leaf(rng)}
        try:
            gated = check_schema(json.dumps(made), Limits())
        except ConstraintError as error:
            refused += 1
            where.append(error.param)
            continue
        if not gated.added:
            continue
        taken += 1
        added.update(place.rsplit("/", 1)[1] for place in gated.added)
        before = jsonschema.Draft202012Validator(made)
        after = jsonschema.Draft202012Validator(json.loads(gated.source))
        seen = set()
        for _ in range(25):
            value = instance(rng)
            expected = before.is_valid(value)
            seen.add(expected)
            assert after.is_valid(value) is expected, (made, gated.source, value)
        told_apart += len(seen) == 2
    assert all(where)
    assert taken > 600 and told_apart > 250, (taken, refused, told_apart)
    assert added >= {
        "not", "if", "oneOf", "dependentRequired", "dependentSchemas", "minProperties", "maxProperties",
        "propertyNames", "contains", "uniqueItems", "unevaluatedProperties", "enum",
    }  # fmt: skip


def test_what_is_accepted_is_valid(compiler: Backends, accepts: Callable[[Grammar, str], bool]) -> None:
    """The rewritten schemas through the back end: nothing invalid is taken, and nearly everything valid is."""
    rng = random.Random(7)
    valid = accepted = invalid = schemas = 0
    while schemas < 500:
        made = schema(rng)
        if not isinstance(made, dict):
            continue
        made["$defs"] = {"x": leaf(rng)}
        try:
            if not check_schema(json.dumps(made), Limits()).added:
                continue
            grammar = compiler.compile(Constraint(kind="json_schema", value=json.dumps(made)))
        except ConstraintError:
            continue
        schemas += 1
        validator = jsonschema.Draft202012Validator(made)
        for _ in range(12):
            value = instance(rng)
            if isinstance(value, dict):
                value = dict(sorted(value.items()))
            taken = accepts(grammar, json.dumps(value, separators=(",", ":")))
            if validator.is_valid(value):
                valid += 1
                accepted += taken
            else:
                invalid += 1
                assert not taken, (made, value)
    assert valid > 1500 and invalid > 1000
    assert accepted > 0.9 * valid, (accepted, valid)


def rewritten(made: Any) -> Any:
    return json.loads(check_schema(json.dumps(made), Limits()).source)


def test_drafts_before_2019_ignore_what_stands_beside_a_reference() -> None:
    made = {"$ref": "#/$defs/x", "type": "string", "$defs": {"x": {"type": "integer"}}}
    assert rewritten(made) == made
    old = made | {"$schema": "http://json-schema.org/draft-07/schema#"}
    del made["type"]
    assert rewritten(old) == made | {"$schema": old["$schema"]}


def test_a_refusal_inside_rewritten_words_points_into_the_schema_that_was_sent() -> None:
    made = {"type": "number", "not": {"anyOf": [{"maximum": 6}, {"exclusiveMinimum": 6.5}]}}
    with pytest.raises(ConstraintError) as caught:
        check_schema(json.dumps(made), Limits())
    assert caught.value.param == "/not" and "less than 1 away" in caught.value.message


def test_the_rewritten_schema_has_a_limit() -> None:
    made = {"items": {"enum": [*range(6)]}, "uniqueItems": True}
    check_schema(json.dumps(made), Limits())
    with pytest.raises(ConstraintError, match="the limit is 1000") as caught:
        check_schema(json.dumps(made), Limits(max_rewritten_bytes=1000))
    assert caught.value.param == "json_schema"


def test_all_strings_but_a_few() -> None:
    rng = random.Random(3)
    for _ in range(200):
        words = ["".join(rng.choices("a-]^", k=rng.randint(0, 3))) for _ in range(rng.randint(1, 5))]
        pattern = re.compile(all_but(words))
        for n in range(5):
            for letters in itertools.product("a-]x", repeat=n):
                text = "".join(letters)
                assert (pattern.search(text) is None) is (text in words), (words, text)


def test_the_judge_of_values_agrees_with_jsonschema_or_says_that_it_does_not_know() -> None:
    rng = random.Random(19)
    sure = 0
    for _ in range(1500):
        made = schema(rng)
        if not isinstance(made, dict):
            continue
        made["$defs"] = {"x": leaf(rng)}
        validator = jsonschema.Draft202012Validator(made)
        tree = Tree(made)
        for _ in range(8):
            value = instance(rng)
            try:
                held = Judge(tree, legacy=False).holds(tree.root, value)
            except Unsure:
                continue
            assert held is validator.is_valid(value), (made, value)
            sure += 1
    assert sure > 5000


def test_equality_is_that_of_json() -> None:
    assert equal(1, 1.0) and equal([{"a": 0}], [{"a": -0.0}]) and equal({"a": 1, "b": 2}, {"b": 2, "a": 1})
    assert not any(equal(a, b) for a, b in ((1, True), (0, False), ("1", 1), ([1], [1, 1]), (None, False), ({}, [])))
