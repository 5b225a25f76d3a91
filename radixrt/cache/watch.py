"""Who else must know what happens in the tree: events for routers, tiers that keep what is evicted."""

from __future__ import annotations

from typing import Literal, TypeAlias

from radixrt.cache.node import Node

Reason: TypeAlias = Literal["pressure", "flush", "failure"]
"""Why tokens leave: for new ones, because somebody asked, or because what their slots hold is not valid."""


class TreeWatcher:
    """Told of every change to the tree's text, in order; does nothing by itself. It must not change the tree.

    Registered in `RadixTree.watchers`. What it keeps about a node it keeps by the node, or in a field of its own.
    """

    def grown(self, node: Node, added: int) -> None:
        """The last `added` tokens of `node` are new. Their KV is computed by a step that is being planned."""

    def split(self, upper: Node, lower: Node) -> None:
        """`lower` was cut in two; `upper`, its new parent, holds the first part."""

    def evicting(self, node: Node, kept: int, reason: Reason) -> None:
        """All but the first `kept` tokens of `node`, an unlocked leaf, are about to go; tokens and slots still stand.

        Slots that hold valid KV do so until a step that is planned after this returns."""

    def cleared(self) -> None:
        """The tree is empty, after everything in it was told to be evicting."""
