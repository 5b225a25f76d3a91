"""The xgrammar back end: masks by brute force, JSON by jsonschema, and what it would not enforce is refused."""

from __future__ import annotations

import json
import random
import select
from collections.abc import Callable
from typing import Any

import jsonschema
import pytest
from test_json import write
from test_matcher import mask_of, walk

from radixrt.checkpoint import Vocabulary
from radixrt.errors import ConstraintError
from radixrt.grammar import CompileService, Grammar, ServiceLimits, TokenRefused
from radixrt.grammar.backends import Backends
from radixrt.grammar.keywords import ANNOTATION, TABLE, XGRAMMAR
from radixrt.params import Constraint

CLOSED = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 6},
        "kind": {"enum": ["red", "blue", "Orléans", "a/b"]},
        "age": {"type": "integer", "minimum": -3, "maximum": 130},
        "tags": {"type": "array", "items": {"type": "string", "pattern": "^(?:[a-c]+|\\d{2})$"}, "maxItems": 3},
        "next": {"anyOf": [{"type": "null"}, {"$ref": "#"}]},
    },
    "required": ["kind", "age"],
    "additionalProperties": False,
}
LOOSE = {**CLOSED, "properties": {**CLOSED["properties"], "name": {"type": "string"}}}  # type: ignore[dict-item]
JSON = {"type": "json_schema", "json_schema": LOOSE}
TAG = {
    "type": "structural_tag",
    "format": {
        "type": "sequence",
        "elements": [
            {"type": "const_string", "value": "<a>"},
            {"type": "or", "elements": [{"type": "regex", "pattern": "[0-9]{2,3}"}, JSON]},
            {"type": "optional", "content": {"type": "grammar", "grammar": 'root ::= "x" root "y" | "z"'}},
        ],
    },
}  # fmt: skip
TRIGGERED = {
    "structures": [{"begin": "<f>", "schema": {"type": "integer"}, "end": "</f>"}],
    "triggers": ["<f"],
}


def made(kind: Any, value: Any, **options: Any) -> Constraint:
    text = value if isinstance(value, str) else json.dumps(value)
    return Constraint(kind=kind, value=text, backend="xgrammar", **options)


KINDS = {
    "json_schema": made("json_schema", CLOSED),
    "json_schema with whitespace": made("json_schema", LOOSE, any_whitespace=True),
    "gbnf": made("grammar", 'root ::= "a" root "b" | "é" [0-9x]+ | "(" root ")"'),
    "gbnf, ambiguous": made("grammar", 'root ::= word+ "x"\nword ::= [a-z]+'),
    "structural_tag": made("structural_tag", TAG),
    "structural_tag, triggered": made("structural_tag", TRIGGERED),
}  # fmt: skip


@pytest.mark.parametrize("name", KINDS)
def test_a_bit_is_set_exactly_where_accept_takes_the_token(name: str, compiler: Backends, vocab_size: int) -> None:
    grammar = compiler.compile(KINDS[name])
    assert grammar.backend == "xgrammar"
    rng = random.Random(name)
    seen = 0
    for _ in range(3):
        for matcher, _, allowed in walk(grammar, vocab_size, rng, 12):
            taken = set()
            for token in range(-1, vocab_size + 40):
                twin = matcher.fork()
                try:
                    twin.accept(token)
                except TokenRefused:
                    continue
                taken.add(token)
            assert taken == allowed
            assert not allowed & {2, 3}, "control tokens"
            assert bool(allowed & {0, 1}) is matcher.may_stop
            seen += 1
    assert seen > 5


@pytest.mark.parametrize("name", KINDS)
def test_rollback_and_fork_give_the_same_masks(name: str, compiler: Backends, vocab_size: int) -> None:
    grammar = compiler.compile(KINDS[name])
    trail = [(list(tokens), allowed) for _, tokens, allowed in walk(grammar, vocab_size, random.Random(name), 10)]
    matcher = grammar.matcher()
    for token in trail[-1][0]:
        matcher.accept(token)
    twin = matcher.fork()
    for n, (_, allowed) in enumerate(reversed(trail)):
        if n:
            matcher.rollback(1)
        assert mask_of(matcher, vocab_size) == allowed
    assert mask_of(twin, vocab_size) == trail[-1][1]
    assert len(trail) > 2


TREE = {
    "type": "object",
    "properties": {
        "v": {"type": "integer", "minimum": 0, "maximum": 9},
        "kids": {"type": "array", "items": {"$ref": "#/$defs/tree"}, "maxItems": 2},
    },
    "required": ["v"],
    "additionalProperties": False,
}
TUPLE = {"type": "array", "prefixItems": [{"type": "boolean"}, {"const": 7}]}
ODD_KEYS = {'q"\\uote/é': {"type": "null"}, "": {"type": "boolean"}}
SCHEMAS: list[Any] = [
    CLOSED,
    {"type": "string", "minLength": 2, "maxLength": 5},
    {"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1},
    {"type": "integer", "exclusiveMinimum": 8, "exclusiveMaximum": 103},
    {"type": "integer", "maximum": -7},
    {"type": "array", "items": {"type": ["string", "null"]}, "minItems": 1, "maxItems": 3},
    {**TUPLE, "items": {"type": "null"}, "minItems": 1, "maxItems": 4},
    {**TUPLE, "items": False, "minItems": 2},
    {"$ref": "#/$defs/tree", "$defs": {"tree": TREE}},
    {"type": "object", "properties": ODD_KEYS, "required": [""], "additionalProperties": False},
]


@pytest.mark.parametrize("schema", SCHEMAS, ids=lambda schema: json.dumps(schema)[:40])
@pytest.mark.parametrize("loose", [False, True])
def test_what_is_written_under_the_masks_is_valid(
    schema: Any, loose: bool, compiler: Backends, vocabulary: Vocabulary, vocab_size: int
) -> None:
    constraint = made("json_schema", schema, any_whitespace=loose)
    if loose and ("maxLength" in constraint.value or "minLength" in constraint.value):
        with pytest.raises(ConstraintError, match="compact JSON only"):
            compiler.compile(constraint)
        return
    grammar = compiler.compile(constraint)
    complete = 0
    for seed in range(25):
        text = write(grammar, vocabulary, vocab_size, random.Random(seed), 120)
        if text is not None:
            jsonschema.Draft202012Validator(schema).validate(json.loads(text))
            complete += 1
    assert complete > 5


@pytest.mark.parametrize(
    ("schema", "pointer"),
    [
        ({"$ref": "#a", "$defs": {"a": {"$anchor": "a", "type": "null"}}}, "/$ref"),
        ({}, "json_schema"),
        ({"type": "object"}, "/type"),
        ({"type": "object", "additionalProperties": {"type": "null"}}, "/additionalProperties"),
        ({"type": "object", "required": ["x"], "additionalProperties": False}, "/required"),
        ({"type": "string", "pattern": "ab"}, "/pattern"),
        ({"type": "string", "pattern": "^a$|^b$"}, "/pattern"),
        ({"type": "string", "pattern": "^.$"}, "/pattern"),
        ({"type": "string", "pattern": "^a+$", "maxLength": 3}, "/maxLength"),
        ({"type": "string", "format": "date"}, "/format"),
        ({"type": "integer", "multipleOf": 3}, "/multipleOf"),
        ({"type": "number", "minimum": 3}, "/minimum"),
        ({"minimum": 3}, "/minimum"),
        ({"type": "array"}, "/type"),
        ({"type": "array", "items": True}, "/items"),
        ({"anyOf": [{"type": "null"}, {"type": "integer"}], "type": "integer"}, "/anyOf"),
        ({"enum": [1, "a"], "minimum": 1}, None),
        ({"allOf": [{"type": "integer", "minimum": 3}, {"type": "integer", "maximum": 9}]}, "/allOf"),
        ({"enum": [{"a": 1}]}, "/enum"),
        ({"type": "string", "enum": ["a", 1]}, "/type"),
    ],
    ids=str,
)
def test_what_it_would_ignore_is_refused_with_a_pointer(schema: Any, pointer: str | None, compiler: Backends) -> None:
    with pytest.raises(ConstraintError) as caught:
        compiler.compile(made("json_schema", schema))
    assert pointer is None or caught.value.param in (pointer, "/type")
    if pointer != "/required":  # which nothing satisfies
        auto = compiler.compile(Constraint(kind="json_schema", value=json.dumps(schema)))
        assert auto.backend == "llguidance"


def test_the_table_names_every_keyword_for_every_back_end() -> None:
    assert XGRAMMAR.keys() == TABLE.keys()
    for name, (kind, _) in TABLE.items():
        assert (XGRAMMAR[name] == ANNOTATION) is (kind == ANNOTATION), name


def test_auto_passes_on_to_the_back_end_that_enforces_all(compiler: Backends, accepts: Callable[..., bool]) -> None:
    bounds = {"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1}
    grammar = compiler.compile(Constraint(kind="json_schema", value=json.dumps(bounds)))
    assert grammar.backend == "xgrammar"
    assert grammar.passed[0].startswith("llguidance: ")
    for value in (-(2**63), 2**63 - 1, 0, 7):
        assert accepts(grammar, str(value))
    for value in (-(2**63) - 1, 2**63, 10**19):
        assert not accepts(grammar, str(value))
    tag = compiler.compile(Constraint(kind="structural_tag", value=json.dumps(TAG)))
    assert tag.backend == "xgrammar" and accepts(tag, "<a>123xzy") and not accepts(tag, "<a>1xzy")
    with pytest.raises(ConstraintError) as caught:  # neither takes it: the first one's answer stands
        compiler.compile(Constraint(kind="json_schema", value='{"type":"array","uniqueItems":true}'))
    assert "xgrammar" not in caught.value.message


def test_grammars_go_character_by_character(compiler: Backends, accepts: Callable[..., bool]) -> None:
    """Where a terminal of llguidance is greedy, and never gives back what it took."""
    doubled: Grammar = compiler.compile(Constraint(kind="grammar", value='root ::= [a&&b]+ "\\xe9a"'))
    assert doubled.backend == "xgrammar" and accepts(doubled, "a&béa") and not accepts(doubled, "c")
    grammar: Grammar = compiler.compile(KINDS["gbnf, ambiguous"])
    assert accepts(grammar, "abcx") and accepts(grammar, "xxx") and not accepts(grammar, "abc")


@pytest.mark.parametrize(
    "text", ['root ::= "a" Regex("[0-9]")', 'root ::= TagDispatch(("a", b))\nb ::= "x"', 'root ::= "a" (= "b")']
)
def test_what_only_the_library_reads_is_no_grammar(text: str, compiler: Backends) -> None:
    with pytest.raises(ConstraintError, match="not GBNF"):
        compiler.compile(made("grammar", text))


@pytest.mark.parametrize(
    ("form", "pointer"),
    [
        ({"type": "token", "token": 1}, "/format/type"),
        ({"type": "any_text", "max_tokens": 3}, "/format/max_tokens"),
        ({"type": "json_schema", "json_schema": {"type": "integer"}, "style": "qwen_xml"}, "/format/style"),
        ({"type": "json_schema", "json_schema": {"type": "object"}}, "/format/json_schema/type"),
        ({"type": "sequence", "elements": [{"type": "regex", "pattern": "a.c"}]}, "/format/elements/0/pattern"),
        ({"type": "repeat", "min": 0, "max": 10**9, "content": {"type": "any_text"}}, "/format/max"),
        ({"type": "grammar", "grammar": 'root ::= Regex("x")'}, "/format/grammar"),
    ],
    ids=str,
)
def test_fields_of_tags_are_enforced_or_refused(form: Any, pointer: str, compiler: Backends) -> None:
    with pytest.raises(ConstraintError) as caught:
        compiler.compile(made("structural_tag", {"type": "structural_tag", "format": form}))
    assert caught.value.param == pointer


def test_the_service_loads_it_when_it_is_first_asked_for(vocabulary: Vocabulary, vocab_size: int) -> None:
    """The import is not the constraint's time or memory, the worker lives on, and the preferred back end goes first."""
    service = CompileService(vocabulary, vocab_size, service_limits=ServiceLimits(workers=1, preferred="xgrammar"))
    try:
        pids = None
        for constraint in (
            Constraint(kind="json_schema", value=json.dumps(CLOSED)),
            Constraint(kind="json_schema", value='{"type":"object"}'),
            Constraint(kind="regex", value="a+"),
        ):
            while (answer := service.request(constraint)) is None:
                select.select([service.fileno()], [], [])
                service.completed()
            assert not isinstance(answer, ConstraintError), answer
            assert pids is None or service.worker_pids() == pids
            pids = service.worker_pids()
        assert service.by_backend == {"xgrammar": 1, "llguidance": 2}
        assert service.workers_lost == 0
    finally:
        service.close()
