"""Where the KV of the prefix tree goes when the pool has no room for it: keys, one interface, and its stores."""

from radixrt.tiers.disk import DiskTier
from radixrt.tiers.host import HostTier
from radixrt.tiers.interface import Key, Tier, TierError
from radixrt.tiers.keys import CHUNK, KEY_BYTES, chunk_keys, next_key, owner_label, root_key
from radixrt.tiers.layered import LayeredTier

__all__ = [
    "CHUNK",
    "KEY_BYTES",
    "DiskTier",
    "HostTier",
    "Key",
    "LayeredTier",
    "Tier",
    "TierError",
    "chunk_keys",
    "next_key",
    "owner_label",
    "root_key",
]
