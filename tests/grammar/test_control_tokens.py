"""Calls that a control token opens: free text, the token where it may be, then calls and nothing else."""

from __future__ import annotations

import random
import select
from collections.abc import Iterable

import pytest
from msgspec import structs
from test_matcher import mask_of
from tokenizers import AddedToken, Tokenizer

from radixrt.calls import Calls
from radixrt.checkpoint import Vocabulary
from radixrt.dialects import DIALECTS, CallParser, CallStart, Function, formats
from radixrt.errors import ConstraintError, InvalidRequest
from radixrt.grammar import Grammar, GrammarError, Limits, Matcher, TokenRefused
from radixrt.grammar.backends import Backends
from radixrt.grammar.service import CompileService
from radixrt.params import Constraint

OPENER = "[TOOL_CALLS]"
BOOK = {
    "properties": {"room": {"type": "object", "properties": {"floor": {"type": "integer"}}, "required": ["floor"]}},
    "required": ["room"],
}
FUNCTIONS = (Function.of("book", BOOK, 3), Function.of("now", {"properties": {"zone": {"type": "string"}}}, 5))
NOW = '{"name": "now", "arguments": {}}'
TWO = '{"name": "book", "arguments": {"room": {"floor": 2}}}'


@pytest.fixture(scope="module")
def mistral(vocabulary: Vocabulary) -> Vocabulary:
    """The room's vocabulary with Mistral's control token, and plain tokens that spell its parts."""
    tokenizer = Tokenizer.from_str(vocabulary.tokenizer_json())
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in ("[TOOL", "_CALLS]", "S] [", "LLS][{")])
    tokenizer.add_special_tokens([AddedToken(OPENER, special=True, normalized=False)])
    return Vocabulary(tokenizer.to_str(), bos_id=None, eos_ids=[0, 1], adds_bos=False)


@pytest.fixture(scope="module")
def size(mistral: Vocabulary) -> int:
    return mistral.size + 45


@pytest.fixture(scope="module")
def opener(mistral: Vocabulary) -> int:
    return next(token for token in range(mistral.size) if mistral.decode([token], skip_special_tokens=False) == OPENER)


@pytest.fixture(scope="module")
def backends(mistral: Vocabulary, size: int) -> Backends:
    return Backends(
        mistral.tokenizer_json(), size=mistral.size, eos_ids=mistral.eos_ids, vocab_size=size, limits=Limits()
    )


def calls(many: bool) -> Constraint:
    return Calls(DIALECTS["mistral"], FUNCTIONS, forced=False, many=many, controls=(OPENER,)).constraint()


@pytest.fixture(scope="module")
def several(backends: Backends) -> Grammar:
    return backends.compile(calls(many=True))


def spelt(backends: Backends, text: str) -> list[int]:
    """A text byte by byte: one of its spellings."""
    of_byte = {text: token for token, text in enumerate(backends.tables.bytes) if len(text) == 1}
    return [of_byte[bytes([byte])] for byte in text.encode()]


def takes(grammar: Grammar, tokens: Iterable[int], *, whole: bool = True) -> bool:
    matcher = grammar.matcher(any_spelling=True)
    try:
        for token in tokens:
            matcher.accept(token)
    except GrammarError:
        return False
    return matcher.may_stop or not whole


def taken_by(matcher: Matcher, size: int) -> set[int]:
    """Allowed tokens by brute force, each taken back again by a rollback of a fork."""
    taken, twin = set(), matcher.fork()
    for token in range(size):
        try:
            twin.accept(token)
        except TokenRefused:
            continue
        taken.add(token)
        twin.rollback(1)
    return taken


def test_free_text_may_end_or_be_followed_by_right_calls(backends: Backends, several: Grammar, opener: int) -> None:
    def text(before: str, behind: str | None = None) -> list[int]:
        return spelt(backends, before) + ([] if behind is None else [opener, *spelt(backends, behind)])

    one = backends.compile(calls(many=False))
    for grammar in (one, several):
        for good in (
            text(""),
            text('Hi {"name": "rm"} [TOOL_CALLS', None),
            text("", f"[{NOW}]"),
            text("[TOOL", f"[{TWO}]"),
        ):
            assert takes(grammar, good)
        for bad in (
            text("", ""), text("", "["), text("", "[]"), text("", f" [{NOW}]"), text("", f"[{NOW}] "), text("", NOW),
            text("", '[{"name": "rm", "arguments": {}}]'), text("", f"[{NOW}"), text("", f"[{NOW},{TWO}]"),
            text("", '[{"name": "book", "arguments": {"room": {"floor": "2"}}}]'),
            text("", '[{"name": "now", "arguments": {"x": 1}}]'), [*text("", f"[{NOW}]"), opener], [opener, opener],
        ):  # fmt: skip
            assert not takes(grammar, bad)
    assert takes(several, text("Hm", f"[{NOW}, {TWO}, {NOW}]")) and not takes(one, text("Hm", f"[{NOW}, {TWO}]"))
    # A call that is not complete is a beginning all the same.
    assert takes(several, text("Hm", f"[{NOW}, {TWO[:20]}"), whole=False)


def test_no_key_comes_twice_behind_the_token(backends: Backends, opener: int) -> None:
    labels = {"type": "object", "additionalProperties": {"type": "integer"}}
    functions = (Function.of("label", {"properties": {"with": labels}}, 3),)
    call = Calls(DIALECTS["mistral"], functions, forced=False, many=True, controls=(OPENER,)).constraint()
    grammar = backends.compile(call)
    for keys, taken in (("ab", True), ("aa", False), ("aba", False)):
        pairs = ", ".join(f'"{key}": {i}' for i, key in enumerate(keys))
        one = f'{{"name": "label", "arguments": {{"with": {{{pairs}}}}}}}'
        again = '{"name": "label", "arguments": {"with": {"a": 1}}}'
        for written in (f"[{one}]", f"[{again}, {one}]"):
            tokens = [*spelt(backends, '{"a": 1, "a": 1}'), opener, *spelt(backends, written)]
            assert takes(grammar, tokens) is taken, written


def test_free_text_does_not_spell_the_opener(backends: Backends, several: Grammar, opener: int) -> None:
    """Whoever reads the text would take it for one, with whatever stands behind."""
    assert not takes(several, spelt(backends, f"a {OPENER}"), whole=False)
    parts = {text: token for token, text in enumerate(backends.tables.bytes)}
    assert takes(several, [parts[b"[TOOL"]]) and not takes(several, [parts[b"[TOOL"], parts[b"_CALLS]"]])
    assert not takes(several, [*spelt(backends, "[TOOL_CA"), parts[b"LLS][{"]])
    # In an argument it is a string like any other.
    inside = f'[{{"name": "now", "arguments": {{"zone": "{OPENER}"}}}}]'
    assert takes(several, [opener, *spelt(backends, inside)])


@pytest.mark.parametrize("any_spelling", [False, True])
def test_masks_are_those_of_brute_force(
    backends: Backends, several: Grammar, size: int, opener: int, any_spelling: bool
) -> None:
    """On random paths through text and calls: bit set == accepted, forks and rollbacks see the same masks."""
    rng = random.Random(7)
    seen_free = seen_inside = ends = 0
    for prefix in ("", "Hm [TOOL_CALLS", "[TOOL_C", f"{OPENER}", f"a{OPENER}", "[TOOL_CALLS"):
        matcher = several.matcher(any_spelling=any_spelling)
        for token in spelt(backends, prefix.removesuffix(OPENER)):
            matcher.accept(token)
        if prefix.endswith(OPENER):
            matcher.accept(opener)
        inside, masks, steps = prefix.endswith(OPENER), [], 0
        while steps < 30 and not matcher.must_stop:
            allowed = mask_of(matcher, size)
            assert taken_by(matcher, size) == allowed
            assert (opener in allowed) is not inside
            assert not allowed & {2, 3} and max(allowed) <= opener, (
                "no other control token, nothing beyond the vocabulary"
            )
            assert (allowed & {0, 1} == {0, 1}) is matcher.may_stop
            assert matcher.may_stop or inside, "free text may end anywhere"
            if inside and not any_spelling and (forced := matcher.forced()):
                assert allowed == {forced[0]} or matcher.may_stop
            masks.append(allowed)
            choices = sorted(allowed - {0, 1, opener})
            token = opener if not inside and steps == 4 else rng.choice(choices)
            matcher.accept(token)
            inside |= token == opener
            steps += 1
            seen_free, seen_inside = seen_free + (not inside), seen_inside + inside
        ends += matcher.must_stop
        for back in (1, 2, steps):
            twin = matcher.fork()
            twin.rollback(back)
            assert mask_of(twin, size) == masks[len(masks) - back]
        twin = matcher.fork()
        matcher.rollback(steps)
        assert mask_of(matcher, size) == masks[0]
        with pytest.raises(ValueError, match="take back"):
            twin.rollback(1000)
    assert seen_free > 8 and seen_inside > 60


def test_what_ends_the_row(backends: Backends, several: Grammar, opener: int) -> None:
    matcher = several.matcher()
    matcher.accept(0)
    assert matcher.must_stop
    matcher.rollback(1)
    for token in (opener, *spelt(backends, "")):
        matcher.accept(token)
    assert not matcher.may_stop and not matcher.must_stop
    whole = several.matcher(any_spelling=True)
    for token in (opener, *spelt(backends, f"[{NOW}]")):
        whole.accept(token)
    assert whole.must_stop
    whole.rollback(1)
    assert not whole.may_stop


def test_the_models_own_spelling(mistral: Vocabulary, several: Grammar, opener: int) -> None:
    """Behind the token the text is spelt as the tokenizer does it, whatever stood before."""
    matcher, expected = several.matcher(), mistral.encode('[{"name": "now"')
    for token in [*mistral.encode("Hello"), opener]:
        matcher.accept(token)
    assert matcher.forced() == expected[: len(matcher.forced())] and matcher.forced()


def test_a_request_may_end_at_the_opener(several: Grammar, opener: int, size: int) -> None:
    matcher = several.matcher([opener])
    assert opener in mask_of(matcher, size)
    matcher.accept(opener)
    assert matcher.must_stop


def test_what_was_generated_is_read_back(backends: Backends, several: Grammar, opener: int, size: int) -> None:
    """Whatever is sampled, the parser finds no call in free text, and behind the opener the names of functions."""
    rng, found = random.Random(11), 0
    for _ in range(20):
        matcher, text = several.matcher(), b""
        for step in range(160):
            if matcher.must_stop:
                break
            allowed = mask_of(matcher, size) - {0, 1}
            closing = [t for t in allowed if backends.tables.bytes[t][:1] in (b'"', b"}", b"]")]
            token = opener if opener in allowed and step == 5 else rng.choice(closing or sorted(allowed - {opener}))
            matcher.accept(token)
            text += OPENER.encode() if token == opener else backends.tables.bytes[token]
        shown = text.decode(errors="replace")
        parser = CallParser(DIALECTS["mistral"], {"book", "now"})
        events = [*parser.push(shown), *parser.finish(cut=not matcher.must_stop)]
        names = [event.name for event in events if isinstance(event, CallStart)]
        found += bool(names)
        assert set(names) <= {"book", "now"} and (names or not matcher.must_stop), shown
    assert found > 5


def test_the_service_tries_the_inner_grammar_out(mistral: Vocabulary, size: int) -> None:
    bad = Function.of("f", {"properties": {"a": {"type": "string", "pattern": "(?=x)"}}}, 7)
    asked = Calls(DIALECTS["mistral"], (FUNCTIONS[0], bad), forced=False, many=True, controls=(OPENER,))
    service = CompileService(mistral, size)
    try:
        results = {}
        for constraint in (asked.constraint(), calls(many=True)):
            results[constraint] = service.request(constraint)
        waiting = set(results)
        while waiting:
            select.select([service.fileno()], [], [], 30)
            done = service.completed()
            assert done or service.worker_pids()
            waiting -= set(done)
        refused, good = service.request(asked.constraint()), service.request(calls(many=True))
    finally:
        service.close()
    assert isinstance(refused, ConstraintError)
    assert asked.place(refused.param) == ("tools[7].function.parameters", "/properties/a/pattern")
    assert good is not None and not isinstance(good, ConstraintError) and good.matcher().may_stop


def test_what_cannot_be_a_control_token(backends: Backends, compiler: Backends) -> None:
    tag = calls(many=True).value
    for other in ("<|end|>", "no token", "{"):
        with pytest.raises(ConstraintError, match="no control token") as caught:
            backends.compile(Constraint(kind="structural_tag", value=tag, spaced=True, controls=(other,)))
        assert caught.value.param == "controls"
    with pytest.raises(ConstraintError, match="no control token"):
        compiler.compile(calls(many=True))
    with pytest.raises(InvalidRequest, match="controls"):
        Constraint(kind="regex", value="a", controls=(OPENER,))
    with pytest.raises(ConstraintError, match="writes no control tokens") as refused:
        backends.compile(structs.replace(calls(many=True), backend="xgrammar"))
    assert refused.value.param == "backend"
    # A tag whose words are no control tokens behind free text is another back end's; a trigger is none.
    plain = formats.source(
        formats.behind_text("x", formats.separated([formats.tag("<", {"type": "integer"}, ">")], "", many=False))
    )
    assert backends.compile(Constraint(kind="structural_tag", value=plain)).backend == "xgrammar"
    triggered = formats.source(formats.triggered([OPENER], [formats.tag(OPENER, {"type": "integer"}, ">")], many=True))
    with pytest.raises(ConstraintError, match="trigger"):
        backends.compile(Constraint(kind="structural_tag", value=triggered, controls=(OPENER,)))


def test_a_list_between_two_texts_is_for_anybody(backends: Backends) -> None:
    tags = formats.separated([formats.tag("", {"type": "object"}, "")], ";", many=True)
    grammar = backends.compile(
        Constraint(kind="structural_tag", value=formats.source(formats.enclosed("<<", tags, ">>")))
    )
    assert takes(grammar, spelt(backends, "<<{};{}>>")) and not takes(grammar, spelt(backends, "<<{};{}"))
    for form, place in (
        ({"type": "sequence", "elements": []}, "/format/elements"),
        (formats.enclosed("a", {**tags, "more": 1}, "b"), "/format/elements/1/more"),
        ({"type": "sequence", "elements": [{"type": "const_string", "value": 3}, tags]}, "/format/elements"),
    ):
        with pytest.raises(ConstraintError) as caught:
            backends.compile(Constraint(kind="structural_tag", value=formats.source(form), backend="llguidance"))
        assert caught.value.param == place
    number = formats.separated([formats.tag("", {"type": "integer"}, "")], ";", many=False)
    with pytest.raises(ConstraintError, match="number"):
        backends.compile(
            Constraint(
                kind="structural_tag", value=formats.source(formats.enclosed("", number, "1")), backend="llguidance"
            )
        )
