"""Text for what the scheduler says of its tree in token ids."""

from __future__ import annotations

import msgspec

from radixrt.checkpoint import Vocabulary
from radixrt.messages import TreeView
from radixrt.results import CacheBranch, CacheNode, CacheView, Usage


def cache_view(tree: TreeView, vocabulary: Vocabulary) -> CacheView:
    """A namespace's tree as its owner may see it."""
    return CacheView(
        nodes=[
            CacheNode(
                depth=node.depth,
                start=node.start,
                tokens=node.tokens,
                hits=node.hits,
                locks=node.locks,
                pins=node.pins,
                age_s=node.age_s,
                text=vocabulary.decode(node.head),
            )
            for node in tree.nodes
        ],
        tokens=tree.tokens,
        truncated=tree.truncated,
        pins=tree.pins,
        pinned_tokens=tree.pinned_tokens,
        pin_quota=tree.pin_quota,
    )


def with_text(usage: Usage, vocabulary: Vocabulary) -> Usage:
    """The usage, its report of the cache (where it has one) with the text of what the tree held instead."""
    report = usage.cache
    if report is None or not report.diverged_from:
        return usage
    branches = tuple(CacheBranch(b.token_ids, vocabulary.decode(list(b.token_ids))) for b in report.diverged_from)
    return msgspec.structs.replace(usage, cache=msgspec.structs.replace(report, diverged_from=branches))
