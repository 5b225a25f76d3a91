"""What a whole engine tells of its tree: events and replay give what /cache shows; each metric moves when it should."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import pytest
import zmq

from radixrt import Engine, SamplingParams
from radixrt.scheduler.events import BLOCK, END, TOPIC, Cleared, EventBatch, Stored, block_hashes, root_hash
from radixrt.scheduler.events import replay_endpoint as beside
from tests.server.conftest import serving
from tests.waiting import HANG_S

ONE = SamplingParams(max_tokens=1, temperature=0, ignore_eos=True)


class Router:
    """Knows what events say, and nothing else."""

    def __init__(self, engine: Engine) -> None:
        self.context = zmq.Context()
        self.context.linger = 0  # what a failed test leaves behind must not hold up whoever collects it
        endpoint = str(engine.config.kv_events)
        self.heard: zmq.Socket[bytes] = self.context.socket(zmq.SUB)
        self.heard.subscribe(TOPIC)
        self.heard.connect(endpoint)
        self.asked: zmq.Socket[bytes] = self.context.socket(zmq.DEALER)
        self.asked.connect(beside(endpoint))
        self.next = 0
        self.blocks: dict[bytes, tuple[bytes, list[int], Any]] = {}
        """By hash: parent, token ids, namespace."""

    def take(self, number: int, batch: bytes) -> None:
        assert number == self.next, "numbers have no gaps"
        self.next += 1
        for event in msgspec.msgpack.decode(batch, type=EventBatch).events:
            if isinstance(event, Cleared):
                self.blocks.clear()
            elif isinstance(event, Stored):
                parent = event.parent
                for i, one in enumerate(event.hashes):
                    assert one not in self.blocks
                    ids = event.token_ids[i * BLOCK : (i + 1) * BLOCK]
                    assert block_hashes(parent, ids) == [one]
                    self.blocks[one] = (parent, ids, event.namespace)
                    parent = one
            else:
                for one in event.hashes:
                    del self.blocks[one]

    def replay(self) -> None:
        """Ask for all that has not been heard."""
        self.asked.send_multipart([b"", struct.pack(">Q", self.next)])
        while True:
            assert self.asked.poll(HANG_S * 1000), "the replay did not come"
            _, number, batch = self.asked.recv_multipart()
            if number == END:
                return
            if struct.unpack(">Q", number)[0] >= self.next:
                self.take(struct.unpack(">Q", number)[0], batch)

    def listen(self) -> int:
        """Take in what was published since; how many batches. What was missed is asked for."""
        count = 0
        while self.heard.poll(200 if not count else 0):
            _, number, batch = self.heard.recv_multipart()
            found = struct.unpack(">Q", number)[0]
            if found == self.next:
                self.take(found, batch)
                count += 1
            elif found > self.next:
                self.replay()
        return count

    def chains(self, tenant: str, salt: str | None) -> set[tuple[int, ...]]:
        """The longest paths of whole blocks, as token ids."""
        mine = {h: b for h, b in self.blocks.items() if (b[2].tenant, b[2].salt) == (tenant, salt)}
        parents = {parent for parent, _, _ in mine.values()}
        paths = set()
        for one in mine.keys() - parents:
            ids: list[int] = []
            while one in mine:
                parent, block, namespace = mine[one]
                ids = block + ids
                one = parent
            assert one == root_hash(namespace), "every chain begins at its namespace's hash"
            paths.add(tuple(ids))
        return paths


@contextmanager
def router(engine: Engine) -> Iterator[Router]:
    made = Router(engine)
    try:
        yield made
    finally:
        made.heard.close(0)
        made.asked.close(0)
        made.context.term()


def shown(engine: Engine, salt: str | None, known: dict[str, list[int]]) -> set[tuple[int, ...]]:
    """The paths of /cache in whole blocks: of each leaf the tokens of the prompt that it belongs to."""
    paths, path = set(), 0
    nodes = engine.cache(cache_salt=salt).nodes
    for i, node in enumerate(nodes):
        path = node.start + node.tokens
        if i + 1 < len(nodes) and nodes[i + 1].depth > node.depth:
            continue
        owner = [ids for ids in known.values() if engine.detokenize(ids[node.start :]).startswith(node.text[:20])]
        assert len(owner) == 1, node
        if path >= BLOCK:
            paths.add(tuple(owner[0][: path // BLOCK * BLOCK]))
    return paths


def test_a_router_knows_what_the_cache_shows(small_engine: Engine) -> None:
    tenant = small_engine.for_tenant("heard")
    stem = list(range(2000, 2100))
    with router(small_engine) as heard:
        heard.replay()  # whatever happened before it came
        known: dict[str, list[int]] = {}
        for name, salt, ids in (
            ("one", None, [*stem, *range(3000, 3040)]),
            ("two", None, [*stem, *range(4000, 4055)]),
            ("apart", None, list(range(5000, 5033))),
            ("salted", "s", [*stem, *range(6000, 6020)]),
        ):
            known[name] = ids
            tenant.generate(ids, ONE, cache_salt=salt)
        plain = {name: ids for name, ids in known.items() if name != "salted"}
        salted = {"salted": known["salted"]}
        while heard.listen():
            pass
        heard.replay()
        assert heard.chains("heard", None) == shown(tenant, None, plain) and len(plain) == 3
        assert heard.chains("heard", "s") == shown(tenant, "s", salted) != set()
        # A router that comes now learns the same from the replay alone, or from the beginning what is left.
        with router(small_engine) as late:
            late.replay()
            assert late.blocks == heard.blocks and late.next == heard.next
        # What is dropped is told, pinned text stays.
        pin = tenant.pin(known["one"], 60)
        tenant.flush()
        heard.replay()
        assert heard.chains("heard", None) == {tuple(known["one"][: len(known["one"]) // BLOCK * BLOCK])}
        assert heard.chains("heard", "s") == set()
        tenant.unpin(pin)
        tenant.flush()
        heard.replay()
        assert heard.chains("heard", None) == set()


def metrics(http: Any) -> dict[str, float]:
    lines = [line.rsplit(" ", 1) for line in http.get("/metrics").text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, value in lines}


@pytest.fixture(scope="module")
def scraped(small_engine: Engine) -> Iterator[Any]:
    with serving(small_engine, None) as served:  # type: ignore[arg-type]
        yield served.http


def test_each_metric_moves_when_it_should(small_engine: Engine, scraped: Any) -> None:
    engine = small_engine.for_tenant("metrics")
    stem = list(range(7000, 7200))

    def change(act: Any) -> dict[str, float]:
        before = metrics(scraped)
        act()
        after = metrics(scraped)
        return {name.removeprefix("radixrt_"): after[name] - before.get(name, 0.0) for name in after}

    cold = change(lambda: engine.generate(stem, ONE))
    assert cold['cache_hit_tokens_total{source="tree"}'] == 0
    assert cold['prompt_tokens_total{source="computed"}'] == 200
    assert cold["cache_lock_seconds_count"] == 1 and cold["cache_lock_seconds_sum"] > 0
    assert cold["cache_nodes"] == 1
    warm = change(lambda: engine.generate([*stem, 1], ONE))
    assert warm['cache_hit_tokens_total{source="tree"}'] == 200 and warm['prompt_tokens_total{source="computed"}'] == 1
    assert warm["shared_attention_saved_tokens_total"] == 0, "one row alone shares nothing"

    async def many() -> None:
        long = SamplingParams(max_tokens=200, temperature=0, ignore_eos=True)  # so that all are there at once
        await asyncio.gather(*(engine.agenerate([*stem, 10 + n], long) for n in range(4)))

    together = change(lambda: asyncio.run(many()))
    assert together["shared_attention_saved_tokens_total"] >= 200
    fresh = [*range(8000, 8200)]

    async def same() -> None:
        await asyncio.gather(*(engine.agenerate([*fresh, n], ONE) for n in range(4)))

    burst = change(lambda: asyncio.run(same()))
    found = sum(burst[f'cache_hit_tokens_total{{source="{source}"}}'] for source in ("tree", "in_flight"))
    assert found == 600 and burst['prompt_tokens_total{source="computed"}'] == 204, "the work was done once"
    pinned = change(lambda: engine.pin(stem, 60))
    assert (pinned["cache_pins"], pinned["cache_pinned_tokens"]) == (1, 200)

    def fill() -> None:
        for n in range(5):
            engine.generate([20_000 + 2000 * n + i for i in range(1900)], ONE)

    pressed = change(fill)
    assert pressed['evicted_tokens_total{policy="lru"}'] > 2000 and pressed['evictions_total{policy="lru"}'] >= 1
    assert pressed["cache_pins"] == 0 == pressed["cache_pins_broken_total"]
    assert pressed["tier_stored_tokens_total"] > 0
    ended = change(lambda: engine.unpin(engine.cache().pins[0]))
    assert (ended["cache_pins"], ended["cache_pinned_tokens"]) == (-1, -200)
    assert not engine.cache().pins
