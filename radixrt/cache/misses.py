"""Why a prefix was not found whole: what the tree holds where the match ended, and whether it once held more."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from radixrt.cache.node import Ids, Node

GHOSTS_KEPT = 64
"""Evicted continuations that a node remembers, each by its first token."""


@dataclass(frozen=True)
class Miss:
    """Where a match ended, and against what."""

    at: int
    """Position of the first token that was not found."""
    reason: Literal["diverged", "evicted", "never_seen"]
    """evicted: it was here once; diverged: only other continuations are; never_seen: nothing ever followed here, as far
    as is remembered."""
    instead: tuple[tuple[int, ...], ...] = ()
    """How what the tree holds there begins, the most found first."""


def remember_evicted(node: Node, token: int) -> None:
    """What followed the end of `node` and begins with `token` is evicted."""
    if node.ghosts is None:
        node.ghosts = set()
    if len(node.ghosts) < GHOSTS_KEPT:
        node.ghosts.add(token)


def explain(node: Node, ids: Ids, length: int, *, branches: int = 3, tokens: int = 8) -> Miss:
    """Why ids[length] was not found behind `node`, at whose end the match of ids[:length] ended.

    Call it right after the match, while nothing else has changed the tree. At most `branches` continuations are shown,
    `tokens` token ids of each; all are of the node's own namespace.
    """
    others = sorted(node.children.values(), key=lambda child: -child.hits)[:branches]
    instead = tuple(tuple(child.tokens[:tokens].tolist()) for child in others)
    if node.ghosts is not None and ids[length] in node.ghosts:
        return Miss(length, "evicted", instead)
    return Miss(length, "diverged" if instead else "never_seen", instead)
