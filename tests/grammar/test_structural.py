"""Structural tags: free text, triggers that always open a tag, contents that are enforced, in both shapes."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

import pytest

from radixrt.checkpoint import Vocabulary
from radixrt.errors import ConstraintError
from radixrt.grammar import Grammar
from radixrt.grammar.backends import Backends
from radixrt.params import Constraint

X = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"], "additionalProperties": False}
LEGACY = {
    "type": "structural_tag",
    "structures": [
        {"begin": "<f=a>", "schema": X, "end": "</f>"},
        {"begin": "<f=b>", "schema": {"type": "object"}, "end": ""},
        {"begin": "[call]", "schema": {"type": "array", "items": X}, "end": "!"},
    ],
    "triggers": ["<f", "[c"],
}
ONE = {"type": "object", "maxProperties": 0}


def tag(value: Any, **options: Any) -> Constraint:
    return Constraint(kind="structural_tag", value=json.dumps(value, ensure_ascii=False), **options)


def number_tag(kind: str) -> dict[str, Any]:
    return {"structures": [{"begin": "<f", "schema": {"type": kind}, "end": "1"}], "triggers": ["<"]}


def triggered(**flags: bool) -> dict[str, Any]:
    content = {"type": "json_schema", "json_schema": ONE}
    one = {"begin": "<t>", "content": content, "end": "</t>"}
    return {"type": "structural_tag", "format": {"type": "triggered_tags", "triggers": ["<t"], "tags": [one], **flags}}


def separated(**fields: Any) -> dict[str, Any]:
    content = {"type": "json_schema", "json_schema": ONE}
    tags = [
        {"type": "tag", "begin": begin, "content": content, "end": end} for begin, end in (("<t>", "</t>"), ("", "!"))
    ]
    form = {"type": "tags_with_separator", "tags": tags, "separator": ", "}
    return {"type": "structural_tag", "format": {**form, **fields}}


def test_text_is_free_until_a_trigger_and_then_constrained(
    compiler: Backends, accepts: Callable[[Grammar, str], bool]
) -> None:
    grammar = compiler.compile(tag(LEGACY))
    for text in (
        "",
        "hello, é\n",
        "a < b [ d",
        '<f=a>{"x":1}</f>',
        'so <f=a>{"x":1}</f> and <f=b>{"y":[1]} <<f=a>{"x":2}</f>.',
        '[call][{"x":1}]![call][]!',
        "<f=b>{}}",
    ):
        assert accepts(grammar, text), text
    for text in (
        "<f",
        "x <f y",
        "<f=c>{}",
        '<f=a>{"x":"1"}</f>',
        '<f=a>{"x":1}',
        '<f=a>{"x":1}</f',
        '<f=a>{"x": 1}</f>',
        "<f=b>{}<f",
        "[c",
        "[call][1]!",
    ):
        assert not accepts(grammar, text), text
    assert accepts(compiler.compile(tag(LEGACY, any_whitespace=True)), '<f=a>{ "x": 1 }</f>')


def test_the_flags_of_the_other_shape(compiler: Backends, accepts: Callable[[Grammar, str], bool]) -> None:
    table = {
        "": (True, False, True, False),
        "hi": (True, False, True, False),
        "hi <t>{}</t>": (True, True, True, True),
        "<t>{}</t> bye": (True, True, False, False),
        "<t>{}</t><t>{}</t>": (True, True, False, False),
        "<t>": (False, False, False, False),
    }
    grammars = [
        compiler.compile(tag(triggered(at_least_one=least, stop_after_first=stop)))
        for stop in (False, True)
        for least in (False, True)
    ]
    for text, expected in table.items():
        assert tuple(accepts(grammar, text) for grammar in grammars) == expected, text


def test_tags_with_nothing_but_separators_between_them(
    compiler: Backends, accepts: Callable[[Grammar, str], bool]
) -> None:
    table = {
        "": (True, False, True, False),
        "<t>{}</t>": (True, True, True, True),
        "{}!": (True, True, True, True),
        "<t>{}</t>, {}!, {}!": (True, True, False, False),
        "<t>{}</t>{}!": (False, False, False, False),
        "<t>{}</t>, ": (False, False, False, False),
        "hi <t>{}</t>": (False, False, False, False),
        "{}": (False, False, False, False),
    }
    grammars = [
        compiler.compile(tag(separated(at_least_one=least, stop_after_first=stop)))
        for stop in (False, True)
        for least in (False, True)
    ]
    for text, expected in table.items():
        assert tuple(accepts(grammar, text) for grammar in grammars) == expected, text


def test_whatever_is_written_holds_only_whole_tags(
    compiler: Backends, vocabulary: Vocabulary, accepts: Callable[[Grammar, str], bool]
) -> None:
    """Against a plain reading of the text: cut at triggers, and every piece must be a tag and free text."""
    grammar = compiler.compile(tag(triggered()))
    rng = random.Random(5)
    pieces = ["<t>{}</t>", "<t>", "{}", "</t>", "<", "t", ">", "x"]
    seen = {True: 0, False: 0}
    for _ in range(3000):
        text = "".join(rng.choices(pieces, k=rng.randint(0, 7)))
        rest = text.split("<t")[1:]
        whole = all(piece.startswith(">{}</t>") for piece in rest)
        assert accepts(grammar, text) is whole, text
        seen[whole and bool(rest)] += 1
    assert min(seen.values()) > 10


@pytest.mark.parametrize(
    ("value", "place"),
    [
        ({}, "/format"),
        ([], "structural_tag"),
        ({**LEGACY, "extra": 1}, "/extra"),
        ({**LEGACY, "triggers": []}, "/triggers"),
        ({**LEGACY, "triggers": ["<f", "<f="]}, "/triggers"),
        ({**LEGACY, "triggers": ["<f", "[c", "zz"]}, "/triggers"),
        ({**LEGACY, "triggers": ["<f"]}, "structural_tag"),
        ({**LEGACY, "structures": [{"begin": "<f", "schema": 3, "end": ""}]}, "/structures/0/schema"),
        ({"type": "structural_tag", "format": {"type": "token", "token": 3}}, "/format/type"),
        (triggered(other=True), "/format/other"),
        (triggered(at_least_one=3), "/format/at_least_one"),  # type: ignore[arg-type]
        (number_tag("integer"), "structural_tag"),
        (number_tag("xml"), "/structures/0/schema/type"),
        (separated(triggers=["<t"]), "/format/triggers"),
        (separated(separator=1), "/format/separator"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_is_malformed_or_not_enforced_is_refused(value: Any, place: str, compiler: Backends) -> None:
    with pytest.raises(ConstraintError) as caught:
        compiler.compile(tag(value))
    assert caught.value.param == place


def test_whitespace_as_a_pattern(compiler: Backends, accepts: Callable[[Grammar, str], bool]) -> None:
    value = '{"type":"object","properties":{"a":{"type":"array"}}}'
    for pattern, taken, refused in (
        (r"[ ]?", ['{"a":[1,2]}', '{"a": [1, 2]}'], ['{"a":  [1]}', '{"a":\n[1]}']),
        (r"[\n\t ]*", ['{"a":[1]}', '{\n\t"a":  [1]}'], ['{"a":\r[1]}']),
        (r"\n{0,2} ?", ['{\n\n "a":[1]}'], ['{\n\n\n"a":[1]}']),
    ):
        grammar = compiler.compile(Constraint(kind="json_schema", value=value, whitespace_pattern=pattern))
        assert [text for text in taken if not accepts(grammar, text)] == []
        assert [text for text in refused if accepts(grammar, text)] == []
    for pattern in (r"\s*", ".", "a", r"[^a]", "[ ", "( )", "", r" |\x0b"):
        with pytest.raises(ConstraintError) as caught:
            compiler.compile(Constraint(kind="json_schema", value=value, whitespace_pattern=pattern))
        assert caught.value.param == "whitespace_pattern"
