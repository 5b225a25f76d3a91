"""The back end's idea of the real model's tokens is ours, and its masks hold over all 49,152 of them."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

from radixrt.checkpoint import Vocabulary, open_checkpoint
from radixrt.grammar import Limits, Matcher, TokenRefused, stores
from radixrt.grammar.backends import Backends
from radixrt.grammar.errors import TooComplex
from radixrt.grammar.stores import Store
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


def writes(matcher: Matcher, token: int, most: int) -> int:
    """How often a token can be written before the constraint takes too much."""
    for count in range(most):
        try:
            assert token in allowed_ids(matcher)
            matcher.accept(token)
        except TooComplex:
            return count
    return most


def test_a_row_gets_as_far_as_it_would_alone_whatever_others_of_its_constraint_used_up(
    real: Vocabulary, real_compiler: Backends
) -> None:
    """The library's matchers of one grammar share the states that they may build."""
    constraint = Constraint(kind="regex", value="((a{1,900}){1,900}){1,900}")
    (letter,) = real.encode("a")
    alone = writes(real_compiler.compile(constraint).matcher(), letter, 100)
    assert 5 < alone < 100, "the states are used up"
    grammar = real_compiler.compile(constraint)
    before, beside, short = grammar.matcher(), grammar.matcher(), grammar.matcher()
    assert writes(beside, letter, 5) == writes(short, letter, 2 * alone // 3) - 2 * alone // 3 + 5 == 5
    assert writes(before, letter, 100) == alone
    assert writes(beside, letter, alone - 5) == alone - 5, "what it had written holds"
    assert writes(grammar.matcher(), letter, alone) == alone, "warm as cold"


def test_a_grammar_tells_what_its_rows_made_it_hold(real: Vocabulary, real_compiler: Backends) -> None:
    plain = real_compiler.compile(Constraint(kind="regex", value="[a-z]*"))
    heavy = real_compiler.compile(Constraint(kind="regex", value="(.*a.{30}|.*b.{20}c)+"))
    (letter,) = real.encode("a")
    for grammar in (plain, heavy):
        writes(grammar.matcher(), letter, 40)
    assert heavy.grown_bytes > 5 * plain.grown_bytes and heavy.grown_bytes > 2**20


def test_many_rows_that_use_up_what_they_have_alone_are_no_work_for_each(
    real: Vocabulary, real_compiler: Backends, monkeypatch: pytest.MonkeyPatch
) -> None:
    grammar = real_compiler.compile(Constraint(kind="regex", value="((a{1,901}){1,900}){1,900}"))
    made: list[Store] = []
    monkeypatch.setattr(stores, "Store", lambda start: made.append(Store(start)) or made[-1])
    monkeypatch.setattr(stores, "WASTE_S", 0.0)
    (letter,) = real.encode("a")
    rows = [grammar.matcher() for _ in range(64)]
    assert all(writes(row, letter, 100) < 100 for row in rows) and not made
