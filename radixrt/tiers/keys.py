"""Keys of chunks: (namespace, hash chain of the tokens). A chunk's key names all tokens before it, too.

    key(-1) = digest of the owner [8] | digest of the namespace [24]                   the chain's root, 32 bytes
    key(i) = digest of the owner [8] | blake2b-128(key(i - 1) | tokens of chunk i)     24 bytes

The owner is the namespace without its salt, so that all that is of one tenant can be told from what is of others. The
chain begins with the namespace's digest, so equal tokens of two tenants have unrelated keys, and a key says
nothing of the tokens. Since a chunk's key names its whole prefix, its place in the sequence, and so the rotary
positions in its keys, are named as well. The chain over fixed blocks is that of vLLM's prefix cache ("Automatic Prefix
Caching", design documents, v1).
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence

import msgspec

from radixrt.messages import Namespace

CHUNK = 16
"""Tokens of a chunk. What is left behind the last whole chunk of a path is not stored, half a chunk on average, so a
small one loses little; and a look-up hashes a prompt once, one digest a chunk: 90 for 1,400 tokens, about 0.1 ms. A
chunk is still 100 KiB to 2 MiB of keys and values, so that nothing is won by a larger one. vLLM and the routers that
listen to its events count in 16, too."""
KEY_BYTES = 24
LABEL_BYTES = 8
"""A key begins with so many bytes of its owner's digest."""


def namespace_digest(namespace: Namespace) -> bytes:
    """32 bytes that name a namespace: of its typed fields, never of a joined string."""
    fields = msgspec.structs.astuple(namespace)
    return hashlib.blake2b(msgspec.msgpack.encode(fields), digest_size=32, person=b"radixrt-ns").digest()


def owner_label(owner: Namespace) -> bytes:
    """What the keys of this owner, and of nobody else, begin with."""
    return namespace_digest(owner)[:LABEL_BYTES]


def root_key(namespace: Namespace) -> bytes:
    """32 bytes from which the namespace's chains go on."""
    return owner_label(namespace.owner) + namespace_digest(namespace)[LABEL_BYTES:]


def next_key(previous: bytes, tokens: Sequence[int]) -> bytes:
    """The key of the chunk `tokens` behind the chunk with key `previous` (the root's for the first one)."""
    body = tokens if isinstance(tokens, array) else array("i", tokens)
    return previous[:LABEL_BYTES] + hashlib.blake2b(previous + body.tobytes(), digest_size=16).digest()


def chunk_keys(namespace: Namespace, ids: Sequence[int], known: Sequence[bytes] = ()) -> list[bytes]:
    """Keys of all whole chunks of `ids`; the first ones may be `known` from an earlier call with a shorter `ids`."""
    keys = list(known)
    previous = keys[-1] if keys else root_key(namespace)
    for start in range(len(keys) * CHUNK, len(ids) - CHUNK + 1, CHUNK):
        previous = next_key(previous, ids[start : start + CHUNK])
        keys.append(previous)
    return keys
