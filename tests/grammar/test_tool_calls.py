"""What the dialects ask for, enforced: calls of each family, forced, free, and behind a thought."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from test_matcher import mask_of

from radixrt.calls import Calls
from radixrt.dialects import DIALECTS, Function, Marks, formats
from radixrt.errors import ConstraintError
from radixrt.grammar import Grammar, TokenRefused
from radixrt.grammar.backends import Backends
from radixrt.params import Constraint
from radixrt.server.openai_thinking import behind, behind_own

Accepts = Callable[[Grammar, str], bool]
BOOK = {
    "properties": {"room": {"type": "object", "properties": {"floor": {"type": "integer"}}, "required": ["floor"]}},
    "required": ["room"],
}
FUNCTIONS = (Function.of("book", BOOK, 3), Function.of("now", None, 5))
UNIQUE = '{"type":"array","items":{"type":"integer"},"uniqueItems":true}'
INTEGER = {"begin": "<f>", "content": {"type": "json_schema", "json_schema": {"type": "integer"}}, "end": "</f>"}
ONE_TAG = formats.source(formats.triggered(["<f>"], [INTEGER], many=False))
MARKS = Marks("<think>", "</think>")


def calls(dialect: str, *, forced: bool, many: bool = False) -> Calls:
    return Calls(DIALECTS[dialect], FUNCTIONS, forced=forced, many=many)


def compiled(compiler: Backends, constraint: Constraint | None) -> Grammar:
    assert constraint is not None
    return compiler.compile(constraint)


def hermes(name: str, arguments: str) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


GOOD = {
    "hermes": [
        hermes("book", '{"room": {"floor": 2}}'),
        hermes("book", '{"room": {"floor": -1}}'),
        hermes("now", "{}"),
    ],
    "llama": ['{"name": "now", "parameters": {}}', '{"name": "book", "parameters": {"room": {"floor": 2}}}'],
    "mistral": ['[TOOL_CALLS][{"name": "now", "arguments": {}}]'],
    "mistral-args": ["[TOOL_CALLS]now[ARGS]{}", '[TOOL_CALLS]book[ARGS]{"room": {"floor": 2}}'],
}
BAD = {
    "hermes": [
        hermes("rm", "{}"), hermes("now", "{ }"), hermes("book", '{"room":{"floor":2}}'),
        hermes("now", '{"x": 1}'), hermes("book", "{}"), hermes("book", '{"room": {"floor": "2"}}'),
        hermes("book", '{"room": {"floor": 2, "name": "x"}}'), '<tool_call>{"name":"now","arguments":{}}</tool_call>',
    ],
    "llama": ['{"name": "now", "parameters": {"x": 1}}', '{"name":"now","parameters":[]}'],
    "mistral": ['[TOOL_CALLS][{"name": "rm", "arguments": {}}]', "[TOOL_CALLS] []"],
    "mistral-args": ["[TOOL_CALLS]rm[ARGS]{}", '[TOOL_CALLS]now[ARGS]{"x": 1}', '[TOOL_CALLS][{"name": "now"}]'],
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(DIALECTS))
def test_calls_are_right_or_impossible(name: str, compiler: Backends, accepts: Accepts) -> None:
    forced = compiled(compiler, calls(name, forced=True).constraint())
    free = compiled(compiler, calls(name, forced=False, many=True).constraint())
    for text in GOOD[name]:
        assert accepts(forced, text) and accepts(free, text), text
        assert not accepts(forced, f"Well: {text}") and not accepts(forced, text[:-1])
    for text in BAD[name]:
        assert not accepts(forced, text) and not accepts(free, text), text
    assert accepts(free, 'Hello {"name": "Bob"} <tool [TOOL')
    assert accepts(free, "Hello.\n") and not accepts(forced, "Hello.\n")


def test_no_key_is_invented_behind_a_reference(compiler: Backends, accepts: Accepts) -> None:
    target = {"type": "object", "properties": {"zip": {"type": "integer"}}, "required": ["zip"]}
    maybe = {"anyOf": [{"$ref": "#/$defs/Addr"}, {"type": "null"}]}
    given = {
        "properties": {"to": {"$ref": "#/$defs/Addr"}, "cc": maybe, "more": {"items": maybe}},
        "required": ["to", "cc", "more"], "$defs": {"Addr": target},
    }  # fmt: skip
    asked = Calls(DIALECTS["hermes"], (Function.of("send", given),), forced=True, many=False)
    grammar = compiled(compiler, asked.constraint())
    good, bad = '{"zip": 1}', '{"zip": 1, "x": 2}'
    assert accepts(grammar, hermes("send", f'{{"to": {good}, "cc": {good}, "more": [null, {good}]}}'))
    for to, cc, more in ((bad, good, good), (good, bad, good), (good, good, bad)):
        assert not accepts(grammar, hermes("send", f'{{"to": {to}, "cc": {cc}, "more": [{more}]}}'))


def test_several_calls(compiler: Backends, accepts: Accepts) -> None:
    two = f"{hermes('now', '{}')}\n{hermes('now', '{}')}"
    assert accepts(compiled(compiler, calls("hermes", forced=True, many=True).constraint()), two)
    assert not accepts(compiled(compiler, calls("hermes", forced=True).constraint()), two)
    assert accepts(compiled(compiler, calls("hermes", forced=False, many=True).constraint()), f"a {two} b")
    assert not accepts(compiled(compiler, calls("hermes", forced=False).constraint()), two)


def test_an_answer_of_llama_may_be_json_of_another_kind(compiler: Backends, accepts: Accepts) -> None:
    free = compiled(compiler, calls("llama", forced=False).constraint())
    assert accepts(free, '{"name": "Bob", "age": 3}') and accepts(free, '{"name": "now"}')


@pytest.mark.parametrize(
    ("name", "opening", "rest"),
    [
        ("hermes", '<tool_call>\n{"name":', ' "now", "arguments": {}}\n</tool_call>'),
        ("llama", '{"name":', ' "now", "parameters": {}}'),
        ("mistral", '[TOOL_CALLS][{"name":', ' "now", "arguments": {}}]'),
    ],
)
def test_what_every_call_begins_with_is_the_prompt_s(
    name: str, opening: str, rest: str, compiler: Backends, accepts: Accepts
) -> None:
    asked = calls(name, forced=True)
    assert asked.opening == opening and accepts(compiled(compiler, asked.constraint(opening)), rest)
    one = Calls(DIALECTS[name], FUNCTIONS[1:], forced=True, many=False)
    begin, arguments = (opening + rest).split(" {}")
    assert one.opening == begin and accepts(compiled(compiler, one.constraint(begin)), f" {{}}{arguments}")
    assert calls("hermes", forced=True, many=True).opening == "" == calls(name, forced=False).opening


def test_a_call_behind_a_thought(compiler: Backends, accepts: Accepts) -> None:
    grammar = compiled(compiler, behind(MARKS, calls("hermes", forced=True).constraint()))
    call = hermes("now", "{}")
    assert accepts(grammar, f"Hm {{}} < >\n</think>\n\n{call}")
    for text in (call, f"Hm</think>{call}", f"Hm</think>\n\n{call}x", "Hm</think>\n\nNo."):
        assert not accepts(grammar, text), text


@pytest.mark.parametrize(
    ("constraint", "good", "bad"),
    [
        (Constraint(kind="json_schema", value='{"type":"integer"}'), "42", "x"),
        (Constraint(kind="json_object", any_whitespace=True), '{ "a": 1}', "[1]"),
        (Constraint(kind="choice", choices=('a "b"', "é")), 'a "b"', "a"),
        (Constraint(kind="regex", value=r"[a-c]+/\d{2}"), "ab/12", "ab/1"),
        (Constraint(kind="grammar", value='root ::= "(" root ")" | "x"'), "((x))", "((x)"),
        (Constraint(kind="json_schema", value=UNIQUE, lax=True), "[1,1]", "[x]"),
        (Constraint(kind="structural_tag", value=ONE_TAG), "a<f>7</f>", "a<f>x</f>"),
        (Constraint(kind="grammar", value='root ::= "a" [0-9]+', backend="xgrammar"), "a12", "a"),
    ],
)
def test_a_constraint_behind_a_thought(
    constraint: Constraint, good: str, bad: str, compiler: Backends, accepts: Accepts
) -> None:
    grammar = compiler.compile(behind(MARKS, constraint))
    for thought in ("", "\nHm, é < /think>\n\nYes.\n"):
        assert accepts(grammar, f"{thought}</think>\n\n{good}")
        for text in (f"{bad}", f"</think>\n\n{bad}", f"</think>{good}", f"</think>\n\n{good}!"):
            assert not accepts(grammar, f"{thought}{text}"), text
    assert not accepts(grammar, good)


def test_masks_behind_a_thought_are_those_of_brute_force(compiler: Backends, vocab_size: int) -> None:
    grammar = compiler.compile(behind(MARKS, Constraint(kind="choice", choices=("yes", "no"))))
    rng = random.Random(3)
    for text in ("", "Hm </thi", "</think", "</think>", "</think>\n", "</think>\n\n", "</think>\n\nn"):
        matcher = grammar.matcher()
        for byte in text.encode():
            matcher.accept(next(t for t in range(vocab_size) if compiler.tables.bytes[t] == bytes([byte])))
        allowed = mask_of(matcher, vocab_size)
        taken = set()
        for token in range(vocab_size):
            twin = matcher.fork()
            try:
                twin.accept(token)
            except TokenRefused:
                continue
            taken.add(token)
            twin.rollback(1)
            if rng.random() < 0.02:
                assert mask_of(twin, vocab_size) == allowed
        assert taken == allowed and allowed and not matcher.may_stop


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("most", [1, 4, 9])
def test_a_thought_has_as_many_tokens_as_it_may(compiler: Backends, vocab_size: int, own: bool, most: int) -> None:
    """Whatever it says, and wherever a part of the mark stands in it; then only the rest of the mark can follow."""
    grammar = compiler.compile((behind_own if own else behind)(MARKS, Constraint(kind="regex", value="yes"), most))
    close, texts = MARKS.close.encode(), compiler.tables.bytes
    spelt = {text: token for token, text in enumerate(texts)}
    for said in (b"Hm, abcdef", b"<<<<<<<<<<", b"</th </th ", b"a</thinka<"):
        matcher = grammar.matcher()
        for byte in (MARKS.open.encode() if own else b"") + said[:most]:
            matcher.accept(spelt[bytes([byte])])
        begun = next(n for n in range(len(close), -1, -1) if said[:most].endswith(close[:n]))
        assert mask_of(matcher, vocab_size) == {
            token for token in range(vocab_size) if texts[token] and close.startswith(texts[token], begun)
        }
        for token in range(vocab_size):
            if not texts[token] or not close.startswith(texts[token], begun):
                with pytest.raises(TokenRefused):
                    matcher.accept(token)
        twin = matcher.fork()
        twin.rollback(1)
        assert len(mask_of(twin, vocab_size)) > 100, "it is free until then"
        for byte in close[begun:] + b"\n\nyes":
            matcher.accept(spelt[bytes([byte])])
        assert matcher.must_stop


@pytest.mark.parametrize("any_spelling", [False, True])
def test_masks_of_a_thought_that_may_come_are_those_of_brute_force(
    compiler: Backends, vocab_size: int, any_spelling: bool
) -> None:
    spelt = {text: token for token, text in enumerate(compiler.tables.bytes)}
    answers = (
        (Constraint(kind="choice", choices=("<tea>", "<", "<think", "no")), "<tea>"),
        (calls("hermes", forced=False, many=True).constraint(), " <tool_call"),
    )
    for constraint, answer in answers:
        grammar = compiler.compile(behind_own(MARKS, constraint))
        for text in (
            "",
            "<",
            "<th",
            "<think",
            "<think>",
            "<think>x</think>",
            "<think></think>\n\n",
            answer,
            " <think>",
        ):
            matcher = grammar.matcher(any_spelling=any_spelling)
            if text == " <think>" and constraint.kind == "choice":
                continue
            for byte in text.encode():
                matcher.accept(spelt[bytes([byte])])
            masks = [mask_of(matcher, vocab_size)]
            taken, twin = set(), matcher.fork()
            for token in range(vocab_size):
                try:
                    twin.accept(token)
                except TokenRefused:
                    continue
                taken.add(token)
                twin.rollback(1)
            assert taken == masks[0] == mask_of(twin, vocab_size), text
            for back in range(len(text.encode()), 0, -1):
                twin.rollback(1)
                other = grammar.matcher(any_spelling=any_spelling)
                for byte in text.encode()[: back - 1]:
                    other.accept(spelt[bytes([byte])])
                assert mask_of(twin, vocab_size) == mask_of(other, vocab_size)
                assert twin.may_stop is other.may_stop and twin.must_stop is other.must_stop


def test_a_thought_that_may_come(compiler: Backends, accepts: Accepts) -> None:
    choice = compiler.compile(behind_own(MARKS, Constraint(kind="choice", choices=("<tea>", "<", "<think"))))
    for text in ("<tea>", "<", "<think", "<think></think>\n\n<", "<think>\n<tea></think>\n\n<tea>"):
        assert accepts(choice, text), text
    for text in ("<think>", "<think>x</think>", "<think>x</think>\n\n", "<think>x</think>\n\nno", " <think>", "<tea> "):
        assert not accepts(choice, text), text
    free = compiler.compile(behind_own(MARKS, calls("hermes", forced=False, many=True).constraint()))
    call = hermes("now", "{}")
    for text in (
        "Hi",
        call,
        f"<think>{hermes('rm', 'x')}</think>\n\n{call} b",
        "\n<think>a</think>\n\nHi",
        "a <think>",
    ):
        assert accepts(free, text), text
    for text in ("\n <think>a", f"<think>a</think>\n\n{hermes('rm', '{}')}", hermes("rm", "{}")):
        assert not accepts(free, text), text


def test_json_beside_calls_that_are_free(compiler: Backends, accepts: Accepts) -> None:
    """tools with a response_format: the answer is one call, or JSON of the schema, and nothing else."""
    text = Constraint(kind="json_schema", value='{"type":"object","properties":{"n":{"type":"integer"}}}')
    asked = calls("hermes", forced=False)
    for marks, lead in ((None, ""), (MARKS, "Hm.</think>\n\n")):
        held = asked.constraint("", text)
        grammar = compiled(compiler, behind(marks, held) if marks else held)
        assert accepts(grammar, f'{lead}{{"n": 3}}') and accepts(grammar, lead + hermes("now", "{}"))
        for bad in ('{"n": "x"}', "Hello", hermes("nobody", "{}"), '{"n": 3} '):
            assert not accepts(grammar, lead + bad), bad
    bad = Constraint(kind="json_schema", value='{"type":"object","properties":{"n":{"pattern":"(?=x)"}}}')
    with pytest.raises(ConstraintError) as caught:
        compiled(compiler, asked.constraint("", bad))
    assert asked.place(caught.value.param) == (None, "/properties/n/pattern")


def test_a_fault_is_found_in_the_request(compiler: Backends) -> None:
    bad = Function.of("f", {"properties": {"a": {"type": "string", "pattern": "(?=x)"}}}, 7)
    asked = Calls(DIALECTS["llama"], (FUNCTIONS[0], bad), forced=False, many=False)
    with pytest.raises(ConstraintError) as caught:
        compiled(compiler, asked.constraint())
    assert asked.place(caught.value.param) == ("tools[7].function.parameters", "/properties/a/pattern")
    assert asked.place(None) == asked.place("structural_tag") == ("tools", "")
