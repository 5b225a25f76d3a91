"""The outlines back end: masks by brute force, and what it gets wrong is refused, not served."""

from __future__ import annotations

import random

import pytest
from test_matcher import mask_of, walk

from radixrt.checkpoint import Vocabulary
from radixrt.errors import ConstraintError
from radixrt.grammar import TokenRefused
from radixrt.grammar.backends import Backends
from radixrt.params import Constraint

REGEXES = ["[a-f0-9]{2,8}", "(a|b)*c", "a*", "yes( please)!", "[a-c]é", "x?y?z"]
CHOICES = ("-2", "7", " Mango", "東京", "a.b*c", "1 + (2)", "[x]-{y}|^$&~#\\n")


def regex(value: str) -> Constraint:
    return Constraint(kind="regex", value=value, backend="outlines")


@pytest.mark.parametrize(
    "constraint", [*map(regex, REGEXES), Constraint(kind="choice", choices=CHOICES, backend="outlines")], ids=str
)
def test_masks_are_those_of_brute_force_and_of_the_other_back_end(
    constraint: Constraint, compiler: Backends, vocab_size: int
) -> None:
    grammar = compiler.compile(constraint)
    assert grammar.backend == "outlines"
    plain = compiler.compile(Constraint(kind=constraint.kind, value=constraint.value, choices=constraint.choices))
    assert plain.backend == "llguidance"
    rng = random.Random(1)
    seen = 0
    for _ in range(4):
        for matcher, tokens, allowed in walk(grammar, vocab_size, rng, 8):
            other = plain.matcher(any_spelling=True)
            for token in tokens:
                other.accept(token)
            assert mask_of(other, vocab_size) == allowed
            assert other.may_stop is matcher.may_stop
            taken = set()
            for token in range(-1, vocab_size + 5):
                twin = matcher.fork()
                try:
                    twin.accept(token)
                except TokenRefused:
                    continue
                taken.add(token)
            assert taken == allowed
            seen += 1
    assert seen > 5


@pytest.mark.parametrize(
    "constraint",
    [
        regex(r"[0-9]+(\.[0-9]+)?"),
        regex("yes|yes please"),
        Constraint(kind="choice", choices=("a", "ab"), backend="outlines"),
    ],
    ids=str,
)
def test_an_index_that_stops_too_early_is_never_served(
    constraint: Constraint, compiler: Backends, vocabulary: Vocabulary
) -> None:
    """Where the library is right after all (it depends on its version), it must allow the longer text too."""
    longest = {"regex": "12.5" if "0-9" in constraint.value else "yes please", "choice": "ab"}[constraint.kind]
    try:
        grammar = compiler.compile(constraint)
    except ConstraintError as error:
        message = error.message
    else:
        message = ""
        matcher = grammar.matcher()
        for token in vocabulary.encode(longest):
            matcher.accept(token)
    assert message == "" or "would not allow all" in message


def test_rollback_retraces_the_path(compiler: Backends, vocabulary: Vocabulary, vocab_size: int) -> None:
    matcher = compiler.compile(regex("[a-f0-9]{2,8}")).matcher()
    first = mask_of(matcher, vocab_size)
    for letter in "abc":
        matcher.accept(vocabulary.encode(letter)[0])
    matcher.rollback(3)
    assert mask_of(matcher, vocab_size) == first


def test_a_back_end_says_what_it_takes(compiler: Backends) -> None:
    for constraint, words in (
        (Constraint(kind="json_object", backend="outlines"), "takes no json_object; it takes regex, choice"),
        (Constraint(kind="regex", value="a", backend="xgrammar"), "takes no regex; it takes json_schema"),
        (regex("a(?=b)"), "look-ahead"),
    ):
        with pytest.raises(ConstraintError, match=words.replace("(", "\\(")) as caught:
            compiler.compile(constraint)
        assert caught.value.param in ("backend", "regex")
