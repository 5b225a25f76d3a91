"""The cache's nodes, as the engine lists them, put back into a tree that fits a screen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from radixrt.results import CacheNode

CHILDREN_SHOWN = 4
TEXT_SHOWN = 40


@dataclass
class Branch:
    """A line of the drawing and what hangs below it."""

    label: str
    children: list[Branch] = field(default_factory=list)


def grow(nodes: Sequence[CacheNode], children_shown: int = CHILDREN_SHOWN) -> list[Branch]:
    """The top branches of `nodes` (depth first, as `Engine.tree()` gives them).

    A node with more than `children_shown` children keeps the first ones; a last line counts the rest and their tokens.
    """
    end, roots = 0, []
    while end < len(nodes):
        start, end = end, _subtree_end(nodes, end)
        roots.append((start, end))
    return _shown(nodes, roots, children_shown)


def _shown(nodes: Sequence[CacheNode], spans: Sequence[tuple[int, int]], limit: int) -> list[Branch]:
    shown = [_branch(nodes, start, end, limit) for start, end in spans[:limit]]
    rest = spans[limit:]
    if rest:
        tokens = sum(nodes[i].tokens for start, end in rest for i in range(start, end))
        shown.append(Branch(f"... and {len(rest)} more, {tokens:,} tokens"))
    return shown


def _branch(nodes: Sequence[CacheNode], start: int, end: int, limit: int) -> Branch:
    spans, child = [], start + 1
    while child < end:
        child_end = _subtree_end(nodes, child)
        spans.append((child, child_end))
        child = child_end
    return Branch(label(nodes[start]), _shown(nodes, spans, limit))


def _subtree_end(nodes: Sequence[CacheNode], start: int) -> int:
    end = start + 1
    while end < len(nodes) and nodes[end].depth > nodes[start].depth:
        end += 1
    return end


def label(node: CacheNode) -> str:
    """One node as a line: how its text begins, its tokens, and how often it was found."""
    text = repr(node.text)[1:-1]  # a line break is shown as \n
    if len(text) > TEXT_SHOWN:
        text = text[: TEXT_SHOWN - 3] + "..."
    hits = f", {node.hits:,} hits" if node.hits != 1 else ", 1 hit"
    return f"'{text}'  [{node.tokens:,} tokens{hits}]"
