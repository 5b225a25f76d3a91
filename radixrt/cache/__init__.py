"""The prefix cache: a radix tree over token ids, the pool of KV slots, and what may be evicted."""

from radixrt.cache.check import Paced
from radixrt.cache.eviction import LRU, POLICIES, EvictionPolicy, make_eviction
from radixrt.cache.misses import Miss, explain
from radixrt.cache.node import Ids, Node
from radixrt.cache.pins import Pin, PinQuota, Pins, UnknownPin
from radixrt.cache.pool import SlotError, SlotPool, Slots
from radixrt.cache.prefix import PrefixCache, Watermarks
from radixrt.cache.tree import RadixTree
from radixrt.cache.watch import Reason, TreeWatcher

__all__ = [
    "LRU", "POLICIES", "EvictionPolicy", "Ids", "Miss", "Node", "Paced", "Pin", "PinQuota", "Pins", "PrefixCache",
    "RadixTree", "Reason", "SlotError", "SlotPool", "Slots", "TreeWatcher", "UnknownPin", "Watermarks", "explain",
    "make_eviction",
]  # fmt: skip
