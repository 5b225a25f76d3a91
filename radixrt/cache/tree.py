"""The radix tree over token ids: every cached prefix is a path from a namespace's root.

    namespace root ── [tokens | slots] ── [tokens | slots] ── ...      a node: a span of tokens and their KV slots
                                        └─ [tokens | slots]

The end of a node stays where it is: a split puts a new node *above*, so whoever holds a node holds the same path. A
node is locked by each running row whose path it is on (counted from the row's node up to the root); a locked node is
never evicted. Slots under a node were computed by an earlier step, or are by one that is planned already: steps run in
order, so whatever is planned later may read them.

Source of the idea: SGLang, "Efficiently Programming Large Language Models", arXiv 2312.07104, section 3.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Hashable, Iterator, Sequence

import numpy as np

from radixrt.cache.check import check_tree
from radixrt.cache.eviction import LRU, EvictionPolicy, EvictionQueue
from radixrt.cache.misses import remember_evicted
from radixrt.cache.node import Ids, Node
from radixrt.cache.pool import SlotError
from radixrt.cache.watch import Reason, TreeWatcher

ROOTS_KEPT = 256
"""Empty roots that remember what was evicted under them are kept while there are no more roots than this."""


class RadixTree:
    """Paths over slots. It hands freed slots to `release`; it never allocates.

    Invariants, proven by `check`: locks of a node >= sum of its children's; siblings begin with different tokens;
    `tokens` and `slots` of a node are equally long, and not empty but at a root; `evictable` counts the tokens of
    unlocked nodes; every unlocked leaf is in the eviction queue.
    """

    def __init__(
        self,
        release: Callable[[Ids], None],
        *,
        clock: Callable[[], float],
        policy: EvictionPolicy | None = None,
    ) -> None:
        self._release = release
        self._clock = clock
        self._queue = EvictionQueue(policy or LRU())
        self._roots: dict[Hashable, Node] = {}
        self.nodes = 0
        """Nodes that are not roots."""
        self.tokens = 0
        """Tokens (and slots) in the tree."""
        self.evictable = 0
        """Of these, tokens in nodes that nobody locks."""
        self.evicted = 0
        """Tokens evicted under pressure since start."""
        self.evictions = 0
        """Nodes, or tails of nodes, that these were."""
        self.epoch = 0
        """Stamped on nodes that grow: the caller's count of steps planned."""
        self.watchers: list[TreeWatcher] = []

    @property
    def policy(self) -> EvictionPolicy:
        return self._queue.policy

    def root(self, namespace: Hashable) -> Node:
        """The namespace's root, made when it is first asked for."""
        root = self._roots.get(namespace)
        if root is None:
            root = self._roots[namespace] = Node(None, array("i"), array("i"), namespace)
        return root

    # --- reading --------------------------------------------------------------------------------------------------

    def probe(self, namespace: Hashable, ids: Ids, limit: int) -> int:
        """How many of the first `limit` ids are cached; changes nothing."""
        root = self._roots.get(namespace)
        if root is None:
            return 0
        _, depth, within = self._walk(root, ids, limit)
        return depth + within

    def pinned_prefix(self, namespace: Hashable, ids: Ids) -> int:
        """How many of the first ids are pinned; changes nothing."""
        root = self._roots.get(namespace)
        if root is None:
            return 0
        node, depth, within = self._walk(root, ids, len(ids))
        if within and node.children[ids[depth]].pins:
            return depth + within
        step: Node | None = node
        while step is not None and not step.pins:
            step = step.parent
        return 0 if step is None else step.end

    def match(self, namespace: Hashable, ids: Ids, limit: int) -> tuple[Node, int]:
        """(node, length): the node at whose end the longest cached prefix of ids[:limit] ends.

        Splits a node where the prefix ends inside it. Lock the node before anything else is inserted or evicted, and
        say `hit` when it is used.
        """
        node, depth, within = self._walk(self.root(namespace), ids, limit)
        if within:
            child = node.children[ids[depth]]
            node = self._split(child, within)
            depth += within
        return node, depth

    def hit(self, node: Node, priority: int = 0) -> None:
        """A request of `priority` begins on the path to `node`."""
        for step in node.path():
            step.hits += 1
            step.priority = min(step.priority, priority)
        self.touch(node)

    def touch(self, node: Node) -> None:
        """Mark the path to `node` as used now."""
        now = self._clock()
        step: Node | None = node
        while step is not None:
            step.last_used = now
            if step.parent is not None:
                self._queue.used(step)
            step = step.parent
        self._queue.compact(self.nodes)

    def namespaces(self) -> list[Hashable]:
        """Those that have a root."""
        return list(self._roots)

    def walk(self, where: Callable[[Hashable], bool] | None = None) -> Iterator[tuple[int, Node]]:
        """(depth, node) of every node, or of those in the namespaces that `where` accepts, in depth-first order, roots
        (depth 0) first."""
        for root in [root for key, root in self._roots.items() if where is None or where(key)]:
            stack = [(0, root)]
            while stack:
                depth, node = stack.pop()
                yield depth, node
                stack.extend((depth + 1, child) for child in reversed(node.children.values()))

    # --- locks ----------------------------------------------------------------------------------------------------

    def lock(self, node: Node, above: Node | None = None) -> None:
        """Add one lock on the path from `node` up to the root, or up to but without `above`."""
        step: Node | None = node
        while step is not None and step is not above:
            if step.locks == 0:
                self.evictable -= len(step)
                self._queue.withdraw(step)
            step.locks += 1
            step = step.parent

    def unlock(self, node: Node, *, used: bool = True) -> None:
        """Take back one lock on the path from `node` to the root; `used`: that was a use, up to now."""
        now = self._clock()
        step: Node | None = node
        while step is not None:
            if step.locks <= 0:
                raise SlotError("a node was unlocked more often than it was locked")
            step.locks -= 1
            parent = step.parent
            if used:
                step.last_used = now
                if parent is not None:
                    self._queue.used(step)
            if step.locks == 0:
                self.evictable += len(step)
                if not step.children and parent is not None:
                    self._queue.offer(step)
            if parent is None:
                self._forget_empty_root(step)
            step = parent

    def pin(self, node: Node) -> None:
        """A lock that stands for no row: counted apart as well."""
        self.lock(node)
        for step in node.path():
            step.pins += 1

    def unpin(self, node: Node) -> None:
        """Take back one pin; that is no use of the path."""
        for step in node.path():
            step.pins -= 1
        self.unlock(node, used=False)

    # --- growing --------------------------------------------------------------------------------------------------

    def extend(
        self, node: Node, tokens: Sequence[int], slots: Sequence[int], priority: int = 0
    ) -> tuple[Node, int]:  # fmt: skip
        """Put `tokens` with their `slots` behind `node`, for a request of `priority`; (new end, duplicates).

        The caller holds one lock that ends at `node`; the lock moves along to the new end. The first `duplicates`
        tokens were there already: the tree keeps the slots it has, and the caller still owns slots[:duplicates].
        Where `node` is a leaf that only the caller locks, it grows in place.
        """
        end, depth, within = self._walk(node, tokens, len(tokens))
        if within:
            end = self._split(end.children[tokens[depth]], within)
            depth += within
        if end is not node:
            self.lock(end, above=node)
        if depth < len(tokens):
            rest, rest_slots = array("i", tokens[depth:]), array("i", slots[depth:])
            self.tokens += len(rest)
            if end.ghosts:
                end.ghosts.discard(rest[0])
            if not end.children and end.locks == 1 and not end.is_root:
                end.tokens.extend(rest)
                end.slots.extend(rest_slots)
                end.ghosts = None
                end.priority = min(end.priority, priority)
            else:
                child = end.children[rest[0]] = Node(end, rest, rest_slots)
                child.last_used = self._clock()
                child.locks = 1
                child.priority = priority
                self._queue.withdraw(end)
                self.nodes += 1
                end = child
                self._queue.used(end)
            end.epoch = self.epoch
            for watcher in self.watchers:
                watcher.grown(end, len(rest))
        return end, depth

    # --- shrinking ------------------------------------------------------------------------------------------------

    def evict(self, count: int) -> int:
        """Free at least `count` tokens from unlocked leaves, by policy; fewer only when there are fewer. Their number.

        Of the last leaf only the tail that is needed goes: what is left is still the prefix of something.
        """
        freed = 0
        while freed < count:
            node = self._queue.pop()
            if node is None:
                break
            take = min(len(node), count - freed)
            freed += take
            self.evictions += 1
            self.policy.evicted(node, take == len(node))
            self._cut(node, take, "pressure")
        self.evicted += freed
        return freed

    def clear(self, where: Callable[[Hashable], bool] | None = None, reason: Reason = "flush") -> int:
        """Free everything that nobody locks, in the namespaces that `where` accepts; the number of tokens."""
        before = self.tokens
        for _, node in reversed(list(self.walk(where))):
            if not node.is_root and not node.locks and not node.children:
                self._queue.withdraw(node)
                self.policy.evicted(node, True)
                self._cut(node, len(node), reason)
        if not self.tokens:
            for watcher in self.watchers:
                watcher.cleared()
        return before - self.tokens

    def check(self) -> None:
        """Raise SlotError where an invariant of the class does not hold; O(nodes) and a linear pass over the slots."""
        check_tree(self)

    # --- inside ---------------------------------------------------------------------------------------------------

    def _walk(self, node: Node, ids: Sequence[int], limit: int) -> tuple[Node, int, int]:
        """(last node whose whole span matches, tokens matched up to its end, tokens matched inside the next node)."""
        depth = 0
        while depth < limit:
            child = node.children.get(ids[depth])
            if child is None:
                return node, depth, 0
            within = _common_prefix(child.tokens, ids, depth, limit)
            if within < len(child):
                return node, depth, within
            node, depth = child, depth + within
        return node, depth, 0

    def _split(self, node: Node, at: int) -> Node:
        """Cut `node` in two after `at` tokens; the new upper part."""
        parent = node.parent
        if parent is None or not 0 < at < len(node):
            raise SlotError("a split must fall inside a node")
        upper = Node(parent, node.tokens[:at], node.slots[:at])
        upper.locks, upper.hits, upper.last_used = node.locks, node.hits, node.last_used
        upper.pins, upper.priority, upper.epoch, upper.rank = node.pins, node.priority, node.epoch, node.rank
        upper.children[node.tokens[at]] = node
        parent.children[upper.tokens[0]] = upper
        node.parent = upper
        node.start += at
        node.tokens, node.slots = node.tokens[at:], node.slots[at:]
        self.nodes += 1
        for watcher in self.watchers:
            watcher.split(upper, node)
        return upper

    def _cut(self, node: Node, count: int, reason: Reason) -> None:
        """Drop the last `count` tokens of an unlocked leaf, and the leaf with its last token."""
        parent = node.parent
        if parent is None or node.locks or node.children:
            raise SlotError("only an unlocked leaf can be evicted")
        kept = len(node) - count
        for watcher in self.watchers:
            watcher.evicting(node, kept, reason)
        self.tokens -= count
        self.evictable -= count
        self._release(node.slots[kept:])
        remember_evicted(node if kept else parent, node.tokens[kept])
        if kept:
            del node.tokens[kept:], node.slots[kept:]
            self._queue.offer(node)
            return
        del parent.children[node.tokens[0]]
        self.nodes -= 1
        if parent.is_root:
            self._forget_empty_root(parent)
        elif parent.locks == 0 and not parent.children:
            self._queue.offer(parent)

    def _forget_empty_root(self, root: Node) -> None:
        if not root.children and root.locks == 0 and (not root.ghosts or len(self._roots) > ROOTS_KEPT):
            self._roots.pop(root.key, None)


def _common_prefix(span: Ids, ids: Sequence[int], start: int, limit: int) -> int:
    """How many tokens of `span` equal ids[start:limit]; at least 1 (the caller found the child by its first token)."""
    length = min(len(span), limit - start)
    other = ids[start : start + length]
    if span[:length] == other:
        return length
    differ = np.asarray(span[:length], dtype=np.int32) != np.asarray(other, dtype=np.int32)
    return int(differ.argmax()) if differ.any() else length
