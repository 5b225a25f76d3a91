"""What the schema gate refuses, and where it points."""

from __future__ import annotations

import json
from typing import Any

import pytest

from radixrt.errors import ConstraintError
from radixrt.grammar import Limits, keywords
from radixrt.grammar.backends import Backends
from radixrt.grammar.gate import check_schema
from radixrt.grammar.llguidance_backend import prepare
from radixrt.params import Constraint

NODE = {
    "type": "object",
    "properties": {
        "v": {"type": "integer"},
        "kids": {"type": "array", "maxItems": 2, "items": {"$ref": "#/$defs/node"}},
    },
    "required": ["v", "kids"],
    "additionalProperties": False,
}


def refusal(schema: Any, limits: Limits | None = None) -> ConstraintError:
    text = schema if isinstance(schema, str) else json.dumps(schema, ensure_ascii=False)
    with pytest.raises(ConstraintError) as caught:
        check_schema(text, limits or Limits())
    assert caught.value.status == 400
    return caught.value


MALFORMED = [
    ({"properties": {"foo": "bar"}}, "/properties/foo", "must be a schema"),
    ({"uniqueItems": 1}, "/uniqueItems", "true or false"),
    ({"dependentRequired": {"a": {}}}, "/dependentRequired/a", "list of property names"),
    ({"dependencies": {"a": [1]}}, "/dependencies/a/0", "property names"),
    ({"properties": {"a/b~": 3}}, "/properties/a~1b~0", "must be a schema"),
    ({"properties": ["a"]}, "/properties", "must be an object"),
    ({"type": "xml"}, "/type", "not a type"),
    ({"type": ["string", "any"]}, "/type/1", "not a type"),
    ({"type": []}, "/type", "at least one"),
    ({"type": 3}, "/type", "not a type"),
    ({"required": "a"}, "/required", "list of property names"),
    ({"properties": {"a": {"required": True}}}, "/properties/a/required", "list of property names"),
    ({"required": ["a", 3]}, "/required/1", "property names"),
    ({"enum": []}, "/enum", "not empty"),
    ({"enum": "a"}, "/enum", "list of values"),
    ({"anyOf": []}, "/anyOf", "not empty"),
    ({"allOf": {"type": "string"}}, "/allOf", "list of schemas"),
    ({"anyOf": [{"type": "string"}, 7]}, "/anyOf/1", "must be a schema"),
    ({"items": 3}, "/items", "must be a schema"),
    ({"items": {"minLength": -1}}, "/items/minLength", "0 or more"),
    ({"minLength": 2.0}, "/minLength", "without a point"),
    ({"maxItems": "3"}, "/maxItems", "integer"),
    ({"maxItems": True}, "/maxItems", "integer"),
    ({"minimum": "1"}, "/minimum", "must be a number"),
    ({"minimum": True}, "/minimum", "must be a number"),
    ({"multipleOf": 0}, "/multipleOf", "above 0"),
    ({"pattern": 3}, "/pattern", "must be a string"),
    ({"pattern": "[a"}, "/pattern", "not closed"),
    ({"patternProperties": {"^(?=a)": {}}}, "/patternProperties/^(?=a)", "look-ahead"),
    ({"$ref": 3}, "/$ref", "must be a string"),
    ({"$ref": "#/nope"}, "/$ref", "refers to nothing"),
    ({"items": {"$ref": "other.json"}}, "/items/$ref", "another document"),
    ({"$defs": 3}, "/$defs", "must be an object"),
    ({"$defs": {"unused": {"type": "xml"}}}, "/$defs/unused/type", "not a type"),
    ({"additionalProperties": 3}, "/additionalProperties", "must be a schema"),
    ({"type": "string", "minLength": 3, "maxLength": 2}, "/minLength", "nothing can satisfy"),
]


@pytest.mark.parametrize(("schema", "pointer", "words"), MALFORMED, ids=lambda value: str(value)[:40])
def test_malformed_schemas_are_refused_with_a_pointer(schema: Any, pointer: str, words: str) -> None:
    error = refusal(schema)
    assert error.param == pointer
    assert words in error.message


REFUSED = sorted(name for name, (kind, _) in keywords.TABLE.items() if kind == keywords.REFUSED)
ADDED = sorted(name for name, (kind, _) in keywords.TABLE.items() if kind == keywords.ADDED)


def test_the_table_knows_every_keyword_of_every_draft() -> None:
    from jsonschema_specifications import REGISTRY

    names: set[str] = set()
    for uri, resource in REGISTRY.items():
        if "json-schema.org" in str(uri) and "draft-03" not in str(uri):
            names |= set(resource.contents.get("properties", {}))
    assert len(names) > 55
    assert names <= set(keywords.TABLE), names - set(keywords.TABLE)
    assert all(advice for kind, advice in keywords.TABLE.values() if kind in (keywords.REFUSED, keywords.ADDED))


@pytest.mark.parametrize("keyword", REFUSED)
def test_keywords_that_are_not_enforced_are_refused_wherever_they_judge(keyword: str, compiler: Backends) -> None:
    schema = {"type": "object", "properties": {"x": {"$ref": "#/$defs/d"}}, "$defs": {"d": {keyword: {}}}}
    error = refusal(schema)
    assert error.param == f"/$defs/d/{keyword}" and repr(keyword) in error.message
    assert keywords.advice(keyword) in error.message
    # Where nothing refers to it, it judges nothing.
    del schema["properties"]
    compiler.compile(Constraint(kind="json_schema", value=json.dumps(schema)))


UNSAID = [
    ({"not": {"type": "integer"}}, "/not"),
    ({"not": {"pattern": "a+b"}}, "/not"),
    ({"not": {"enum": [{"a": 1}]}}, "/not"),
    ({"not": {"items": {"type": "string"}}}, "/not"),
    ({"not": {"multipleOf": 2}}, "/not"),
    ({"$schema": "https://json-schema.org/draft/2019-09/schema", "prefixItems": [{}]}, "/prefixItems"),
    ({"not": {"properties": {"a": {"format": "date"}}}}, "/not"),
    ({"if": {"type": "integer"}, "then": {"minimum": 3}, "else": {"minLength": 1}}, "/if"),
    ({"items": {"uniqueItems": True, "items": {"type": "string"}}}, "/items/uniqueItems"),
    ({"type": "array", "contains": {"type": "string"}}, "/contains"),
    ({"type": "array", "contains": {"type": "string"}, "minContains": 2, "maxItems": 3}, "/contains"),
    ({"propertyNames": {"format": "date"}}, "/propertyNames"),
    ({"unevaluatedProperties": False, "anyOf": [{"properties": {"a": True}}, {}]}, "/unevaluatedProperties"),
    ({"unevaluatedItems": False, "allOf": [{"prefixItems": [True]}]}, "/unevaluatedItems"),
    ({"properties": {"a": {}}, "minProperties": 2}, "/minProperties"),
    ({"properties": {f"p{i}": {} for i in range(12)}, "maxProperties": 6}, "/maxProperties"),
    ({"format": "regex"}, "/format"),
    ({"properties": {"a": {"format": "phone"}}}, "/properties/a/format"),
]


@pytest.mark.parametrize(("schema", "place"), UNSAID, ids=lambda value: str(value)[:50])
def test_what_cannot_be_said_in_other_words_is_refused_with_advice(schema: Any, place: str) -> None:
    error = refusal(schema)
    keyword = place.rsplit("/", 1)[1]
    assert error.param == place and error.code == "keyword_not_enforced"
    assert repr(keyword) in error.message and keywords.advice(keyword) in error.message


@pytest.mark.parametrize("value", [True, False, {}, [], 1, "x", {"a": 1}])
@pytest.mark.parametrize("keyword", [*ADDED, *REFUSED])
def test_no_word_reaches_the_back_end_that_it_does_not_enforce(keyword: str, value: object, compiler: Backends) -> None:
    """Whatever the value: refused, or compiled from a source without the word."""
    constraint = Constraint(kind="json_schema", value=json.dumps({"properties": {"k": {keyword: value}}}))
    try:
        source = compiler.plan(constraint).source.text
    except ConstraintError:
        return
    if keyword in keywords.REWRITTEN:
        assert f'"{keyword}"' not in source


def test_a_schema_cannot_loosen_its_own_enforcement() -> None:
    for place, schema in (
        ("/x-guidance", {"x-guidance": {"lenient": True}, "type": "integer"}),
        ("/properties/a/x-guidance", {"properties": {"a": {"x-guidance": {}}}}),
    ):
        assert refusal(schema).param == place
    check_schema(json.dumps({"properties": {"x-guidance": {"type": "integer"}}}), Limits())


RECURSION = [
    ({"not": {"$ref": "#"}}, "/not"),
    ({"not": {"not": {"$ref": "#"}}}, "/not"),
    ({"$ref": "#"}, "/$ref"),
    ({"anyOf": [{"type": "null"}, {"$ref": "#"}]}, "/anyOf/1/$ref"),
    ({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}, "/$defs/a/$ref"),
    ({"type": "object", "properties": {"n": {"$ref": "#"}}, "required": ["n"]}, "/properties/n/$ref"),
    ({"type": "array", "minItems": 1, "items": {"$ref": "#"}}, "/items/$ref"),
    ({"type": "array", "minItems": 2, "prefixItems": [{}], "items": {"$ref": "#"}}, "/items/$ref"),
]


@pytest.mark.parametrize(("schema", "pointer"), RECURSION, ids=lambda value: str(value)[:40])
def test_recursion_without_end_is_refused(schema: Any, pointer: str) -> None:
    assert refusal(schema).param == pointer


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#/$defs/node", "$defs": {"node": NODE}},
        {"type": "array", "items": {"$ref": "#"}},
        {"anyOf": [{"type": "null"}, {"type": "array", "minItems": 1, "items": {"$ref": "#"}}]},
        {"type": ["object", "null"], "properties": {"n": {"$ref": "#"}}, "required": ["n"]},
        {"properties": {"n": {"$ref": "#"}}, "required": ["n"]},
    ],
    ids=str,
)
def test_recursion_that_ends_is_taken(schema: Any, compiler: Backends) -> None:
    compiler.compile(Constraint(kind="json_schema", value=json.dumps(schema)))


@pytest.mark.parametrize(
    ("schema", "pointer"),
    [
        ({"const": 2**53 + 1}, "/const"),
        ({"enum": ["a", {"b": [2**70 + 1]}]}, "/enum/1/b/0"),
        ({"type": "integer", "minimum": 2**53 + 1}, "/minimum"),
        ({"type": "integer", "minimum": 2**64}, "/minimum"),
        ({"type": "integer", "exclusiveMinimum": 2**53}, "/exclusiveMinimum"),
        ({"const": "a\u0000b"}, "/const"),
        ({"enum": ["x", "a\u007f"]}, "/enum/1"),
        ({"pattern": "^a\\x01b$"}, "/pattern"),
        ({"pattern": "^[\\x00-\\x05é]$"}, "/pattern"),
        ({"type": "number", "exclusiveMinimum": 6, "maximum": 6.5}, "/exclusiveMinimum"),
        ({"exclusiveMaximum": -6.0, "exclusiveMinimum": -6.25}, "/exclusiveMaximum"),
        ({"minimum": 6, "exclusiveMinimum": True, "maximum": 6.5}, "/exclusiveMinimum"),
        ({"allOf": [{"exclusiveMinimum": 6}, {"maximum": 6.5}]}, "/allOf/0/exclusiveMinimum"),
        ({"type": "string", "format": "regex"}, "/format"),
        ({"minProperties": 3, "properties": {"a": {}}}, "/minProperties"),
        ({"multipleOf": 1_000_003}, "/multipleOf"),
        ({"multipleOf": 0.123457}, "/multipleOf"),
    ],
    ids=str,
)
def test_what_would_be_enforced_inexactly_is_refused(schema: Any, pointer: str) -> None:
    assert refusal(schema).param == pointer


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "integer", "maximum": 2**63 - 1, "minimum": 0},
        {"type": "number", "exclusiveMinimum": 6, "maximum": 7},
        {"properties": {"a": {"exclusiveMinimum": 0, "maximum": 1}, "b": {"maximum": 0.5}}},
        {"const": 2**53},
        {"const": "tab\tand newline\n"},
        {"type": "string", "pattern": "^[^\\x00-\\x1f]*$"},
        {"type": "integer", "format": "int32"},
        {"type": "object", "minProperties": 1},
        {"multipleOf": 0.25},
        True,
        {},
    ],
    ids=str,
)
def test_what_is_exact_is_taken(schema: Any, compiler: Backends) -> None:
    compiler.compile(Constraint(kind="json_schema", value=json.dumps(schema)))


def test_text_that_is_no_clean_json() -> None:
    for text, words in (
        ('{"type": "strin', "not JSON"),
        ("3", "must be an object"),
        ("false", "nothing can satisfy"),
        ('{"maximum": NaN}', "NaN"),
        ('{"maximum": 1e999}', "not JSON"),
        ('{"properties": {"a": {}, "a": {"type": "integer"}}}', "'a' twice"),
        ('{"const": "\\ud800"}', "surrogate"),
        ("[" * 5000, "levels deep"),
        ('{"const": ' + "9" * 5000 + "}", "not JSON"),
    ):
        error = refusal(text)
        assert words in error.message, text[:40]
        assert error.param == "json_schema"


def test_each_limit_has_its_own_words() -> None:
    tight = Limits(max_depth=6, max_choices=3, max_properties=2, max_minimum_count=10)
    deep: dict[str, Any] = {"type": "integer"}
    for _ in range(4):
        deep = {"items": deep, "type": "array"}
    check_schema(json.dumps(deep), tight)
    for schema, words in (
        ({"items": {"items": deep}}, "6 levels"),
        ({"enum": [1, 2, 3, 4]}, "limit is 3"),
        ({"properties": {"a": {}, "b": {}, "c": {}}}, "limit is 2"),
        ({"required": ["a", "b", "c"]}, "limit is 2"),
        ({"minItems": 11}, "limit is 10"),
        ({"maxItems": 2**31}, "limit is 2147483647"),
    ):
        assert words in refusal(schema, tight).message


def test_source_size_is_checked_first() -> None:
    constraint = Constraint(kind="json_schema", value='{"description":"' + "é" * 40_000 + '"}')
    with pytest.raises(ConstraintError, match="80018 bytes long; the limit is 65536"):
        prepare(constraint, Limits())
    with pytest.raises(ConstraintError, match="4 strings; the limit is 3"):
        prepare(Constraint(kind="choice", choices=("a", "b", "c", "d")), Limits(max_choices=3))
    with pytest.raises(ConstraintError, match="surrogate"):
        prepare(Constraint(kind="choice", choices=("\ud800",)), Limits())


def test_refusals_of_the_back_end_are_located(compiler: Backends) -> None:
    for schema, pointer in (
        ({"items": {"oneOf": [{"multipleOf": 2}, {"multipleOf": 3}]}}, "/items/oneOf"),
        ({"patternProperties": {"a": {}, "b": {"type": "null"}}}, "/patternProperties"),
        ({"type": "integer", "minimum": 3, "maximum": 2}, "/minimum"),
        ({"properties": {"a": False}, "required": ["a"], "type": "object"}, "/required"),
    ):
        with pytest.raises(ConstraintError) as caught:
            compiler.compile(Constraint(kind="json_schema", value=json.dumps(schema)))
        assert caught.value.param == pointer
        assert "<state>" not in caught.value.message


def test_a_long_chain_of_references_is_no_crash(compiler: Backends) -> None:
    chain = {f"n{i}": {"allOf": [{"$ref": f"#/$defs/n{i + 1}"}]} for i in range(600)}
    made = {"enum": [1, 2], "not": {"$ref": "#/$defs/n0"}, "$defs": {**chain, "n600": {"const": 1}}}
    with pytest.raises(ConstraintError) as caught:
        compiler.compile(Constraint(kind="json_schema", value=json.dumps(made)))
    assert caught.value.param in ("json_schema", "/not")
    short = {"enum": [1, 2], "not": {"$ref": "#/$defs/n590"}, "$defs": made["$defs"]}
    compiler.compile(Constraint(kind="json_schema", value=json.dumps(short)))
