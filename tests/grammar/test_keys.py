"""No key twice in one object: the masks against a parser that sees every key, and against brute force."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable
from typing import Any

import jsonschema
import numpy as np
import pytest
from test_json import write
from test_matcher import walk

from radixrt.checkpoint import Vocabulary
from radixrt.errors import ConstraintError
from radixrt.grammar import Grammar, TokenRefused
from radixrt.grammar.backends import Backends
from radixrt.params import Constraint

OPEN: list[Any] = [
    {"type": "object"},
    {"type": "object", "additionalProperties": {"type": "object", "additionalProperties": {"type": "null"}}},
    {"type": "object", "properties": {"a": {"type": "null"}}, "required": ["a"], "minProperties": 3},
    {"type": "object", "patternProperties": {"^[ab]{1,2}$": {"const": 1}}, "additionalProperties": False},
    {"type": "object", "propertyNames": {"maxLength": 1}, "minProperties": 2, "additionalProperties": {"const": 7}},
    {"type": "object", "propertyNames": {"enum": ["a", "b", "tags"]}, "minProperties": 2},
    {"type": "array", "items": {"type": "object", "additionalProperties": {"type": "string"}}, "minItems": 2},
]


def made(schema: Any, **options: Any) -> Constraint:
    return Constraint(kind="json_schema", value=json.dumps(schema), **options)


def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    keys = [key for key, _ in pairs]
    assert len(keys) == len(set(keys)), keys
    return dict(pairs)


@pytest.mark.parametrize("schema", OPEN, ids=json.dumps)
@pytest.mark.parametrize("loose", [False, True])
def test_what_is_written_has_no_key_twice(
    schema: Any, loose: bool, compiler: Backends, vocabulary: Vocabulary, vocab_size: int
) -> None:
    grammar = compiler.compile(made(schema, any_whitespace=loose))
    complete = 0
    for seed in range(30):
        text = write(grammar, vocabulary, vocab_size, random.Random(seed), 160)
        if text is not None:
            jsonschema.Draft202012Validator(schema).validate(json.loads(text, object_pairs_hook=unique))
            complete += 1
    assert complete > 2


@pytest.mark.parametrize(
    ("text", "taken"),
    [
        ('{"a":1,"b":2}', True),
        ('{"a":1,"a":2}', False),
        ('{"a":1,"aa":2,"":3}', True),
        ('{"":1,"":2}', False),
        ('{"a":{"a":[{"a":1},{"a":"a"}]},"b":{"a":1}}', True),
        ('{"a":{"b":1,"b":2}}', False),
        ('{"a":[],"b\\"":1,"b\\"c":1}', True),
        ('{"b\\"":1,"b\\"":1}', False),
        ('{"\\\\":1,"\\\\\\"":1}', True),
        ('{"x":"\\"a\\":1,\\"a\\"","a":"}{","é":1}', True),
        ('{"é":1,"é":1}', False),
    ],
)
def test_texts_with_keys_that_repeat_are_refused(
    text: str, taken: bool, compiler: Backends, accepts: Callable[[Grammar, str], bool]
) -> None:
    assert accepts(compiler.compile(Constraint(kind="json_object")), text) is taken


def test_a_bit_is_set_exactly_where_accept_takes_the_token(
    compiler: Backends, vocabulary: Vocabulary, vocab_size: int
) -> None:
    """In an object whose keys are of two letters alone, so that random paths come upon them again."""
    schema = {
        "type": "object",
        "additionalProperties": {"const": 1},
        "propertyNames": {"pattern": "^[ab]*$"},
        "minProperties": 3,
    }
    grammar = compiler.compile(made(schema))
    closed = set()
    for seed in range(40):
        for matcher, tokens, allowed in walk(grammar, vocab_size, random.Random(seed), 20):
            if seed % 8 == 0:
                taken = set()
                for token in range(vocab_size):
                    twin = matcher.fork()
                    try:
                        twin.accept(token)
                    except TokenRefused:
                        continue
                    taken.add(token)
                assert taken == allowed
            text = b"".join(map(vocabulary.token_bytes, tokens)).decode()
            keys = text.split('"')[1::2]
            if text.count('"') % 2 and keys[-1] in keys[:-1]:
                closed.add(text)
                assert not any(vocabulary.token_bytes(token)[:1] == b'"' for token in allowed)
    assert len(closed) > 3


def test_rollback_takes_keys_back(compiler: Backends, vocabulary: Vocabulary) -> None:
    matcher = compiler.compile(Constraint(kind="json_object")).matcher()
    for token in vocabulary.encode('{"a":1,"a'):
        matcher.accept(token)
    quote = vocabulary.encode('"')[0]
    with pytest.raises(TokenRefused):
        matcher.accept(quote)
    fork = matcher.fork()
    matcher.rollback(len(vocabulary.encode('{"a":1,"a')))
    for token in vocabulary.encode('{"a":[]}'):
        matcher.accept(token)
    assert matcher.may_stop
    with pytest.raises(TokenRefused):
        fork.accept(quote)


ONE = {"const": 1}
FEW: list[tuple[Any, set[str], int]] = [
    ({"type": "object", "patternProperties": {"^[ab]$": ONE}, "additionalProperties": False}, {"a", "b"}, 0),
    ({"type": "object", "patternProperties": {"^a{1,3}$": ONE}, "additionalProperties": False}, {"a", "aa", "aaa"}, 0),
    (
        {
            "type": "object",
            "propertyNames": {"enum": ["", "na", "name"]},
            "additionalProperties": ONE,
            "minProperties": 2,
        },
        {"", "na", "name"},
        2,
    ),
    (
        {"type": "object", "patternProperties": {"^t(ags?)?$": ONE, "^é$": ONE}, "additionalProperties": False},
        {"t", "tag", "tags", "é"},
        0,
    ),
    ({"type": "object", "propertyNames": {"const": '"'}, "additionalProperties": ONE, "minProperties": 1}, {'"'}, 1),
]
"""Schemas, the keys that they leave, and how many of them must come."""


def everything(grammar: Grammar, vocabulary: Vocabulary, vocab_size: int) -> set[str]:
    """All texts that a grammar of finitely many takes, by trying every token in every state."""
    mask = np.zeros((1, (vocab_size + 31) // 32), dtype=np.int32)
    seen, complete = {b""}, set()
    todo = [(b"", grammar.matcher(any_spelling=True))]
    while todo:
        text, matcher = todo.pop()
        matcher.fill(mask, 0)  # raises where no token may come
        if matcher.may_stop:
            complete.add(text.decode())
        bits = np.unpackbits(mask.view(np.uint8), bitorder="little")
        for token in np.flatnonzero(bits).tolist():
            piece = vocabulary.token_bytes(token) if token not in vocabulary.eos_ids else b""
            if piece and text + piece not in seen:
                seen.add(text + piece)
                twin = matcher.fork()
                twin.accept(token)
                todo.append((text + piece, twin))
    return complete


def objects(keys: set[str], least: int) -> set[str]:
    lists = (one for n in range(least, len(keys) + 1) for one in itertools.permutations(sorted(keys), n))
    return {json.dumps(dict.fromkeys(one, 1), ensure_ascii=False, separators=(",", ":")) for one in lists}


@pytest.mark.parametrize(
    ("schema", "keys", "least"), FEW, ids=lambda one: json.dumps(one) if isinstance(one, dict) else ""
)
def test_where_few_keys_are_left_each_comes_once_and_no_path_ends_in_nothing(
    schema: Any, keys: set[str], least: int, compiler: Backends, vocabulary: Vocabulary, vocab_size: int
) -> None:
    assert everything(compiler.compile(made(schema)), vocabulary, vocab_size) == objects(keys, least)


def test_more_keys_than_there_are_is_refused(compiler: Backends) -> None:
    schema = {"type": "object", "propertyNames": {"enum": ["a", "b"]}, "minProperties": 3}
    with pytest.raises(ConstraintError, match="nothing satisfies"):
        compiler.compile(made(schema))


CLOSED = FEW[0][0]
FREE = {"type": "object"}


def tag_of(begin: str, schema: Any, end: str) -> dict[str, Any]:
    return {"type": "tag", "begin": begin, "content": {"type": "json_schema", "json_schema": schema}, "end": end}


LEGACY = {
    "structures": [{"begin": "<f>", "schema": FREE, "end": "</f>"}, {"begin": "<g>{", "schema": FREE, "end": "}"}]
}
LIST: dict[str, Any] = {
    "type": "structural_tag",
    "format": {
        "type": "tags_with_separator",
        "tags": [
            {"type": "tag", "begin": n, "content": {"type": "json_schema", "json_schema": FREE}, "end": ""}
            for n in "xy"
        ],
        "separator": ",",
    },
}


BESIDE = {
    "type": "structural_tag",
    "format": {"type": "or", "elements": [{"type": "json_schema", "json_schema": FREE}, LIST["format"]]},
}
ENCLOSED = {
    "type": "structural_tag",
    "format": {
        "type": "sequence",
        "elements": [
            {"type": "const_string", "value": "["},
            {
                "type": "tags_with_separator",
                "tags": [tag_of(f'{{"{name}":', FREE, "}") for name in "fg"],
                "separator": ",",
                "at_least_one": True,
            },
            {"type": "const_string", "value": "]"},
        ],
    },
}


@pytest.mark.parametrize(
    ("tag", "text", "taken"),
    [
        ({**LEGACY, "triggers": ["<"]}, '{"a":1,"a":2} <f>{"a":1,"b":2}</f> {"a":1,"a":1} <g>{{"a":1}}', True),
        ({**LEGACY, "triggers": ["<"]}, '<f>{"a":1,"a":2}</f>', False),
        ({**LEGACY, "triggers": ["<f>", "<g>"]}, 'x<f>{"a":1}</f><g>{{"a":1,"a":{}}}', False),
        ({**LEGACY, "triggers": ["<f>", "<g>"]}, 'x<f>{"a":1}</f><g>{{"a":{"b":1,"a":1},"c":"<f>"}}!', True),
        ({**LEGACY, "triggers": ["<"]}, '<f>{"a":[{"a":1,"b":[],"b":1}]}</f>', False),
        (LIST, 'x{"a":1},y{"a":1},x{"b":{"a":1},"a":1}', True),
        (LIST, 'x{"a":1},y{"a":1,"a":1}', False),
        (LIST, 'y{"a":1,"a":1}', False),
        (BESIDE, '{"a":{"b":1},"b":1}', True),
        (BESIDE, '{"a":{"b":1,"b":1}}', False),
        (BESIDE, '{"a":1,"a":1}', False),
        (BESIDE, 'y{"a":1},y{"a":1}', True),
        (BESIDE, 'y{"a":1},y{"a":1,"a":2}', False),
        (ENCLOSED, '[{"f":{"a":1}},{"g":{"a":1}}]', True),
        (ENCLOSED, '[{"f":{"a":1}},{"g":{"a":1,"a":1}}]', False),
    ],
)
def test_keys_come_once_in_structural_tags_too(
    tag: Any, text: str, taken: bool, compiler: Backends, accepts: Callable[[Grammar, str], bool]
) -> None:
    grammar = compiler.compile(Constraint(kind="structural_tag", value=json.dumps(tag)))
    assert grammar.backend == "llguidance"
    assert accepts(grammar, text) is taken


def test_every_tag_has_keys_of_its_own(compiler: Backends, vocabulary: Vocabulary, vocab_size: int) -> None:
    """Two lists of few keys: every text that can be written, against all that there are."""
    tags = [
        {"type": "tag", "begin": n, "content": {"type": "json_schema", "json_schema": CLOSED}, "end": "!"} for n in "xy"
    ]
    form = {"type": "tags_with_separator", "tags": tags, "separator": ",", "stop_after_first": True}
    grammar = compiler.compile(
        Constraint(kind="structural_tag", value=json.dumps({"type": "structural_tag", "format": form}))
    )
    want = {f"{name}{text}!" for name in "xy" for text in objects({"a", "b"}, 0)} | {""}
    assert everything(grammar, vocabulary, vocab_size) == want
