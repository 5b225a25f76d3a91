"""Events for routers: a router that hears them knows exactly which blocks are cached, also after it missed some."""

from __future__ import annotations

import hashlib
import random
import struct
from array import array

import msgspec
import pytest
import zmq

from radixrt.cache import PrefixCache
from radixrt.errors import StartupError
from radixrt.messages import Namespace
from radixrt.scheduler.events import BLOCK, END, Cleared, EventBatch, EventPublisher, KvEvents, Stored, replay_endpoint
from tests.waiting import HANG_S

NAMES = (Namespace(model="m", salt="a"), Namespace(model="m", tenant="a"))


def chain(namespace: Namespace, ids: list[int]) -> list[bytes]:
    """What the documentation says, written down once more."""
    packed = msgspec.msgpack.encode([namespace.model, namespace.adapter, namespace.tenant, namespace.salt])
    digest, out = hashlib.sha256(packed).digest()[:16], []
    for start in range(0, len(ids) // BLOCK * BLOCK, BLOCK):
        digest = hashlib.sha256(digest + struct.pack(f"<{BLOCK}i", *ids[start : start + BLOCK])).digest()[:16]
        out.append(digest)
    return out


class Router:
    def __init__(self) -> None:
        self.known: set[bytes] = set()

    def hear(self, events: list) -> None:
        for event in events:
            if isinstance(event, Cleared):
                self.known.clear()
            elif isinstance(event, Stored):
                assert len(event.token_ids) == BLOCK * len(event.hashes) and not self.known & set(event.hashes)
                self.known.update(event.hashes)
            else:
                assert set(event.hashes) <= self.known
                self.known.difference_update(event.hashes)


def test_a_router_knows_what_is_cached() -> None:
    rng = random.Random(3)
    cache, events, router = PrefixCache(600), KvEvents(), Router()
    cache.tree.watchers.append(events)
    rows = []
    for _ in range(1500):
        if rng.random() < 0.5 or not rows:
            namespace = rng.choice(NAMES)
            ids = array("i", [rng.choice((0, 0, 0, 0, 0, 0, 0, 1)) for _ in range(rng.randint(1, 70))])
            node, length = cache.tree.match(namespace, ids, len(ids))
            cache.tree.lock(node)
            slots = cache.allocate(len(ids) - length)
            if slots is None:
                cache.tree.unlock(node)
                continue
            at = length
            while at < len(ids):  # in pieces, as chunks and decoding do
                step = rng.randint(1, len(ids) - at)
                node, _ = cache.tree.extend(node, ids[at : at + step], slots[at - length : at - length + step].tolist())
                at += step
            rows.append(node)
        elif rng.random() < 0.02:
            cache.tree.clear()
        else:
            cache.tree.unlock(rows.pop(rng.randrange(len(rows))))
        router.hear(events.take())
        truth = set()
        for _, node in cache.tree.walk():
            if not node.children:
                truth.update(chain(node.namespace, [t for step in node.path() for t in step.tokens]))
        assert router.known == truth
    assert truth


def test_batches_are_numbered_and_can_be_asked_for_again() -> None:
    context = zmq.Context()
    context.linger = 0
    events = KvEvents()
    publisher = EventPublisher(context, events, "inproc://events", None, kept=3)
    asking = context.socket(zmq.DEALER)
    try:
        asking.connect("inproc://events-replay")
        cache = PrefixCache(200)
        cache.tree.watchers.append(events)
        publisher.flush()
        for first in range(4):
            node, _ = cache.tree.match(NAMES[0], array("i"), 0)
            cache.tree.lock(node)
            cache.tree.extend(node, array("i", [first] * BLOCK), cache.allocate(BLOCK).tolist())
            publisher.flush()
            publisher.flush()  # nothing has happened: nothing is sent
        asking.send_multipart([b"", b"junk"])
        asking.send_multipart([b"", struct.pack(">Q", 0)])
        assert publisher.replay.poll(HANG_S * 1000)
        publisher.answer()
        got = []
        while True:
            _, number, batch = asking.recv_multipart()
            if number == END:
                break
            got.append((struct.unpack(">Q", number)[0], msgspec.msgpack.decode(batch, type=EventBatch)))
        assert [number for number, _ in got] == [2, 3, 4], "the last three are kept"
        assert got[-1][1].events[0].hashes == chain(NAMES[0], [3] * BLOCK)
    finally:
        asking.close(0)
        publisher.close()
        context.term()


def test_the_replay_endpoint_is_beside_the_other() -> None:
    assert replay_endpoint("tcp://127.0.0.1:5557") == "tcp://127.0.0.1:5558"
    assert replay_endpoint("ipc:///tmp/x") == "ipc:///tmp/x-replay"
    with pytest.raises(StartupError, match="kv-events-replay"):
        replay_endpoint("tcp://127.0.0.1:*")
