"""Refusals say what is wrong in words of ours, and point at it: no library's options, internals or dumps."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from radixrt.errors import ConstraintError
from radixrt.grammar.backends import Backends
from radixrt.grammar.keywords import NOT_ENFORCED
from radixrt.grammar.wording import UNSATISFIABLE, grammar_words, regex_words, running_words, schema_words
from radixrt.params import Constraint

FOREIGN = re.compile(r"llguid|outlines-core|coerce|lenient|parse error|Unsatisf|start: /|no_forcing|\n|json-schema:///")
INTEGER: dict[str, Any] = {"type": "integer"}
OBJECT: dict[str, Any] = {"type": "object"}
ARRAY: dict[str, Any] = {"type": "array"}
TEXT: dict[str, Any] = {"type": "string"}


def refused(compiler: Backends, kind: Any, value: str, **options: Any) -> ConstraintError:
    with pytest.raises(ConstraintError) as caught:
        compiler.compile(Constraint(kind=kind, value=value, **options))
    assert not FOREIGN.search(caught.value.message), caught.value.message
    return caught.value


@pytest.mark.parametrize(
    ("schema", "place", "words"),
    [
        ({**INTEGER, "minimum": 3, "maximum": 1}, "/minimum", "minimum 3 goes beyond maximum 1"),
        ({"type": "number", "exclusiveMinimum": 3, "maximum": 3}, "/exclusiveMinimum", "goes beyond maximum 3"),
        ({**INTEGER, "exclusiveMinimum": 3, "exclusiveMaximum": 4}, "/exclusiveMinimum", "no integer"),
        ({**INTEGER, "minimum": 1, "allOf": [{"maximum": 0}]}, "/minimum", "goes beyond"),
        ({**INTEGER, "multipleOf": 5, "minimum": 1, "maximum": 4}, "/multipleOf", "no multiple"),
        ({**ARRAY, "minItems": 3, "maxItems": 1}, "/minItems", "above maxItems"),
        ({**ARRAY, "items": False, "minItems": 1}, "/minItems", "an item that must be there"),
        ({**ARRAY, "prefixItems": [{}, False], "minItems": 2}, "/minItems", "an item that must be there"),
        ({**TEXT, "minLength": 3, "maxLength": 1}, "/minLength", "above maxLength"),
        ({**TEXT, "pattern": "^a$", "minLength": 3}, "/pattern", "no string has"),
        ({**TEXT, "enum": [1, 2]}, "/enum", "excludes one another"),
        ({**OBJECT, "minProperties": 3, "maxProperties": 1}, "/minProperties", "above maxProperties"),
        ({**OBJECT, "required": ["a", "b"], "maxProperties": 1}, "/maxProperties", "more properties are required"),
        ({**OBJECT, "propertyNames": False, "minProperties": 1}, "/minProperties", "goes beyond"),
        ({**OBJECT, "required": ["a", "b"], "properties": {"a": {}, "b": False}}, "/required", "'b' can have no value"),
        ({**OBJECT, "required": ["b"], "additionalProperties": False}, "/required", "'b' can have no value"),
        ({"properties": {"x": {"const": 1, "type": "string"}}, "required": ["x"], **OBJECT}, "/required", "'x' can"),
        ({"allOf": [TEXT, INTEGER]}, "/allOf", "excludes one another"),
        ({"allOf": [{"const": 1}, {"const": 2}]}, "/allOf/1/const", "nothing satisfies"),
        ({"anyOf": [False, False]}, "json_schema", "nothing satisfies"),
        (False, "json_schema", "nothing can satisfy"),
    ],
    ids=json.dumps,
)
def test_what_nothing_satisfies_has_a_code_of_its_own(schema: Any, place: str, words: str, compiler: Backends) -> None:
    error = refused(compiler, "json_schema", json.dumps(schema))
    assert (error.param, error.code) == (place, UNSATISFIABLE)
    assert words in error.message
    assert refused(compiler, "json_schema", json.dumps(schema), lax=True).code == UNSATISFIABLE


@pytest.mark.parametrize(
    ("schema", "place", "words", "code"),
    [
        ({"oneOf": [INTEGER, {"minimum": 2, "pattern": "a"}]}, "/oneOf", "exclude one another", NOT_ENFORCED),
        ({**TEXT, "pattern": "("}, "/pattern", "not closed (at character 0)", "invalid_constraint"),
        (
            {**TEXT, "anyOf": [{"pattern": "a"}, {"pattern": "[z-a]"}]},
            "/anyOf/1/pattern",
            "end comes before",
            "invalid_constraint",
        ),
        ({**TEXT, "pattern": "\\p{Foo}"}, "/pattern", "does not exist", "invalid_constraint"),
        ({**TEXT, "pattern": "a^b"}, "/pattern", "only at the beginning", NOT_ENFORCED),
        ({**OBJECT, "patternProperties": {"(": {}}}, "/patternProperties", "not closed", "invalid_constraint"),
        (
            {**OBJECT, "patternProperties": {"^a": INTEGER, "a$": TEXT}},
            "/patternProperties",
            "two of the",
            NOT_ENFORCED,
        ),
        ({"$id": "http://a/b", "$ref": "c"}, "/$ref", "never fetched", NOT_ENFORCED),
    ],
    ids=json.dumps,
)
def test_what_is_not_enforced_is_pointed_at(
    schema: Any, place: str, words: str, code: str | None, compiler: Backends
) -> None:
    error = refused(compiler, "json_schema", json.dumps(schema))
    assert (error.param, error.code) == (place, code)
    assert words in error.message


@pytest.mark.parametrize(
    ("regex", "words"),
    [
        ("(", "a group ( that is not closed (at character 0)"),
        ("a)", "a ) without its ( (at character 1)"),
        ("[z-a]", "end comes before its start (at character 1)"),
        ("a|*", "a quantifier with nothing before it (at character 2)"),
        ("a{3,2}", "end is below its start (at character 1)"),
        ("a{2", "a { that is not closed"),
        ("a{,3}", "without its first number"),
        ("\\p{Foo}", "a Unicode property \\p{...} that does not exist"),
        ("(?P<a>x)(?P<a>y)", "two groups of one name"),
        ("(?P<1>x)", "a group's name"),
        ("(?i", "inline flags"),
        ("a$b", "^ and $ are enforced only at the beginning and the end"),
        ("\\ud800", "no character"),
        ("[^\\s\\S]", "nothing satisfies this regex"),
    ],
)
@pytest.mark.parametrize("backend", ["auto", "outlines"])
def test_regexes(regex: str, words: str, backend: str, compiler: Backends) -> None:
    error = refused(compiler, "regex", regex, backend=backend)
    assert error.param == "regex"
    assert words in error.message


@pytest.mark.parametrize(
    ("grammar", "words"),
    [
        ("root ::= missing", "the name missing is not defined"),
        ('root ::= "a', "it ends in the middle"),
        ("root ::= [z-a]", "end comes before its start"),
        ('root ::= "a"{5,2}', "a repetition {5,2} whose end is below its start"),
        ('foo ::= "a"', "no rule named root"),
        ('root ::= ("a"', "expected ')'"),
        ("root ::= root", "nothing satisfies this grammar"),
        ("start: missing", "line 1 of the grammar: the name missing is not defined"),
        ('start: "a\n', "line 1 of the grammar: a text, regex or sign that is not closed"),
        ('start: "b"\nstart: "a"', "line 2 of the grammar: start is defined twice"),
        ("start: A\nA: B\nB: A", "line 3 of the grammar: the terminal A refers to itself"),
        ("start: /(/", "line 1 of the grammar: regex: a group ( that is not closed (at character 0)"),
        ('foo: "a"', "no rule named start"),
        ("start: /a/ & /b/", "in capitals"),
        ("%import foo.bar\nstart: bar", "nothing to import by the name foo.bar"),
        ("root ::= x\nx ::= y-y\n", "line 2 of the grammar: the name y-y is not defined"),
        ("start: (\n", "line 1 of the grammar: expected ), found the end of the line"),
        ('digits = "a" / "b"\n', "line 1 of the grammar: a rule is written `name: ...` (Lark) or `name ::= ...`"),
        ('start: "a"\n<more> ::= "b"', "line 2 of the grammar: a rule is written"),
        ('start: "a" /b\n\n', "line 1 of the grammar: a text, regex or sign that is not closed"),
    ],
)
def test_grammars(grammar: str, words: str, compiler: Backends) -> None:
    assert words in refused(compiler, "grammar", grammar).message


@pytest.mark.parametrize(
    ("grammar", "line"),
    [("root ::= (", 1), ('root ::= "a"{1\n', 1), ('root ::= x\n\nx ::= "a" (\n\n', 3), ('root ::= "a" |', 1)],
)
def test_a_line_is_one_of_those_that_were_sent(grammar: str, line: int, compiler: Backends) -> None:
    """The library gets a rule more, and finds what is not closed behind it."""
    said = refused(compiler, "grammar", grammar, backend="xgrammar").message
    assert said.startswith(f"line {line} of the grammar: ")


def test_the_schema_of_a_tag_is_pointed_at(compiler: Backends) -> None:
    inner = {**OBJECT, "properties": {"a": {**INTEGER, "minimum": 5, "maximum": 1}}, "required": ["a"]}
    tags = [{"begin": f"<{i}>", "schema": schema, "end": "</>"} for i, schema in enumerate([OBJECT, inner])]
    error = refused(compiler, "structural_tag", json.dumps({"structures": tags, "triggers": ["<"]}))
    assert (error.param, error.code) == ("/structures/1/schema/required", UNSATISFIABLE)


def test_words_that_no_table_knows_are_not_passed_on() -> None:
    strange = "assertion failed: lexer.rs says llguidance coerce_one_of"
    said = [schema_words(strange).text, regex_words(strange), grammar_words(strange, strange), running_words(strange)]
    for text in said:
        assert text
        assert not FOREIGN.search(text)
        assert "assert" not in text


def test_a_number_that_no_double_holds_is_pointed_at(compiler: Backends) -> None:
    for name in ("maximum", "minimum", "default", "const", "multipleOf"):
        schema = json.dumps({"type": "object", "properties": {"a": {"type": "integer", name: 10**400}}})
        with pytest.raises(ConstraintError, match=f"{name} .*401 digits") as caught:
            compiler.compile(Constraint(kind="json_schema", value=schema))
        assert caught.value.param == f"/properties/a/{name}"


def test_too_many_schemas_together_are_pointed_at(compiler: Backends) -> None:
    pairs = [{"anyOf": [{"required": [f"a{i}"]}, {"required": [f"b{i}"]}]} for i in range(20)]
    schema = json.dumps({"properties": {"q": {"allOf": pairs}}, "type": "object"})
    with pytest.raises(ConstraintError, match="too many schemas come together here") as caught:
        compiler.compile(Constraint(kind="json_schema", value=schema))
    assert caught.value.param == "/properties/q/allOf"


def test_xgrammar_names_what_an_object_lacks(compiler: Backends) -> None:
    inner = {"type": "object", "properties": {"n": {"type": "null"}}}
    schema = {"type": "object", "properties": {"o": inner}, "additionalProperties": False}
    with pytest.raises(ConstraintError, match="additionalProperties: false is missing") as caught:
        compiler.compile(Constraint(kind="json_schema", value=json.dumps(schema), backend="xgrammar"))
    assert caught.value.param == "/properties/o/type" and "keyword 'type'" not in caught.value.message
