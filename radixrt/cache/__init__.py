"""The prefix cache: a radix tree over token ids, the pool of KV slots, and what may be evicted."""

from radixrt.cache.eviction import LRU, EvictionPolicy
from radixrt.cache.node import Ids, Node
from radixrt.cache.pool import SlotError, SlotPool, Slots
from radixrt.cache.prefix import PrefixCache
from radixrt.cache.tree import RadixTree

__all__ = ["LRU", "EvictionPolicy", "Ids", "Node", "PrefixCache", "RadixTree", "SlotError", "SlotPool", "Slots"]
