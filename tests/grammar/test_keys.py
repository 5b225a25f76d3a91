"""No key twice in one object: the masks against a parser that sees every key, and against brute force."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

import jsonschema
import pytest
from test_json import write
from test_matcher import walk

from radixrt.checkpoint import Vocabulary
from radixrt.grammar import Grammar, GrammarDeadEnd, TokenRefused
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
        try:
            text = write(grammar, vocabulary, vocab_size, random.Random(seed), 160)
        except GrammarDeadEnd:  # all keys of a pattern are used up
            assert "propertyNames" in schema or "patternProperties" in schema
            continue
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
