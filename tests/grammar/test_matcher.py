"""The matcher against brute force over the whole vocabulary, and its small promises."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator

import numpy as np
import pytest
import regex

from radixrt.checkpoint import Vocabulary
from radixrt.grammar import Grammar, GrammarDeadEnd, Matcher, TokenRefused
from radixrt.grammar.backends import Backends
from radixrt.grammar.errors import MatcherFailed
from radixrt.params import Constraint

SCHEMA = json.dumps(
    {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 8},
            "kind": {"enum": ["red", "blue", "Orléans"]},
            "age": {"type": "integer", "minimum": 0, "maximum": 130},
            "tags": {"type": "array", "items": {"type": "string", "pattern": "^[a-z]+$"}, "maxItems": 3},
        },
        "required": ["kind", "age"],
    }
)
CHOICES = ("-2", "7", "42", " Mango", "Mango", "yes", "yes please", "東京", "a.b*c", "1 + (2)")
KINDS = {
    "json_schema": Constraint(kind="json_schema", value=SCHEMA),
    "json_schema with whitespace": Constraint(kind="json_schema", value=SCHEMA, any_whitespace=True),
    "json_object": Constraint(kind="json_object"),
    "regex": Constraint(kind="regex", value=r"[a-f0-9]{2,8}|yes( please)?|[0-9]+(\.[0-9]+)?"),
    "choice": Constraint(kind="choice", choices=CHOICES),
    "gbnf": Constraint(kind="grammar", value='root ::= "a" root "b" | "é" [0-9x]+ | "(" root ")"'),
    "lark": Constraint(
        kind="grammar", value='start: "a" start "b" | NUMBER | "yes"i\nNUMBER: /[0-9]+/ ("." /[0-9]+/)?'
    ),
}


def mask_of(matcher: Matcher, size: int) -> set[int]:
    """Allowed ids, with the row in the middle of a batch whose other rows must stay as they are."""
    bitmask = np.full((3, (size + 31) // 32), 0x5A5A5A5A, dtype=np.int32)
    matcher.fill(bitmask, 1)
    assert (bitmask[[0, 2]] == 0x5A5A5A5A).all()
    return set(np.flatnonzero(np.unpackbits(bitmask[1].view(np.uint8), bitorder="little")).tolist())


def walk(
    grammar: Grammar, size: int, rng: random.Random, steps: int, *, any_spelling: bool = False
) -> Iterator[tuple[Matcher, list[int], set[int]]]:
    """A random path of allowed tokens: (matcher, tokens so far, allowed ids) before each token."""
    matcher, tokens = grammar.matcher(any_spelling=any_spelling), []
    for _ in range(steps):
        allowed = mask_of(matcher, size)
        yield matcher, tokens, allowed
        inner = sorted(allowed - {0, 1})
        if not inner or matcher.must_stop:
            return
        tokens.append(rng.choice(inner))
        matcher.accept(tokens[-1])


@pytest.mark.parametrize("name", KINDS)
def test_a_bit_is_set_exactly_where_accept_takes_the_token(name: str, compiler: Backends, vocab_size: int) -> None:
    grammar = compiler.compile(KINDS[name])
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
                    assert mask_of(twin, vocab_size) == allowed, "a refused token changed the state"
                else:
                    taken.add(token)
            assert taken == allowed
            seen += 1
    assert seen > 10


def test_choice_masks_are_the_prefixes_of_the_choices(
    compiler: Backends, vocabulary: Vocabulary, vocab_size: int
) -> None:
    grammar = compiler.compile(KINDS["choice"])
    whole = [choice.encode() for choice in CHOICES]
    rng = random.Random(16)
    ended = set()
    for _ in range(60):
        for matcher, tokens, allowed in walk(grammar, vocab_size, rng, 20, any_spelling=True):
            text = b"".join(map(vocabulary.token_bytes, tokens))
            ordinary = (t for t in range(vocabulary.size) if not vocabulary.is_special(t))
            fits = {t for t in ordinary if any(c.startswith(text + vocabulary.token_bytes(t)) for c in whole)}
            complete = text in whole
            assert allowed == fits | ({0, 1} if complete else set())
            assert matcher.may_stop is complete
            assert matcher.must_stop is (complete and not fits)
            if complete:
                ended.add(text)
    assert ended == set(whole), "every choice was reached, also one that begins another"


def test_regex_masks_are_the_partial_matches(compiler: Backends, vocabulary: Vocabulary, vocab_size: int) -> None:
    pattern = regex.compile(KINDS["regex"].value)
    rng = random.Random(5)
    for _ in range(20):
        for matcher, tokens, allowed in walk(compiler.compile(KINDS["regex"]), vocab_size, rng, 8):
            text = b"".join(map(vocabulary.token_bytes, tokens)).decode()
            fits = set()
            for token in range(4, vocabulary.size):
                piece = vocabulary.token_bytes(token)
                if piece.isascii() and pattern.fullmatch(text + piece.decode(), partial=True):
                    fits.add(token)
            assert allowed - {0, 1} == fits
            assert matcher.may_stop is (pattern.fullmatch(text) is not None) is ({0, 1} <= allowed)


@pytest.mark.parametrize("name", KINDS)
def test_control_tokens_and_ids_beyond_the_tokenizer_are_never_text(
    name: str, compiler: Backends, vocabulary: Vocabulary, vocab_size: int
) -> None:
    rng = random.Random(3)
    for matcher, _, allowed in walk(compiler.compile(KINDS[name]), vocab_size, rng, 25):
        assert not allowed & {2, 3}
        assert max(allowed) < vocabulary.size
        assert ({0, 1} <= allowed) is matcher.may_stop and bool(allowed & {0, 1}) is matcher.may_stop


def test_a_closed_root_leaves_end_tokens_alone(compiler: Backends, vocabulary: Vocabulary, vocab_size: int) -> None:
    for name, text in (
        ("json_object", '{"a":{"b":[1,2,3]}}'),
        ("json_schema with whitespace", '{ "kind" : "red" , "age" : 31 }'),
        ("choice", "yes please"),
        ("regex", "abcdef01"),
    ):
        matcher = compiler.compile(KINDS[name]).matcher()
        for token in vocabulary.encode(text):
            assert not matcher.must_stop
            matcher.accept(token)
        assert matcher.must_stop and matcher.may_stop, name
        assert mask_of(matcher, vocab_size) == {0, 1}
        assert matcher.forced() == []


def test_an_end_token_ends_and_is_taken_back(compiler: Backends, vocabulary: Vocabulary, vocab_size: int) -> None:
    matcher = compiler.compile(KINDS["choice"]).matcher()
    with pytest.raises(TokenRefused, match="before the text is complete"):
        matcher.accept(1)
    tokens = vocabulary.encode("yes")
    for token in tokens:
        matcher.accept(token)
    before = mask_of(matcher, vocab_size)
    matcher.accept(1)
    assert matcher.must_stop and mask_of(matcher, vocab_size) == {0, 1}
    for token in (0, tokens[0]):
        with pytest.raises(TokenRefused, match="after the end"):
            matcher.accept(token)
    matcher.rollback(1)
    assert mask_of(matcher, vocab_size) == before and not matcher.must_stop
    matcher.rollback(len(tokens))
    assert mask_of(matcher, vocab_size) == mask_of(compiler.compile(KINDS["choice"]).matcher(), vocab_size)


@pytest.mark.parametrize("name", KINDS)
def test_a_fork_lives_on_its_own(name: str, compiler: Backends, vocab_size: int) -> None:
    grammar = compiler.compile(KINDS[name])
    steps = 0
    for matcher, tokens, allowed in walk(grammar, vocab_size, random.Random(7), 15):
        twin = matcher.fork()
        twin.rollback(len(tokens))
        assert mask_of(twin, vocab_size) == mask_of(grammar.matcher(), vocab_size)
        for token in tokens:
            twin.accept(token)
        assert mask_of(twin, vocab_size) == allowed == mask_of(matcher, vocab_size)
        with pytest.raises(ValueError, match="cannot take back"):
            twin.rollback(len(tokens) + 1)
        steps += 1
    assert steps > 2


def test_rollback_retraces_a_path_exactly(compiler: Backends, vocabulary: Vocabulary, vocab_size: int) -> None:
    matcher = compiler.compile(KINDS["json_schema"]).matcher()
    masks = []
    for token in vocabulary.encode('{"name":"Ann","kind":"blue","age":31,"tags":["red","blue"]}'):
        masks.append(mask_of(matcher, vocab_size))
        matcher.accept(token)
    assert matcher.must_stop
    for n in (1, 3, 2, 5):
        matcher.rollback(n)
        del masks[len(masks) - n + 1 :]
        assert mask_of(matcher, vocab_size) == masks.pop()


def test_end_tokens_of_one_request(compiler: Backends, vocabulary: Vocabulary, vocab_size: int) -> None:
    """A stop token id that spells text may end the text, but never be a part of it."""
    (comma,) = vocabulary.encode(",")
    grammar = compiler.compile(KINDS["json_object"])
    matcher = grammar.matcher(end_ids=[comma, 3])
    plain = grammar.matcher()
    for token in vocabulary.encode('{"a":1'):
        matcher.accept(token)
        plain.accept(token)
    assert comma in mask_of(plain, vocab_size) and comma not in mask_of(matcher, vocab_size)
    with pytest.raises(TokenRefused):
        matcher.accept(comma)
    matcher.accept(vocabulary.encode("}")[0])
    assert mask_of(matcher, vocab_size) == {0, 1, 3, comma}
    matcher.fork().accept(comma)


def test_forced_tokens_follow_and_are_forced(compiler: Backends, vocabulary: Vocabulary, vocab_size: int) -> None:
    text = '{"measurement":12}'
    source = '{"properties":{"measurement":{"const":12}},"required":["measurement"],"additionalProperties":false,'
    matcher = compiler.compile(Constraint(kind="json_schema", value=source + '"type":"object"}')).matcher()
    forced = matcher.forced()
    assert forced and text.encode().startswith(b"".join(map(vocabulary.token_bytes, forced)))
    for token in forced:
        assert token in mask_of(matcher, vocab_size)
        matcher.accept(token)


def test_an_empty_text_may_be_all_there_is(compiler: Backends, vocab_size: int) -> None:
    matcher = compiler.compile(Constraint(kind="regex", value="a*")).matcher()
    assert matcher.may_stop and not matcher.must_stop
    assert {0, 1} < mask_of(matcher, vocab_size)
    assert mask_of(compiler.compile(Constraint(kind="regex", value="^$")).matcher(), vocab_size) == {0, 1}


def test_a_dead_end_is_a_typed_error_and_stays_one(compiler: Backends, vocabulary: Vocabulary, vocab_size: int) -> None:
    """The only token that could go on is taken away by the request, so nothing can follow."""
    (x,) = vocabulary.encode("x")
    matcher = compiler.compile(Constraint(kind="regex", value="ax+b?c")).matcher(end_ids=[x])
    matcher.accept(vocabulary.encode("a")[0])
    bitmask = np.full((1, (vocab_size + 31) // 32), -1, dtype=np.int32)
    for _ in range(2):
        with pytest.raises(GrammarDeadEnd) as caught:
            matcher.fill(bitmask, 0)
        assert not bitmask.any(), "the row must not allow anything"
    assert caught.value.info().kind == "ConstraintError" and caught.value.info().code == "constraint_dead_end"


def test_a_back_end_that_gives_up_never_passes_unnoticed(compiler: Backends, vocabulary: Vocabulary) -> None:
    from radixrt.grammar import Limits

    tight = Backends(
        vocabulary.tokenizer_json(),
        size=vocabulary.size,
        eos_ids=vocabulary.eos_ids,
        vocab_size=vocabulary.size,
        limits=Limits(max_lexer_states=300),
    )
    matcher = tight.compile(Constraint(kind="regex", value="(a|b)*a(a|b){12}")).matcher()
    bitmask = np.zeros((1, (vocabulary.size + 31) // 32), dtype=np.int32)
    rng = random.Random(1)
    pair = [vocabulary.encode("a")[0], vocabulary.encode("b")[0]]

    def run() -> None:
        for _ in range(4000):
            matcher.fill(bitmask, 0)
            matcher.accept(rng.choice(pair))

    with pytest.raises(MatcherFailed, match="too many ways") as caught:
        run()
    assert caught.value.info().kind == "ConstraintError", "whoever sent it must change it"
    assert caught.value.info().code == "constraint_too_complex" and "\n" not in caught.value.message
    for use in (lambda: matcher.fill(bitmask, 0), lambda: matcher.accept(pair[0]), matcher.fork, matcher.forced):
        with pytest.raises(MatcherFailed):
            use()
    assert not matcher.may_stop and not matcher.must_stop


def test_a_step_that_costs_too_much_fails_its_row(vocabulary: Vocabulary) -> None:
    """An ambiguous grammar costs more with every token; the budget is set so low that the second step passes it."""
    from radixrt.grammar import Limits

    patient = Limits()
    tables = Backends(
        vocabulary.tokenizer_json(),
        size=vocabulary.size,
        eos_ids=vocabulary.eos_ids,
        vocab_size=vocabulary.size,
        limits=patient,
    )
    matcher = tables.compile(Constraint(kind="grammar", value='root ::= s\ns ::= s s | "a" | "aa" | ""')).matcher()
    (a,) = vocabulary.encode("a")
    matcher.accept(a)
    matcher._limits = Limits(max_step_s=0.0)
    bitmask = np.zeros((1, (vocabulary.size + 31) // 32), dtype=np.int32)
    with pytest.raises(MatcherFailed, match=r"one step took .* the limit is 0 s"):
        matcher.fill(bitmask, 0)
    assert not bitmask.any()
    with pytest.raises(MatcherFailed):
        matcher.accept(a)


def test_a_bitmask_of_the_wrong_shape_is_refused(compiler: Backends, vocab_size: int) -> None:
    matcher = compiler.compile(KINDS["json_object"]).matcher()
    for wrong in (np.zeros((1, 3), np.int32), np.zeros((1, (vocab_size + 31) // 32), np.int64)):
        with pytest.raises(ValueError, match="bitmask"):
            matcher.fill(wrong, 0)


def test_logits_narrower_than_the_tokenizer(vocabulary: Vocabulary) -> None:
    from radixrt.grammar import compile_constraint

    narrow, anything = vocabulary.size - 37, Constraint(kind="regex", value="(?s:.)*")
    grammar = compile_constraint(anything, vocabulary, narrow)
    wide = mask_of(compile_constraint(anything, vocabulary, vocabulary.size).matcher(), vocabulary.size)
    assert len(wide) > 300 and max(wide) >= narrow
    assert mask_of(grammar.matcher(), narrow) == {token for token in wide if token < narrow}
    with pytest.raises(TokenRefused):
        grammar.matcher().accept(narrow)


def test_the_rest_of_a_choice_and_of_a_stretch_of_json_is_required(compiler: Backends, vocabulary: Vocabulary) -> None:
    """`required` is the one bit of the mask, and none is asked for where texts go on differently."""
    schema = json.dumps({"properties": {"name": {"type": "string"}, "ok": {"type": "boolean"}},
                         "required": ["name", "ok"], "additionalProperties": False})  # fmt: skip
    texts = {"json_schema": '{"name":"fox","ok":true}', "choice": "quick brown"}
    free = {"json_schema": {'"fox"', "true"}, "choice": {"quick"}}
    for constraint in (
        Constraint(kind="json_schema", value=schema),
        Constraint(kind="choice", choices=("quick brown", "the fox")),
    ):
        matcher, text, chosen = compiler.compile(constraint).matcher(), texts[constraint.kind], 0
        written = ""
        while written != text:
            token = matcher.required()
            mask = mask_of(matcher, compiler.tables.vocab_size)
            if token is None:
                assert len(mask) > 1
                token = next(t for t in vocabulary.encode(text[len(written) :]) if t in mask)
                chosen += 1
            else:
                assert mask == {token}
            matcher.accept(token)
            written += vocabulary.token_bytes(token).decode()
            assert text.startswith(written)
        assert matcher.must_stop
        assert chosen <= sum(len(part) for part in free[constraint.kind])


def test_json_that_is_certain_is_spelt_as_the_tokenizer_does(compiler: Backends, vocabulary: Vocabulary) -> None:
    """Forced stretches allow one token each, the tokenizer's own; with any spelling they allow more."""
    schema = {"properties": {"name": {"const": "the quick brown fox"}}, "required": ["name"]}
    text = json.dumps({"type": "object", "additionalProperties": False, **schema})
    grammar = compiler.compile(Constraint(kind="json_schema", value=text))
    mask = np.zeros((2, -(-compiler.tables.vocab_size // 32)), dtype=np.int32)
    strict, loose = grammar.matcher(), grammar.matcher(any_spelling=True)
    wider = 0
    for token in vocabulary.encode('{"name":"the quick brown fox"}'):
        strict.fill(mask, 0)
        loose.fill(mask, 1)
        assert not (mask[0] & ~mask[1]).any()
        allowed, spelt = (
            np.flatnonzero(np.unpackbits(line.view(np.uint8), bitorder="little")).tolist() for line in mask
        )
        assert token in allowed
        if strict.forced():
            assert allowed == strict.forced()[:1] == [token]
            wider += len(spelt) > 1
            for other in [t for t in spelt if t != token][:3]:
                with pytest.raises(TokenRefused):
                    strict.accept(other)
        strict.accept(token)
        loose.accept(token)
    assert strict.must_stop
    assert loose.must_stop
    assert wider > 2


@pytest.mark.parametrize("kind", KINDS)
def test_what_the_first_row_finds_at_its_start_holds_for_those_after_it(
    kind: str, compiler: Backends, vocab_size: int
) -> None:
    """Each row of a grammar begins as the only one of another would, in both spellings, also with ends of its own,
    after a way back to its beginning, and as a twin."""
    shared = compiler.compile(KINDS[kind])
    for any_spelling in (False, True, False):
        for ends in ((), (7,), ()):
            alone = compiler.compile(KINDS[kind]).matcher(ends, any_spelling=any_spelling)
            begun = mask_of(alone, vocab_size)
            for asked_first in (False, True):
                row = shared.matcher(ends, any_spelling=any_spelling)
                if asked_first:
                    assert (row.required(), row.forced()) == (alone.required(), alone.forced())
                assert mask_of(row, vocab_size) == begun
                token = min(begun)
                row.accept(token)
                behind = mask_of(row, vocab_size) if token > 1 else set()
                row.rollback(1)
                assert mask_of(row, vocab_size) == mask_of(row.fork(), vocab_size) == begun
                if token > 1:
                    twin = alone.fork()
                    twin.accept(token)
                    assert mask_of(twin, vocab_size) == behind
