"""Pins: time to live, quotas, giving way, renewal; never a slot lost."""

from __future__ import annotations

import random
from array import array
from contextlib import suppress
from itertools import pairwise

import pytest

from radixrt.cache import Paced, PinQuota, PrefixCache, SlotError, UnknownPin


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def cached(cache: PrefixCache, ids: range | list[int], namespace: object = "n"):
    tokens = array("i", ids)
    node, length = cache.tree.match(namespace, tokens, len(tokens))
    cache.tree.lock(node)
    slots = cache.allocate(len(tokens) - length)
    assert slots is not None
    node, _ = cache.tree.extend(node, tokens[length:], slots.tolist())
    return node


def pin(cache: PrefixCache, ids: range | list[int], ttl: float, owner: str = "o", namespace: object = "n"):
    node = cached(cache, ids, namespace)
    try:
        return cache.pins.add(namespace, owner, node, ttl)
    finally:
        cache.tree.unlock(node)


def test_a_pin_stays_until_its_time_and_no_longer() -> None:
    clock = Clock()
    cache = PrefixCache(100, clock=clock, pin_quota=50)
    pin(cache, range(10), 60)
    assert cache.tree.clear() == 0 and cache.tree.evict(100) == 0
    clock.now = 59.9
    cache.begin_step(1)
    assert cache.tree.evictable == 0 and cache.pins.tokens == 10
    clock.now = 60.0
    cache.begin_step(2)
    assert cache.tree.evictable == 10 and len(cache.pins) == 0 and cache.pins.pinned("o") == 0
    cache.check()


def test_shared_tokens_count_once_and_the_quota_is_the_owner_s() -> None:
    cache = PrefixCache(200, clock=Clock(), pin_quota=25)
    first = pin(cache, range(20), 9)
    pin(cache, [*range(20), 50, 51], 9)
    assert cache.pins.pinned("o") == 22
    with pytest.raises(PinQuota, match="--pin-quota"):
        pin(cache, [*range(15), 90, 91, 92, 93], 9)
    with pytest.raises(PinQuota):
        cache.pins.check_room("n", "o", array("i", [*range(15), 90, 91, 92, 93]))
    cache.pins.check_room("n", "o", array("i", [*range(20), 50, 51, 52, 53, 54]))
    pin(cache, range(20), 9, owner="p", namespace="m")
    cache.pins.remove("n", first.id)
    assert cache.pins.pinned("o") == 22, "the other pin holds the shared part"
    cache.check()


def test_a_pin_is_unknown_in_another_namespace_and_after_its_end() -> None:
    cache = PrefixCache(100, clock=Clock())
    made = pin(cache, range(5), 9)
    with pytest.raises(UnknownPin):
        cache.pins.remove("other", made.id)
    cache.pins.remove("n", made.id)
    with pytest.raises(UnknownPin):
        cache.pins.remove("n", made.id)


def test_pinning_again_prolongs() -> None:
    clock = Clock()
    cache = PrefixCache(100, clock=clock)
    made = pin(cache, range(5), 10)
    clock.now = 8
    assert pin(cache, range(5), 10).id == made.id
    assert pin(cache, range(5), 1).expires == 18
    clock.now = 17
    cache.pins.expire()
    assert len(cache.pins) == 1
    clock.now = 18
    cache.pins.expire()
    assert len(cache.pins) == 0 and cache.tree.evictable == 5


def test_pins_give_way_soonest_first_and_only_as_many_as_it_takes() -> None:
    cache = PrefixCache(100, clock=Clock(), pin_quota=100)
    late, soon = pin(cache, range(10), 90), pin(cache, range(20, 30), 30)
    assert cache.pins.give_way(5) and cache.pins.broken == 1
    assert [left.id for left in cache.pins.of("n")] == [late.id] and soon.id != late.id
    assert cache.pins.give_way(5) and not cache.pins.give_way(5)
    cache.check()


def test_random_histories_of_pins() -> None:
    rng, clock = random.Random(5), Clock()
    cache = PrefixCache(120, clock=clock, pin_quota=60)
    names: list[str] = []
    for _ in range(3000):
        clock.now += rng.random()
        move = rng.random()
        if move < 0.5 and cache.available > 12:
            try:
                ids = [rng.randrange(3) for _ in range(rng.randint(1, 10))]
                names.append(pin(cache, ids, rng.uniform(0.1, 8)).id)
            except PinQuota:
                assert cache.pins.pinned("o") > 50
        elif move < 0.6 and names:
            with suppress(UnknownPin):
                cache.pins.remove("n", names.pop(rng.randrange(len(names))))
        elif move < 0.7:
            cache.pins.give_way(rng.randint(1, 5))
        else:
            cache.tree.evict(rng.randint(1, 9))
            cache.pins.expire()
        cache.check()
        pinned = sum(len(node) for _, node in cache.tree.walk() if node.pins)
        assert cache.pins.tokens == cache.pins.pinned("o") == pinned <= 60
    clock.now += 100
    cache.pins.expire()
    assert cache.available == 120


def test_what_a_failed_step_may_have_spoilt_goes_pinned_or_not() -> None:
    cache = PrefixCache(100, clock=Clock())
    pin(cache, range(9), 50)
    cache.invalidate()
    assert cache.tree.tokens == 0 and len(cache.pins) == 0
    cache.check()


def test_a_paced_check_keeps_its_share_of_the_time() -> None:
    clock, runs = Clock(), []

    def check() -> None:
        runs.append(clock.now)
        clock.now += 0.1  # what the check takes

    paced = Paced(check, 1.0, share=0.02, clock=clock)
    while clock.now < 20:
        paced.tick()
        clock.now += 0.05
    assert runs[0] == pytest.approx(1.0, abs=0.06)
    assert all(b - a >= 5.0 for a, b in pairwise(runs)) and len(runs) == 4
    assert not Paced(check, 0.0, clock=clock).tick()


@pytest.mark.parametrize("fault", ["pins", "start", "outside"])
def test_check_finds(fault: str) -> None:
    cache = PrefixCache(100, clock=Clock())
    node = cached(cache, range(5))
    cache.check()
    if fault == "pins":
        node.pins = 3
    elif fault == "start":
        node.start = 1
    else:
        node.slots[0] = 1000
    with pytest.raises(SlotError):
        cache.check()
