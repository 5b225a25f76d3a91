"""Tiers behind the tree, with a fake runner that copies chunks: what comes back is what was computed before."""

from __future__ import annotations

import random

import pytest

from radixrt.cache import Node
from radixrt.messages import Namespace, SchedulerQuery
from radixrt.scheduler.inspector import answer
from radixrt.scheduler.tiering import TRIES
from radixrt.tiers.keys import CHUNK, chunk_keys
from tests.scheduler.fakes import expected
from tests.scheduler.test_segments import begin, segment
from tests.scheduler.tier_rig import TierRig, prompt

A, B = prompt(1, 300), prompt(2, 300)


def ask(rig: TierRig, tokens: list[int], seed: int = 7, count: int = 8, **more: object) -> int:
    """One request to its end; its output is what a fresh engine gives."""
    number = rig.submit(tokens, seed=seed, max_tokens=count, **more)
    rig.run()
    assert (rig.text(number), rig.reasons[number, 0]) == expected(tokens, count, seed)
    return number


def idle(rig: TierRig) -> None:
    scheduler = rig.scheduler
    assert not scheduler.requests and not scheduler.rows.running and not scheduler.rows.waiting
    assert not rig.tiering.prefetches and not rig.tiering._loading and not rig.tiering._saved
    assert scheduler.cache.available == scheduler.cache.capacity
    assert all(node.locks == 0 for _, node in scheduler.cache.tree.walk())
    scheduler.rows.check()


def leaves(rig: TierRig) -> list[Node]:
    return [node for _, node in rig.scheduler.cache.tree.walk() if not node.children and not node.is_root]


def test_what_was_evicted_comes_back_instead_of_being_computed():
    rig = TierRig(400)
    ask(rig, A)
    ask(rig, B)
    before = rig.runner.computed
    again = rig.usage[ask(rig, A)]
    whole = 299 // CHUNK * CHUNK
    assert (again.cached_tokens, again.prompt_tokens) == (whole, 300)
    assert rig.runner.computed - before == 300 - whole + 7
    assert 0 < again.restored_tokens <= whole
    assert rig.tiering.counts.hits == rig.tiering.counts.prefetches == 1
    assert rig.tiering.counts.stored >= rig.tiering.counts.restored == again.restored_tokens
    found = rig.scheduler.cache.hit_tokens
    assert (found["tree"], found["in_flight"], found["tier"]) == (
        whole - again.restored_tokens,
        0,
        again.restored_tokens,
    )
    idle(rig)


def test_others_go_on_while_a_request_waits_for_its_prefetch():
    rig = TierRig(400)
    ask(rig, A)
    ask(rig, B)
    rig.hold_back = True
    waiting = rig.submit(A, seed=1, max_tokens=4)
    other = rig.submit([5, 6, 7], seed=2, max_tokens=20)
    rig.run()
    order = list(rig.reasons)
    assert order.index((other, 0)) < order.index((waiting, 0))
    assert rig.text(waiting) == expected(A, 4, 1)[0]
    assert rig.text(other) == expected([5, 6, 7], 20, 2)[0]
    assert rig.usage[waiting].restored_tokens
    idle(rig)


def test_requests_that_share_a_prefix_share_its_prefetch():
    rig = TierRig(500)
    ask(rig, A)
    ask(rig, B)
    before = rig.tiering.counts.prefetches
    rig.hold_back = True
    numbers = [rig.submit([*A, n], seed=n, max_tokens=3) for n in range(1, 5)]
    rig.run()
    assert rig.tiering.counts.prefetches == before + 1
    for n, number in enumerate(numbers, 1):
        assert rig.text(number) == expected([*A, n], 3, n)[0]
        assert rig.usage[number].cached_tokens >= 288
    idle(rig)


def test_a_second_engine_over_the_same_store_is_warm():
    store = {}
    first = TierRig(1000, store)
    ask(first, A)
    first.save()
    assert len(store) == (len(A) + 7) // CHUNK
    second = TierRig(1000, store)
    usage = second.usage[ask(second, A)]
    assert usage.cached_tokens == usage.restored_tokens == 288
    assert second.runner.computed == 300 - 288 + 7
    idle(second)


def test_what_is_idle_is_saved_a_batch_at_a_time_and_only_once():
    rig = TierRig(4000)
    for seed in range(5, 11):
        ask(rig, prompt(seed, 300))
    assert not rig.runner.store
    while rig.tiering.behind(0.0):
        rig.tiering.sweep(0.0)
        rig.run()
    ends = [len([n for step in node.path() for n in step.tokens]) for node in leaves(rig)]
    assert len(rig.runner.store) == sum(end // CHUNK for end in ends) > 6 * 18 - 1
    orders = len(rig.runner.orders)
    assert not rig.tiering.sweep(0.0) and len(rig.runner.orders) == orders


def test_no_namespace_reads_anothers():
    rig = TierRig(400)
    mine, yours = Namespace(tenant="a", salt="b"), Namespace(tenant="a", salt=None)
    ask(rig, A, namespace=mine)
    ask(rig, B, namespace=mine)
    assert rig.runner.store
    usage = rig.usage[ask(rig, A, namespace=yours)]
    assert usage.cached_tokens == usage.restored_tokens == 0
    assert rig.usage[ask(rig, B, namespace=mine)].restored_tokens


def test_a_flush_forgets_what_the_tier_holds_of_all_or_of_one():
    rig = TierRig(1000)
    mine, yours = Namespace(tenant="a"), Namespace(tenant="b")
    salted = Namespace(tenant="a", salt="s")
    for namespace in (mine, salted, yours):
        ask(rig, A, namespace=namespace)
    rig.save()
    rig.tiering.clear(mine)
    rig.scheduler.cache.tree.clear()
    rig.run()
    assert set(rig.runner.store) == set(chunk_keys(yours, [*A, *expected(A, 8, 7)[0]][:307]))
    for namespace in (mine, salted):
        assert rig.usage[ask(rig, A, namespace=namespace)].restored_tokens == 0
    assert rig.usage[ask(rig, A, namespace=yours)].restored_tokens
    rig.tiering.clear()
    rig.scheduler.cache.tree.clear()
    rig.run()
    assert not rig.runner.store and not rig.tiering.index
    assert rig.usage[ask(rig, A, namespace=yours)].cached_tokens == 0
    idle(rig)


def test_a_flush_also_forgets_what_is_on_its_way():
    rig = TierRig(400)
    ask(rig, A)
    ask(rig, B)
    rig.stuck = True
    number = rig.submit(A, seed=3, max_tokens=2)
    rig.advance()
    assert rig.tiering.prefetches
    rig.tiering.clear()
    rig.scheduler.cache.tree.clear()
    rig.stuck, rig.hold_back = False, True
    rig.run()
    assert rig.text(number) == expected(A, 2, 3)[0]
    assert rig.usage[number].cached_tokens == 0
    idle(rig)


def test_what_cannot_be_read_is_computed_and_not_asked_for_again():
    rig = TierRig(400)
    ask(rig, A)
    rig.scheduler.cache.tree.evict(400)
    ask(rig, B)
    keys = chunk_keys(Namespace(), A)
    del rig.runner.store[keys[4]]
    usage = rig.usage[ask(rig, A)]
    assert usage.cached_tokens == 4 * CHUNK
    assert keys[4] not in rig.tiering.index or keys[4] in rig.runner.store
    assert rig.tiering.counts.hits < rig.tiering.counts.prefetches
    idle(rig)


def test_a_request_does_not_wait_longer_than_computing_would_take():
    rig = TierRig(700)
    for tokens in (A, B, prompt(3, 300), prompt(4, 300)):
        ask(rig, tokens)
    rig.stuck = True
    rig.tiering.rule.prefill_rate = 1000.0
    number = rig.submit(A, seed=4, max_tokens=6)
    assert not rig.step() and (number, 0) not in rig.reasons
    left = rig.tiering.seconds_left(rig.clock.now)
    assert 0.0 < left < 1.0
    rig.clock.now += left
    rig.run()
    assert rig.text(number) == expected(A, 6, 4)[0]
    assert rig.tiering.counts.given_up == 1 and rig.tiering.seconds_left(rig.clock.now) is None
    rig.stuck = False
    rig.run()  # it comes after all, and is known already
    idle(rig)


def test_restoring_that_is_slower_than_computing_is_not_tried():
    rig = TierRig(400)
    ask(rig, A)
    ask(rig, B)
    rig.tiering.rule.prefill_rate = 1000.0
    rig.tiering.rule.restored(100, 1.0, rig.clock.now)
    usage = rig.usage[ask(rig, A)]
    assert usage.restored_tokens == 0 and not rig.tiering.counts.prefetches
    rig.clock.now += 100.0  # by now the disk may be faster
    assert rig.usage[ask(rig, B)].restored_tokens


def test_nothing_of_a_failed_step_is_saved():
    rig = TierRig(400)
    number = rig.submit(A, seed=5, max_tokens=4)
    assert rig.fail_step() and number in rig.errors
    while rig.fail_step():
        pass
    rig.run()
    ask(rig, B)
    ask(rig, A)
    rig.save()
    for chunk in rig.runner.store.values():
        assert all(token > 0 or position >= 300 for position, token in chunk)
    idle(rig)


def test_a_full_disk_is_counted_and_left_alone_for_a_while():
    rig = TierRig(1000)
    ask(rig, A)
    rig.runner.full = True
    rig.tiering.sweep(rig.clock.now)
    rig.run()
    assert rig.tiering.counts.refused == 18 * CHUNK + CHUNK and rig.tiering.counts.errors
    assert not rig.tiering.behind(rig.clock.now) and not rig.tiering.sweep(rig.clock.now)
    rig.save()
    assert not rig.runner.store
    rig.runner.full = False
    rig.clock.now += 60.0
    assert rig.tiering.behind(rig.clock.now) and rig.tiering.sweep(rig.clock.now)
    rig.run()
    assert rig.runner.store
    idle(rig)


def test_prefetches_leave_room_for_what_runs():
    rig = TierRig(330)
    ask(rig, A)
    ask(rig, B)
    running = rig.submit(prompt(3, 200), seed=1, max_tokens=60)
    rig.step()
    number = rig.submit(A, seed=2, max_tokens=4)
    rig.run()
    assert rig.text(running) == expected(prompt(3, 200), 60, 1)[0]
    assert rig.text(number) == expected(A, 4, 2)[0]
    assert rig.tiering.counts.prefetches <= 2 * TRIES + 1
    idle(rig)


def test_a_program_begins_over_what_comes_back():
    rig = TierRig(400)
    ask(rig, A)
    ask(rig, B)
    part = segment(A, seed=7, max_tokens=8)
    begin(rig, [part])
    rig.run()
    assert rig.tiering.counts.hits == 1 and rig.tiering.counts.restored
    assert rig.text(part.request_id) == expected(A, 8, 7)[0]


@pytest.mark.parametrize("seed", range(4))
def test_random_histories(seed, request):
    """Aborts, failed steps, retractions, flushes, lost and refused chunks, late answers: outputs are a fresh engine's,
    every slot has one owner after every event, and all counts end at zero."""
    steps = 20_000 if request.config.getoption("--long", default=False) else 1_000
    chance = random.Random(seed)
    rig = TierRig(260, max_num_seqs=6)
    rig.runner.chance = chance
    bases = [prompt(100 + i, 90) for i in range(6)]
    namespaces = [Namespace(), Namespace(salt="x"), Namespace(tenant="x"), Namespace(tenant="x", salt="y")]
    asked: dict[int, tuple[list[int], int, int]] = {}
    for _ in range(steps):
        rig.stuck, rig.hold_back = chance.random() < 0.2, chance.random() < 0.5
        event = chance.random()
        if event < 0.12 and len(rig.scheduler.requests) < 12:
            tokens = [*chance.choice(bases)[: chance.randrange(1, 91)], *prompt(chance.randrange(50), 3)]
            entry = (tokens, chance.randrange(1, 30), chance.randrange(1000))
            number = rig.submit(tokens, seed=entry[2], max_tokens=entry[1], namespace=chance.choice(namespaces))
            asked[number] = entry
        elif event < 0.14 and rig.scheduler.requests:
            number = chance.choice(list(rig.scheduler.requests))
            rig.scheduler.cancel(number)
            asked.pop(number, None)
        elif event < 0.145:
            rig.fail_step()
        elif event < 0.15:
            answer(rig.scheduler, SchedulerQuery(query_id=1, what="flush", namespace=chance.choice(namespaces)))
        elif event < 0.2:
            rig.tiering.sweep(rig.clock.now)
        else:
            rig.step()
            rig.clock.now += chance.choice([0.0, 0.0, 1.0])
    rig.stuck = False
    rig.run()
    counts = rig.tiering.counts
    assert counts.restored and counts.stored and counts.refused and counts.hits and counts.hits < counts.prefetches
    finished = 0
    for number, (tokens, count, sample_seed) in asked.items():
        if number in rig.errors:
            assert "runner failed" in rig.errors[number]
            continue
        assert (rig.text(number), rig.reasons[number, 0]) == expected(tokens, count, sample_seed)
        finished += 1
    assert finished > steps // 40
    idle(rig)


def test_a_tenant_s_flush_voids_its_own_prefetch_and_lets_others_come():
    rig = TierRig(700)
    mine, salted, yours = Namespace(tenant="a"), Namespace(tenant="a", salt="s"), Namespace(tenant="b")
    for namespace in (mine, salted, yours):
        ask(rig, A, namespace=namespace)
    rig.save()
    rig.scheduler.cache.tree.clear()
    rig.hold_back = rig.stuck = True
    numbers = {name: rig.submit(A, seed=3, max_tokens=4, namespace=name) for name in (salted, yours)}
    rig.advance()
    assert len(rig.tiering.prefetches) == 2
    told = answer(rig.scheduler, SchedulerQuery(query_id=1, what="flush", namespace=mine))
    assert told.error is None
    rig.stuck = False
    rig.run()
    assert rig.usage[numbers[salted]].restored_tokens == 0 < rig.usage[numbers[yours]].restored_tokens
    for number in numbers.values():
        assert rig.text(number) == expected(A, 4, 3)[0]
    theirs = set(chunk_keys(yours, [*A, *expected(A, 8, 7)[0]][:307]))
    assert theirs <= set(rig.runner.store) and rig.tiering.index <= theirs | set(chunk_keys(salted, A))
    idle(rig)
