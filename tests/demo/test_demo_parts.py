"""The demo's parts that need no model: its texts, its numbers, its drawing."""

from __future__ import annotations

import io

from rich.console import Console

from radixrt.demo import inputs
from radixrt.demo.screen import Screen, clip
from radixrt.demo.tally import Tally
from radixrt.demo.tree import Branch, grow
from radixrt.results import CacheNode, EngineStats


def node(depth: int, text: str, tokens: int = 1, hits: int = 0) -> CacheNode:
    return CacheNode(depth=depth, tokens=tokens, hits=hits, locks=0, age_s=0.0, text=text)


def outline(branches: list[Branch]) -> list:
    return [(branch.label.split("'")[1], outline(branch.children)) for branch in branches]


def test_the_texts_are_what_the_demo_promises() -> None:
    assert len(inputs.agents()) == 8
    assert all(len(agent.turns) >= 3 for agent in inputs.agents())
    assert len(inputs.notes()) == 6
    assert len(inputs.tickets()) == 16
    assert len(inputs.policy()) > 4000


def test_every_label_is_asked_for_and_none_is_unknown() -> None:
    from radixrt.demo.programs import LABELS

    assert {ticket.label for ticket in inputs.tickets()} == set(LABELS)


def test_a_flat_listing_becomes_the_tree_it_came_from() -> None:
    nodes = [node(0, "a"), node(1, "b"), node(2, "c"), node(1, "d"), node(0, "e")]
    assert outline(grow(nodes)) == [("a", [("b", [("c", [])]), ("d", [])]), ("e", [])]
    assert grow([]) == []


def test_what_does_not_fit_is_counted() -> None:
    nodes = [node(0, "root", 10), *(n for i in range(5) for n in (node(1, f"child {i}", 3), node(2, "leaf", 2)))]
    (root,) = grow(nodes, children_shown=2)
    assert len(root.children) == 3
    assert root.children[2].label == "... and 3 more, 15 tokens"


def test_a_pipe_gets_plain_indented_lines() -> None:
    out = io.StringIO()
    Screen(Console(file=out, width=40)).tree([node(0, "say [bold]x\x1b[2J\n" * 9, 1200, 1), node(1, "y", 3, 4)])
    first, second = out.getvalue().splitlines()
    assert first.startswith("  'say [bold]x\\x1b[2J\\n") and first.endswith("[1,200 tokens, 1 hit]")
    assert second.startswith("    'y'") and second.endswith("[3 tokens, 4 hits]")
    assert "\x1b" not in out.getvalue()


def test_a_terminal_gets_the_same_words_in_a_drawing() -> None:
    out = io.StringIO()
    console = Console(file=out, width=100, force_terminal=True, color_system=None)
    Screen(console).tree([node(0, "a", 5), node(1, "b", 3)])
    text = out.getvalue()
    assert "└──" in text and "[5 tokens, 0 hits]" in text and "[3 tokens, 0 hits]" in text


def test_a_tally_is_the_difference_of_two_readings() -> None:
    before = EngineStats(prompt_tokens=100, cached_tokens=10, generation_tokens=5, ttft_s=(1.0, 2))
    after = EngineStats(prompt_tokens=300, cached_tokens=160, generation_tokens=45, ttft_s=(3.0, 6))
    tally = Tally.between(before, after, seconds=2.0)
    assert (tally.prompt_tokens, tally.cached_tokens, tally.generated_tokens) == (200, 150, 40)
    assert tally.ttft_s == 0.5
    text = "\n".join(tally.lines())
    assert "200, 150 of them from the tree (75%)" in text
    assert "40 tokens, 20.0 tokens/s" in text


def test_a_job_without_generated_tokens_says_so() -> None:
    tally = Tally.between(EngineStats(), EngineStats(prompt_tokens=4), seconds=1.0)
    assert tally.ttft_s is None
    assert tally.lines()


def test_clip_keeps_whole_words_on_one_line() -> None:
    assert clip("a\n b   c", 10) == "a b c"
    assert clip("one two three four", 12) == "one two ..."
