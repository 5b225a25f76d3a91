"""Calls in every syntax, cut in every way, against what the text was made of."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from radixrt.dialects import DIALECTS, Arguments, CallParser, CallStart, Event, Text

NAMES = ("get_weather", "now", "naïve.tool")
ARGUMENTS = st.dictionaries(
    st.text(max_size=6), st.recursive(st.none() | st.integers() | st.text(max_size=12), st.lists, max_leaves=5),
    max_size=3,
)  # fmt: skip
CALLS = st.lists(st.tuples(st.sampled_from(NAMES), ARGUMENTS), min_size=1, max_size=3)
ASCII = st.booleans()


class Seen:
    """What a sequence of events amounts to, and the rules that every sequence keeps."""

    def __init__(self, events: list[Event]) -> None:
        self.text = ""
        self.calls: list[tuple[str, str]] = []
        for event in events:
            if isinstance(event, Text):
                assert event.text
                self.text += event.text
            elif isinstance(event, CallStart):
                assert event.index == len(self.calls)
                self.calls.append((event.name, ""))
            else:
                assert isinstance(event, Arguments) and event.index == len(self.calls) - 1 and event.text
                name, text = self.calls[-1]
                self.calls[-1] = (name, text + event.text)


def parse(text: str, dialect: str, cuts: list[int] | None = None, *, cut: bool = False) -> Seen:
    parser = CallParser(DIALECTS[dialect], NAMES)
    places = sorted({0, len(text), *(c % (len(text) + 1) for c in cuts or ())})
    events = [e for a, b in pairwise(places) for e in parser.push(text[a:b])]
    seen = Seen([*events, *parser.finish(cut=cut)])
    assert parser.count == len(seen.calls)
    return seen


def one(name: str, arguments: str, key: str = "arguments") -> str:
    return f'{{"name": {json.dumps(name, ensure_ascii=False)}, "{key}": {arguments}}}'


def written(dialect: str, calls: list[tuple[str, str]]) -> str:
    if dialect == "hermes":
        return "\n".join(f"<tool_call>\n{one(*call)}\n</tool_call>" for call in calls)
    if dialect == "mistral":
        return f"[TOOL_CALLS][{', '.join(one(*call) for call in calls)}]"
    if dialect == "mistral-args":
        return "".join(f"[TOOL_CALLS]{name}[ARGS]{arguments}" for name, arguments in calls)
    return one(*calls[0], key="parameters")


@settings(max_examples=120, deadline=None)
@given(st.sampled_from(sorted(DIALECTS)), CALLS, ASCII, st.text("ab<\n[{", max_size=8), st.lists(st.integers(0, 999)))
def test_what_was_called_comes_out(
    dialect: str, calls: list[tuple[str, Any]], ascii_only: bool, before: str, cuts: list[int]
) -> None:
    sent = [(name, json.dumps(arguments, ensure_ascii=ascii_only)) for name, arguments in calls]
    if dialect == "llama":
        sent, before = sent[:1], ""
    text = before + written(dialect, sent)
    seen = parse(text, dialect, cuts)
    assert seen.calls == sent
    assert seen.text == before.removesuffix("\n")


@settings(max_examples=200, deadline=None)
@given(
    st.sampled_from(sorted(DIALECTS)),
    st.lists(
        st.sampled_from(
            [
                *("<tool_call>", "</tool_call>", "[TOOL_CALLS]", "now[ARGS]", '{"name": "now"', ', "arguments": ', "x"),
                *'{}[],"\\\n ',
                *('{"name": "unknown", "arguments": {}}', '{"name": "now", "arguments": {"a": "}"}}'),
            ]
        ),
        max_size=10,
    ).map("".join),
    st.lists(st.integers(0, 999)),
    st.booleans(),
)  # fmt: skip
def test_cuts_change_nothing(dialect: str, text: str, cuts: list[int], cut: bool) -> None:
    whole, pieces = parse(text, dialect, cut=cut), parse(text, dialect, cuts, cut=cut)
    single = parse(text, dialect, list(range(len(text))), cut=cut)
    assert (pieces.text, pieces.calls) == (whole.text, whole.calls) == (single.text, single.calls)
    if not cut and not whole.calls:
        assert whole.text == text, "what is no call is text, all of it"


@pytest.mark.parametrize("dialect", sorted(DIALECTS))
def test_every_beginning_of_a_call_is_a_beginning_of_its_arguments(dialect: str) -> None:
    arguments = '{"city": "K\\"ø}", "list": [{"a": 1}]}'
    text = written(dialect, [("get_weather", arguments)])
    for end in range(len(text) + 1):
        seen = parse(text[:end], dialect, cut=True)
        assert seen.text == "" or text[:end] == seen.text[:end]
        if seen.calls:
            ((name, so_far),) = seen.calls
            assert name == "get_weather" and arguments.startswith(so_far)
    assert seen.calls == [("get_weather", arguments)]


@pytest.mark.parametrize("text", ['{"name": "now"}', ' {\n"name" : "now" }'])
def test_a_call_without_arguments_has_empty_ones(text: str) -> None:
    assert parse(f"<tool_call>{text}</tool_call>", "hermes", list(range(60))).calls == [("now", "{}")]


def test_a_function_that_does_not_exist_is_text() -> None:
    text = f"Look:\n<tool_call>\n{one('rm', '{}')}\n</tool_call>"
    assert parse(text, "hermes").text == text
    text = one("rm", "{}", "parameters")
    assert (parse(text, "llama").text, parse(text, "llama").calls) == (text, [])


def test_text_around_calls() -> None:
    call = written("hermes", [("now", "{}")])
    seen = parse(f"First.\n\n{call}\n{call}\nThen this.\n", "hermes", list(range(99)))
    assert seen.calls == [("now", "{}")] * 2 and seen.text == "First.\n\nThen this.\n"


def test_an_unfinished_call_is_not_complete() -> None:
    parser = CallParser(DIALECTS["hermes"], NAMES)
    parser.push('<tool_call>\n{"name": "now", "arguments": {"a": ')
    assert not parser.complete
    parser.push("1}")
    assert parser.complete and parser.finish(cut=True) == []
