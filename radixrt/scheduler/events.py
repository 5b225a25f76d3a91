"""Events for routers: which blocks of tokens this engine has cached, as hash chains on a ZeroMQ PUB socket.

The tree is cut into blocks of BLOCK tokens along each path. A block's hash names the whole path up to its end:

    h(-1) = SHA-256(msgpack([model, adapter, tenant, salt]))[:16]                 the namespace; absent fields are nil
    h(i)  = SHA-256(h(i-1) + tokens of block i as little-endian int32)[:16]

So a router that has a prompt's token ids computes the same chain and knows how many of its blocks are here: those up to
the first hash that was never stored, or was removed since. (The idea is vLLM's KV events; so is the framing.)

A message has three frames: TOPIC, the batch's number (uint64, big-endian, from 0, without gaps), and a msgpack
EventBatch. The first batch after a start holds Cleared. Whoever misses a number asks the replay socket from a DEALER
with two frames: empty, and the first number wanted as eight bytes. Each batch that is still kept comes as three frames,
empty, number, batch, and at the end one with the number -1 and an empty batch. If the first that comes is later than
the one wanted, the rest is no longer kept: forget what is known of this engine.

Events hold token ids, and nothing asks who reads them: bind to an address that only the router reaches.
"""

from __future__ import annotations

import hashlib
import struct
import sys
import time
from array import array
from collections import deque
from collections.abc import Hashable, Sequence
from typing import Any, TypeAlias

import msgspec
import zmq

from radixrt.cache import Node, Reason, TreeWatcher
from radixrt.errors import StartupError
from radixrt.messages import Namespace

BLOCK = 16
"""Tokens of a block."""
TOPIC = b"kv-events"
END = struct.pack(">q", -1)
KEPT = 10_000
"""Batches kept for replay."""


class Stored(msgspec.Struct, frozen=True, tag=True):
    """These blocks, which follow one another, are in the tree (or will be, when the step under way is done)."""

    hashes: list[bytes]
    parent: bytes
    """Hash of the block before them; of the namespace, before the first."""
    token_ids: list[int]
    namespace: Namespace
    block_size: int = BLOCK


class Removed(msgspec.Struct, frozen=True, tag=True):
    hashes: list[bytes]


class Cleared(msgspec.Struct, frozen=True, tag=True):
    """Nothing is cached any more."""


Event: TypeAlias = Stored | Removed | Cleared


class EventBatch(msgspec.Struct, frozen=True):
    time: float
    """Unix time, seconds."""
    events: list[Event]


def root_hash(namespace: Namespace) -> bytes:
    """Where a namespace's chains begin."""
    fields = [namespace.model, namespace.adapter, namespace.tenant, namespace.salt]
    return hashlib.sha256(msgspec.msgpack.encode(fields)).digest()[:16]


def block_hashes(parent: bytes, ids: Sequence[int]) -> list[bytes]:
    """The hashes of the whole blocks in `ids`, which follow the block of hash `parent`."""
    hashes = []
    for start in range(0, len(ids) - BLOCK + 1, BLOCK):
        block = array("i", ids[start : start + BLOCK])
        if sys.byteorder == "big":
            block.byteswap()
        parent = hashlib.sha256(parent + block.tobytes()).digest()[:16]
        hashes.append(parent)
    return hashes


class KvEvents(TreeWatcher):
    """Turns what happens in the tree into events; `take` gives those since the last call.

    Each node keeps the hashes of the blocks that end in it, so every block is kept once, and costs one hash.
    """

    def __init__(self) -> None:
        self._events: list[Event] = [Cleared()]

    def take(self) -> list[Event]:
        events, self._events = self._events, []
        return events

    def grown(self, node: Node, added: int) -> None:
        first = (node.end - added) // BLOCK
        if node.end // BLOCK == first:
            return
        namespace = node.namespace
        if not isinstance(namespace, Namespace):
            return  # a request that shares with nobody: the prefix cache is off
        parent = _last_hash(node, namespace)
        ids = _tokens_from(node, first * BLOCK)
        hashes = block_hashes(parent, ids)
        node.hashes = [*(node.hashes or ()), *hashes]
        token_ids = ids[: len(hashes) * BLOCK].tolist()
        self._events.append(Stored(hashes=hashes, parent=parent, token_ids=token_ids, namespace=namespace))

    def split(self, upper: Node, lower: Node) -> None:
        if lower.hashes:
            count = _blocks(upper)
            upper.hashes, lower.hashes = lower.hashes[:count], lower.hashes[count:]

    def evicting(self, node: Node, kept: int, reason: Reason) -> None:
        if node.hashes:
            count = (node.start + kept) // BLOCK - node.start // BLOCK
            if node.hashes[count:]:
                self._events.append(Removed(node.hashes[count:]))
                node.hashes = node.hashes[:count]

    def cleared(self) -> None:
        self._events = [Cleared()]  # says all that came before it, too


def _blocks(node: Node) -> int:
    """How many blocks end in the node."""
    return node.end // BLOCK - node.start // BLOCK


def _last_hash(node: Node, namespace: Hashable) -> bytes:
    step: Node | None = node
    while step is not None:
        if step.hashes:
            return step.hashes[-1]
        step = step.parent
    return root_hash(namespace) if isinstance(namespace, Namespace) else b""


def _tokens_from(node: Node, start: int) -> array[int]:
    """The path's tokens from position `start` to the end of `node`."""
    parts = []
    step: Node | None = node
    while step is not None and step.end > start:
        parts.append(step.tokens[max(start - step.start, 0) :])
        step = step.parent
    ids = array("i")
    for part in reversed(parts):
        ids.extend(part)
    return ids


class EventPublisher:
    """The two sockets, bound; `flush` sends what has happened, `answer` what was asked for on `replay`.

    Nothing here waits: a subscriber that does not read loses messages, and finds them by their numbers.
    """

    def __init__(
        self, context: zmq.Context[Any], events: KvEvents, endpoint: str, replay: str | None, kept: int = KEPT
    ) -> None:
        self._events = events
        self._kept: deque[tuple[int, bytes]] = deque(maxlen=kept)
        self._next = 0
        self._publish = _bound(context, zmq.PUB, endpoint)
        self.replay = _bound(context, zmq.ROUTER, replay or replay_endpoint(endpoint), hwm=2 * kept)
        self.addresses = tuple(str(s.getsockopt_string(zmq.LAST_ENDPOINT)) for s in (self._publish, self.replay))

    def flush(self) -> None:
        events = self._events.take()
        if not events:
            return
        number, batch = self._next, msgspec.msgpack.encode(EventBatch(time.time(), events))
        self._next += 1
        self._kept.append((number, batch))
        self._publish.send_multipart([TOPIC, struct.pack(">Q", number), batch], zmq.DONTWAIT)

    def answer(self) -> None:
        """Answer every replay request that has come; one that is malformed is dropped."""
        while True:
            try:
                frames = self.replay.recv_multipart(zmq.DONTWAIT)
            except zmq.Again:
                return
            if len(frames) != 3 or frames[1] or len(frames[2]) != 8:
                continue
            (start,) = struct.unpack(">Q", frames[2])
            for number, batch in self._kept:
                if number >= start:
                    self.replay.send_multipart([frames[0], b"", struct.pack(">Q", number), batch])
            self.replay.send_multipart([frames[0], b"", END, b""])

    def close(self) -> None:
        self._publish.close(0)
        self.replay.close(0)


def replay_endpoint(endpoint: str) -> str:
    """The one beside `endpoint`: the next port, or the path with `-replay`."""
    head, _, port = endpoint.rpartition(":")
    if endpoint.startswith("tcp://"):
        if not port.isdigit() or not int(port):
            raise StartupError(f"--kv-events {endpoint} names no port: give --kv-events-replay as well")
        return f"{head}:{int(port) + 1}"
    return f"{endpoint}-replay"


def _bound(context: zmq.Context[Any], kind: int, endpoint: str, hwm: int = 10_000) -> zmq.Socket[bytes]:
    socket: zmq.Socket[bytes] = context.socket(kind)
    socket.setsockopt(zmq.SNDHWM, hwm)
    socket.setsockopt(zmq.LINGER, 0)
    try:
        socket.bind(endpoint)
    except zmq.ZMQError as error:
        socket.close(0)
        raise StartupError(f"KV events cannot be published on {endpoint}: {error}") from error
    return socket
