"""The back end's idea of the real model's tokens is ours, and its masks hold over all 49,152 of them."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

from radixrt.checkpoint import Vocabulary, open_checkpoint
from radixrt.grammar import Limits, Matcher, TokenRefused
from radixrt.grammar.backends import Backends
from radixrt.grammar.errors import TooComplex
from radixrt.params import Constraint

WIDTH = 49_216


@pytest.fixture(scope="module")
def real(smollm2_path: Path) -> Vocabulary:
    return open_checkpoint(smollm2_path).vocabulary()


@pytest.fixture(scope="module")
def real_compiler(real: Vocabulary) -> Backends:
    return Backends(real.tokenizer_json(), size=real.size, eos_ids=real.eos_ids, vocab_size=WIDTH, limits=Limits())


def allowed_ids(matcher: object) -> set[int]:
    bitmask = np.zeros((1, (WIDTH + 31) // 32), dtype=np.int32)
    matcher.fill(bitmask, 0)  # type: ignore[attr-defined]
    return set(np.flatnonzero(np.unpackbits(bitmask[0].view(np.uint8), bitorder="little")).tolist())


def test_every_token_has_the_same_bytes_on_both_sides(real: Vocabulary, real_compiler: Backends) -> None:
    ordinary = [token for token in range(real.size) if not real.is_special(token)]
    assert len(ordinary) > 49_000
    assert [t for t in ordinary if real_compiler.tables.bytes[t] != real.token_bytes(t)] == []
    anything = real_compiler.compile(Constraint(kind="regex", value="(?s:.*)"))
    allowed = allowed_ids(anything.matcher())
    assert not {t for t in allowed if real.is_special(t)} - set(real.eos_ids)
    assert max(allowed) < real.size and set(real.eos_ids) <= allowed


@pytest.mark.parametrize(
    "constraint",
    [
        Constraint(
            kind="json_schema", value='{"type":"object","properties":{"n":{"type":"integer"}},"required":["n"]}'
        ),
        Constraint(kind="choice", choices=("good", "bad", " Mango", "Mango tea", "Orléans")),
        Constraint(kind="grammar", value='root ::= "-"? [0-9]+ ("." [0-9]+)?'),
    ],
    ids=lambda constraint: constraint.kind,
)
def test_masks_hold_over_the_whole_vocabulary(constraint: Constraint, real_compiler: Backends) -> None:
    rng = random.Random(1)
    matcher = real_compiler.compile(constraint).matcher()
    for _ in range(3):
        allowed = allowed_ids(matcher)
        taken = set()
        for token in range(WIDTH + 10):
            try:
                matcher.accept(token)
            except TokenRefused:
                continue
            taken.add(token)
            matcher.rollback(1)
        assert taken == allowed
        inner = sorted(allowed - set(real_compiler.tables.end_ids))
        if not inner:
            break
        matcher.accept(rng.choice(inner))


def test_what_cannot_be_followed_says_so_behind_a_shared_first_mask(real: Vocabulary, real_compiler: Backends) -> None:
    """One row makes more states than there may be; the next, which takes the first mask from it, is told the same."""
    grammar = real_compiler.compile(Constraint(kind="regex", value="((a{1,900}){1,900}){1,900}"))
    (letter,) = real.encode("a")
    first, second = grammar.matcher(), grammar.matcher()

    def write(count: int) -> None:
        for _ in range(count):
            assert letter in allowed_ids(first)
            first.accept(letter)

    with pytest.raises(TooComplex):
        write(200)
    assert letter in allowed_ids(second)
    with pytest.raises(TooComplex):
        second.accept(letter)


def test_what_another_row_has_used_up_is_told_in_the_middle_of_a_row(real: Vocabulary, real_compiler: Backends) -> None:
    grammar = real_compiler.compile(Constraint(kind="regex", value="((a{1,901}){1,901}){1,901}"))
    (letter,) = real.encode("a")
    first, second = grammar.matcher(), grammar.matcher()
    second.accept(letter)
    assert letter in allowed_ids(second)

    def write(matcher: Matcher, count: int) -> None:
        for _ in range(count):
            matcher.accept(letter)
            allowed_ids(matcher)

    with pytest.raises(TooComplex):
        write(first, 200)
    with pytest.raises(TooComplex):
        write(second, 200)
