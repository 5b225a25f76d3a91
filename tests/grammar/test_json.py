"""JSON constraints against json.loads and jsonschema: acceptance tables, the shared cases, and random walks."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest

from radixrt.checkpoint import Vocabulary
from radixrt.errors import ConstraintError
from radixrt.grammar import Grammar, GrammarDeadEnd
from radixrt.grammar.backends import Backends
from radixrt.grammar.instances import verdict
from radixrt.grammar.llguidance_backend import MAX_WHITESPACE
from radixrt.params import Constraint

Accepts = Callable[[Grammar, str], bool]


def compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def compiled(compiler: Backends, schema: Any, **options: bool) -> Grammar:
    return compiler.compile(Constraint(kind="json_schema", value=compact(schema), **options))


@pytest.mark.parametrize(
    ("pattern", "taken", "refused"),
    [
        ("^[0-9]{4}$", ['"2024"'], ['"^2024$"', '"20245"', '"xaby"', "2024"]),
        ("ab", ['"xaby"', '"ab"'], ['"2024"', '"red"']),
        ("^(?:red|blue)$", ['"red"', '"blue"'], ['"red', 'blue"', '"redblue"', '"xred"']),
        ("red|blue", ['"red"', '"blue"', '"xredx"'], ['"red', 'blue"', '"re"']),
        ("^a|b$", ['"ax"', '"xb"'], ['"xa"', '"bx"']),
        ("^[^x]$", ['"\\n"', '"é"', '"😀"', '"\\""'], ['""', '"x"', '"ab"']),
    ],
)
def test_patterns_search_inside_the_quotes(
    pattern: str, taken: list[str], refused: list[str], compiler: Backends, accepts: Accepts
) -> None:
    grammar = compiled(compiler, {"type": "string", "pattern": pattern})
    assert [text for text in taken if not accepts(grammar, text)] == []
    assert [text for text in refused if accepts(grammar, text)] == []


def test_declared_keys_keep_their_schema_in_any_order_and_spelling(compiler: Backends, accepts: Accepts) -> None:
    schema = {
        "type": "object",
        "properties": {"start": {"type": "integer"}, "end": {"type": "integer"}, "unit": {"const": "s"}},
        "required": ["end"],
    }
    grammar = compiled(compiler, schema)
    for text in ('{"start":1,"end":2}', '{"end":2}', '{"end":2,"unit":"s","more":"x"}'):
        assert accepts(grammar, text)
    for text in (
        '{"end":2,"start":1}',
        '{"end":2,"unit":"BAD"}',
        '{"end":2,"sta\\"x":1,"start":"x"}',
        '{"end":2,"\\u0073tart":"x"}',
        '{"end":2,"end":3}',
        '{"end":2,"unit":"s","unit":"s"}',
        '{"start":1}',
        '{"end":2} ',
        ' {"end":2}',
        '{"end": 2}',
    ):
        assert not accepts(grammar, text), text


def test_no_state_leaves_only_an_escaped_quote(compiler: Backends, vocabulary: Vocabulary) -> None:
    """After a prefix of a declared key that may not come any more, some ordinary letter can go on."""
    grammar = compiled(
        compiler, {"type": "object", "properties": {"start": {"type": "integer"}, "end": {"type": "integer"}}}
    )
    matcher = grammar.matcher()
    for token in vocabulary.encode('{"end":2,"start'):
        matcher.accept(token)
    matcher.fork().accept(vocabulary.encode("x")[0])


def test_objects_with_and_without_additional_properties(compiler: Backends, accepts: Accepts) -> None:
    a = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    table = [
        ({"type": "object"}, ["{}", '{"x":"y"}', '{"x":{"y":[1,null]}}'], ["[]", "1"]),
        (a, ['{"a":1}', '{"a":1,"x":"y"}'], ["{}", '{"a":"1"}']),
        (a | {"additionalProperties": False}, ['{"a":1}'], ['{"a":1,"x":"y"}']),
        (a | {"additionalProperties": {"type": "integer"}}, ['{"a":1,"x":2}'], ['{"a":1,"x":"y"}']),
    ]
    for schema, taken, refused in table:
        grammar = compiled(compiler, schema)
        assert all(accepts(grammar, text) for text in taken)
        assert not any(accepts(grammar, text) for text in refused)
    grammar = compiler.compile(Constraint(kind="json_object"))
    assert accepts(grammar, '{"x":{"y":[1,null,"é"]}}')
    assert not any(accepts(grammar, text) for text in ("[]", "1", "null", '{"a": 1}'))


def test_literal_text_of_every_plane_is_possible(compiler: Backends, accepts: Accepts) -> None:
    grammar = compiled(compiler, {"type": "string"})
    for text in ("é", "東京", "😀", "\u2028", '"', "\\", "/", "\b\f\n\r\t", ""):
        assert accepts(grammar, compact(text)), text
    for written in ('"\\u0061"', '"\\u0001"', '"\\/"', '"a\nb"', '"\x01"'):
        assert not accepts(grammar, written), written


def test_whitespace_is_compact_or_bounded(compiler: Backends, accepts: Accepts) -> None:
    value = {"a": 1, "b": [1, {"c": None}], "d": {"e": "x y"}}
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    tight, loose = compiled(compiler, schema), compiled(compiler, schema, any_whitespace=True)
    for text in (compact(value), json.dumps(value), json.dumps(value, indent=2)):
        assert accepts(loose, text)
        assert accepts(tight, text) is (text == compact(value))
    room = " " * MAX_WHITESPACE
    assert accepts(loose, f'{{{room}"a"{room}:{room}1{room}}}')
    assert not accepts(loose, f'{{ {room}"a":1}}')
    assert not accepts(loose, '{"a":1}\n')


@pytest.mark.parametrize("name", ["json_schema_dev", "json_schema_suite_2020_12"])
def test_shared_cases_accept_no_invalid_instance(
    name: str, cases: Path, compiler: Backends, vocabulary: Vocabulary, capsys: pytest.CaptureFixture[str]
) -> None:
    count = dict.fromkeys(("cases", "refused", "valid", "valid_accepted", "valid_order", "invalid"), 0)
    wrong: list[str] = []
    where: list[str | None] = []
    for line in (cases / f"{name}.jsonl").read_text().splitlines():
        case = json.loads(line)
        count["cases"] += 1
        try:
            tight, loose = (compiled(compiler, case["schema"], any_whitespace=flag) for flag in (False, True))
        except ConstraintError as error:
            count["refused"] += 1
            where.append(error.param)
            continue
        for instance in case["valid"]:
            count["valid"] += 1
            found = verdict(tight, vocabulary.encode, instance, case["schema"])
            count["valid_accepted"] += found == "accepted"
            count["valid_order"] += found == "order"
        for instance in case["invalid"]:
            count["invalid"] += 1
            for grammar, is_loose in ((tight, False), (loose, True)):
                if verdict(grammar, vocabulary.encode, instance, case["schema"], loose=is_loose) != "refused":
                    wrong.append(f"{case['id']}: {compact(instance)[:200]}")
    with capsys.disabled():
        print(f"\n{name}: {count}, invalid accepted: {len(wrong)}")
    assert wrong == []
    assert all(where)
    assert count["invalid"] > 200
    if name == "json_schema_dev":
        assert count["refused"] < 15
        assert count["valid_accepted"] >= 0.95 * (count["valid"] - count["valid_order"])
    else:
        assert count["refused"] < 120


def random_schema(rng: random.Random, depth: int = 0) -> dict[str, Any]:
    """A schema of keywords that are enforced, with bounds that some value satisfies."""
    kinds = ["string", "pattern", "integer", "number", "multiple", "enum", "const", "null", "boolean"]
    kind = rng.choice(kinds + ["object", "array", "anyOf", "allOf"] * (2 if depth < 3 else 0))
    low = rng.randint(-40, 40)
    if kind == "string":
        return {"type": "string", "minLength": rng.randint(0, 3), "maxLength": rng.randint(3, 6)}
    if kind == "pattern":
        shape = rng.choice(["^[a-c]+$", "b", "^x|y$", "^\\d{2,3}$", "^[^a]?é$", "^(ab?)*$"])
        return {"type": "string", "pattern": shape, "maxLength": 6}
    if kind == "integer":
        return {
            "type": "integer",
            "minimum": low,
            rng.choice(["maximum", "exclusiveMaximum"]): low + rng.randint(1, 200),
        }
    if kind == "number":
        return {"type": "number", "exclusiveMinimum": low / 8, "maximum": low / 8 + rng.choice([0.5, 1, 12.25])}
    if kind == "multiple":
        return {"type": "integer", "multipleOf": rng.randint(2, 12), "minimum": 0, "maximum": 500}
    if kind == "enum":
        return {"enum": rng.sample([1, -2.5, "a", "b\n", None, True, [1, "x"], {"k": "v"}, 'q"'], 3)}
    if kind == "const":
        return {"const": rng.choice(["x", 0, {"a": [1, {"b": "c"}]}, "😀"])}
    if kind in ("null", "boolean"):
        return {"type": kind}
    if kind == "array":
        least = rng.randint(0, 2)
        return {
            "type": "array",
            "prefixItems": [random_schema(rng, depth + 1)],
            "items": random_schema(rng, depth + 1),
            "minItems": least,
            "maxItems": least + rng.randint(0, 2),
        }
    if kind == "anyOf":
        return {"anyOf": [random_schema(rng, depth + 1) for _ in range(2)]}
    names = rng.sample(["name", "age", "a b", "é", 'q"', "x"], 3)
    made = {
        "type": "object",
        "properties": {name: random_schema(rng, depth + 1) for name in names},
        "required": rng.sample(names, rng.randint(0, 3)),
        "additionalProperties": rng.choice([False, {"type": "integer"}]),
    }
    return {"allOf": [made, {"required": [names[0]]}]} if kind == "allOf" else made


def write(grammar: Grammar, vocabulary: Vocabulary, vocab_size: int, rng: random.Random, steps: int) -> str | None:
    """A text that the grammar allows, sampled at random and leaning to an end; None where it is not done in time."""
    matcher, tokens = grammar.matcher(), []
    closing = {t for t in range(4, vocabulary.size) if vocabulary.token_bytes(t)[:1] in b'"}]'}
    bitmask = np.zeros((1, (vocab_size + 31) // 32), dtype=np.int32)
    for step in range(steps):
        if matcher.must_stop or (matcher.may_stop and rng.random() < 0.3):
            return b"".join(map(vocabulary.token_bytes, tokens)).decode()
        matcher.fill(bitmask, 0)
        allowed = np.flatnonzero(np.unpackbits(bitmask[0].view(np.uint8), bitorder="little")).tolist()
        inner = [token for token in allowed if token > 1]
        if not inner:
            assert matcher.may_stop
            return b"".join(map(vocabulary.token_bytes, tokens)).decode()
        ends = [token for token in inner if token in closing]
        tokens.append(rng.choice(ends if ends and rng.random() < 0.2 + step / steps else inner))
        matcher.accept(tokens[-1])
    return None


def grammars(rng: random.Random, compiler: Backends, n: int) -> Iterator[tuple[dict[str, Any], Grammar]]:
    made = 0
    while made < n:
        schema = random_schema(rng)
        try:
            yield schema, compiled(compiler, schema, any_whitespace=bool(made % 2))
        except ConstraintError as error:
            reasons = ("nsatisf", "nothing satisfies", "less than 1 away")
            if not any(reason in error.message for reason in reasons):
                raise
            continue
        made += 1


def test_whatever_is_written_parses_and_validates(compiler: Backends, vocabulary: Vocabulary, vocab_size: int) -> None:
    rng = random.Random(2024)
    finished = 0
    for schema, grammar in grammars(rng, compiler, 60):
        for _ in range(4):
            text = write(grammar, vocabulary, vocab_size, rng, 120)
            if text is not None:
                jsonschema.validate(json.loads(text), schema)
                finished += 1
    assert finished > 180


def test_number_ranges_against_exact_arithmetic(compiler: Backends, accepts: Accepts) -> None:
    rng = random.Random(8)
    tried = {True: 0, False: 0}
    for _ in range(250):
        scale = Decimal(rng.choice([1, 8, 10, 100]))
        low = Decimal(rng.randint(-300, 300)) / scale
        high = low + Decimal(rng.choice([0, 1, 7, 20, 300])) / scale
        schema: dict[str, Any] = {"type": rng.choice(["number", "integer"])}
        schema[rng.choice(["minimum", "exclusiveMinimum"])] = float(low)
        schema[rng.choice(["maximum", "exclusiveMaximum"])] = float(high)
        try:
            grammar = compiled(compiler, schema)
        except ConstraintError:
            continue
        for base in (low, high, low.to_integral_value(), high.to_integral_value()):
            for step in (Decimal(k) / scale for k in (-1, 0, 1)):
                value = base + step
                fits = (
                    low + (Decimal("1e-9") if "exclusiveMinimum" in schema else 0) <= value
                    and value <= high - (Decimal("1e-9") if "exclusiveMaximum" in schema else 0)
                    and (schema["type"] == "number" or value == value.to_integral_value())
                )
                for text in {
                    format(value, "f"),
                    format(value.normalize(), "f"),
                    format(value, "f") + "0" * ("." in str(value)),
                }:
                    if accepts(grammar, text):
                        assert fits, (schema, text)
                    tried[fits] += 1
    assert min(tried.values()) > 500


def test_written_texts_of_the_shared_schemas_validate(
    cases: Path, compiler: Backends, vocabulary: Vocabulary, vocab_size: int
) -> None:
    rng = random.Random(11)
    finished = 0
    for line in (cases / "json_schema_dev.jsonl").read_text().splitlines()[::2]:
        schema = json.loads(line)["schema"]
        try:
            grammar = compiled(compiler, schema)
        except ConstraintError:
            continue
        validator = jsonschema.validators.validator_for(schema)(schema)
        for _ in range(2):
            try:
                text = write(grammar, vocabulary, vocab_size, rng, 250)
            except GrammarDeadEnd as error:
                raise AssertionError(f"a dead end in {line[:80]}") from error
            if text is not None:
                errors = [e.message[:200] for e in validator.iter_errors(json.loads(text))]
                assert errors == [], (line[:60], text[:300])
                finished += 1
    assert finished > 40
