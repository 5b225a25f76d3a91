"""Thoughts told apart from answers, cut in every way."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from radixrt.dialects import Marks, Text, Thought, ThoughtParser, thinking_marks

MARKS = Marks("<think>", "</think>")


def parse(text: str, opened: bool, cuts: list[int] = []) -> tuple[str, str]:  # noqa: B006 - never changed
    parser = ThoughtParser(MARKS, opened=opened)
    places = sorted({0, len(text), *(c % (len(text) + 1) for c in cuts)})
    events = [e for a, b in pairwise(places) for e in parser.push(text[a:b])]
    events += parser.finish()
    thoughts = "".join(e.text for e in events if isinstance(e, Thought))
    return thoughts, "".join(e.text for e in events if isinstance(e, Text))


@pytest.mark.parametrize(
    ("text", "opened", "thought", "answer"),
    [
        ("\nHm.\n\nYes.\n</think>\n\nFour.\n", True, "Hm.\n\nYes.", "Four.\n"),
        ("<think>\nHm.\n</think>\n\nFour.", False, "Hm.", "Four."),
        ("  <think>Hm.</think>Four.", False, "Hm.", "Four."),
        ("<think>\n\n</think>\n\nFour.", False, "", "Four."),
        ("Four <think>five</think>.", False, "", "Four <think>five</think>."),
        ("<thin", False, "", "<thin"),
        ("", False, "", ""),
        ("Hm. </thin", True, "Hm. </thin", ""),
        ("a <think> b </think> c </think> d", True, "a <think> b ", " c </think> d"),
        ("Hm", True, "Hm", ""),
    ],
)
def test_parts(text: str, opened: bool, thought: str, answer: str) -> None:
    assert parse(text, opened) == (thought, answer)
    assert parse(text, opened, list(range(len(text)))) == (thought, answer)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.sampled_from(["<think>", "</think>", "</th", "<", "\n", " ", "x"]), max_size=8).map("".join),
    st.booleans(),
    st.lists(st.integers(0, 999)),
)
def test_cuts_change_nothing(text: str, opened: bool, cuts: list[int]) -> None:
    assert parse(text, opened, cuts) == parse(text, opened) == parse(text, opened, list(range(len(text))))


@pytest.mark.parametrize(
    ("prompt", "is_open"),
    [
        ("<|im_start|>assistant\n<think>\n", True),
        ("<|im_start|>assistant\n<think>", True),
        ("<|im_start|>assistant\n", False),
        ("<|im_start|>assistant\n<think>\n\n</think>\n\n", False),
        ("<think>old</think>\n<|im_start|>assistant\n<think>\n", True),
        ("user: what does <think> mean?\nassistant:", False),
    ],
)
def test_whether_a_prompt_leaves_a_thought_open(prompt: str, is_open: bool) -> None:
    assert MARKS.left_open(prompt) is is_open


def test_marks_come_from_the_template() -> None:
    assert thinking_marks("{{ content.split('</think>')[-1] }}") == MARKS
    assert thinking_marks("{{ messages }}") is None
