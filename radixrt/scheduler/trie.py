"""The options of a select as a token trie: every token that options share is computed once, whoever asks for it.

    prompt ── "The" ─┬─ " cat" ─┬─ " sat"        a segment: a run of tokens between two places where options part
                     │          └─ " ran"        the last token of an option is scored but never computed
                     └─ " dog"

A segment becomes a row of a step. It reads the slots that the segments above it write in that same step, so the trie
is scored in one pass with tree attention (each token reads its ancestors and nothing else; SpecInfer, arXiv
2305.09781, section 4), and the context of all is read once, as a shared span.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from radixrt.cache import Ids, Node

Taker = tuple[int, int]
"""(path, j): token j of this path wants the log-probability."""


@dataclass(frozen=True)
class Path:
    """Tokens behind the head, and which of them are to be scored: those from `done` on."""

    index: int
    tokens: Ids
    done: int = 0


@dataclass(eq=False)
class Segment:
    """A run of the trie at depth [start, start + len(tokens)) of a sequence, and what is wanted of it.

    `node` is where its planned tokens end in the prefix tree: the segment holds a lock there from its first token on
    until all its children hold theirs.
    """

    parent: Segment | None
    start: int
    tokens: Ids
    children: list[Segment] = field(default_factory=list)
    targets: dict[tuple[int, int], list[Taker]] = field(default_factory=dict)
    """(depth, token) -> who wants log p(token | all up to `depth`), a depth of this segment."""
    planned: int = 0
    """Tokens that are in the prefix tree: found there, or planned to be computed."""
    unstarted: int = 0
    """Children that hold no lock yet."""
    node: Node | None = None

    @property
    def first_target(self) -> int:
        """Depth of the first token whose hidden state is wanted; behind the segment if there is none."""
        return min((depth for depth, _ in self.targets), default=self.start + len(self.tokens))

    def take(self, start: int, end: int) -> dict[tuple[int, int], list[Taker]]:
        """The targets of depths [start, end), in order of depth; they are planned, so they are wanted no more."""
        keys = sorted(key for key in self.targets if start <= key[0] < end)
        return {key: self.targets.pop(key) for key in keys}


def build_trie(head: Ids, paths: Sequence[Path]) -> Segment:
    """The head as the first segment (at least one token), and below it the trie of all but the paths' last tokens."""
    root = Segment(None, 0, head)
    work = [(root, 0, list(paths))]
    while work:
        above, depth, group = work.pop()  # the group shares its first `depth` tokens, of which `above` has the last
        branches: dict[int, list[Path]] = {}
        for path in group:
            if depth < len(path.tokens):
                if depth >= path.done:
                    key = (len(head) + depth - 1, path.tokens[depth])
                    above.targets.setdefault(key, []).append((path.index, depth))
                if depth < len(path.tokens) - 1:
                    branches.setdefault(path.tokens[depth], []).append(path)
        for branch in branches.values():
            end = _shared(branch, depth)
            segment = Segment(above, len(head) + depth, branch[0].tokens[depth:end])
            for j in range(depth + 1, end):  # inside the segment each token predicts the next one, for all of them
                takers = [(path.index, j) for path in branch if j >= path.done]
                if takers:
                    segment.targets[len(head) + j - 1, branch[0].tokens[j]] = takers
            above.children.append(segment)
            work.append((segment, end, branch))
        above.unstarted = len(above.children)
    return root


def _shared(paths: list[Path], depth: int) -> int:
    """Up to where paths that share the token at `depth` go on together and are all to be computed."""
    end = min(len(path.tokens) for path in paths) - 1
    first = np.asarray(paths[0].tokens[depth:end], dtype=np.int32)
    for path in paths[1:]:
        differ = np.flatnonzero(first != np.asarray(path.tokens[depth : depth + len(first)], dtype=np.int32))
        if differ.size:
            first = first[: differ[0]]
    return depth + len(first)


def ids(tokens: Sequence[int]) -> Ids:
    return array("i", tokens)
