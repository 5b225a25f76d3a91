"""Pins in the scheduler: kept against other text, given up where a request could not go on otherwise; no deadlock."""

from __future__ import annotations

import pytest

from radixrt.messages import Namespace, SchedulerQuery
from radixrt.scheduler.inspector import answer
from tests.scheduler.fakes import Rig, expected
from tests.scheduler.pin_events import PIN_EVENTS, PinHistory
from tests.scheduler.test_scheduler import idle
from tests.scheduler.test_segments import begin, by_hand, close, segment
from tests.scheduler.test_select import check
from tests.scheduler.tier_rig import prompt

A, B, C = Namespace(tenant="a"), Namespace(tenant="b"), Namespace(tenant="c")


def rig_of(kv_tokens: int, quota: int | None = None, **overrides: object) -> Rig:
    """`quota`: what an owner, and all together, may pin; all of the pool by default."""
    rig = Rig(kv_tokens, **overrides)
    pins = rig.scheduler.cache.pins
    pins.quota = pins.total = kv_tokens if quota is None else quota
    return rig


def pin(rig: Rig, tokens: list[int], ttl: float = 60.0, namespace: Namespace = A) -> int:
    number = rig.submit(tokens, namespace=namespace, pin_s=ttl, max_tokens=0)
    rig.run()
    return number


def names(rig: Rig, namespace: Namespace = A) -> list[int]:
    """Tokens of the namespace's pins, the soonest to expire first."""
    return [one.tokens for one in rig.scheduler.cache.pins.of(namespace)]


def finished(rig: Rig, number: int, tokens: list[int], count: int, seed: int = 7) -> None:
    assert (rig.texts.get((number, 0), []), rig.reasons[number, 0]) == expected(tokens, count, seed)


def no_pins(rig: Rig) -> None:
    rig.clock.now += 1e6
    rig.scheduler.cache.pins.expire()
    idle(rig)


def test_a_pinned_prompt_is_found_whatever_came_between() -> None:
    rig = rig_of(200)
    kept, number = prompt(1, 60), 0
    assert rig.usage[pin(rig, kept)].pin.tokens == 60  # type: ignore[attr-defined]
    for seed in range(2, 8):
        number = rig.submit(prompt(seed, 100), max_tokens=8, seed=7, namespace=A)
        rig.run()
        finished(rig, number, prompt(seed, 100), 8)
    again = rig.submit([*kept, 1], max_tokens=4, seed=7, namespace=A)
    rig.run()
    assert rig.usage[again].cached_tokens == 60 and rig.scheduler.cache.pins.broken == 0  # type: ignore[attr-defined]
    no_pins(rig)


def test_pins_give_way_to_a_request_alone_soonest_first_and_no_more_of_them_than_it_takes() -> None:
    rig = rig_of(100)
    for number, ttl in ((1, 90.0), (2, 30.0), (3, 60.0)):
        pin(rig, prompt(number, 30 + number), ttl)
    assert names(rig) == [32, 33, 31]
    one = rig.submit(prompt(9, 20), max_tokens=10, seed=7, namespace=B)
    rig.run()
    finished(rig, one, prompt(9, 20), 10)
    assert names(rig) == [33, 31] and rig.scheduler.cache.pins.broken == 1
    whole = rig.submit(prompt(8, 90), max_tokens=10, seed=7, namespace=B)
    rig.run()
    finished(rig, whole, prompt(8, 90), 10)
    assert names(rig) == [] and rig.scheduler.cache.pins.broken == 3
    no_pins(rig)


def test_a_pin_is_not_broken_for_a_request_that_can_wait_for_another() -> None:
    rig = rig_of(120, growth=1)
    pin(rig, prompt(1, 40))
    numbers = [rig.submit(prompt(seed, 40), max_tokens=20, seed=7, namespace=B) for seed in (2, 3, 4)]
    rig.run()
    for number, seed in zip(numbers, (2, 3, 4), strict=True):
        finished(rig, number, prompt(seed, 40), 20)
    assert names(rig) == [40] and rig.scheduler.cache.pins.broken == 0
    no_pins(rig)


def test_pins_give_way_to_the_prompt_of_another_pin() -> None:
    rig = rig_of(100, quota=100)
    rig.scheduler.cache.pins.total = 200
    pin(rig, prompt(1, 80), namespace=A)
    made = pin(rig, prompt(2, 70), namespace=B)
    assert rig.usage[made].pin.tokens == 70 and names(rig, A) == [] and names(rig, B) == [70]  # type: ignore[attr-defined]
    no_pins(rig)


def test_pins_give_way_to_a_select_and_to_a_program() -> None:
    rig = rig_of(100)
    pin(rig, prompt(1, 95))
    options = [[1, 2, 3], [1, 4], [5]]
    number = rig.select(prompt(2, 50), options)
    rig.run()
    check(rig, number, prompt(2, 50), options)
    assert names(rig) == []
    pin(rig, prompt(1, 95))
    segments = [segment(prompt(3, 40), max_tokens=10, seed=1), segment(prompt(4, 20), max_tokens=10, seed=2)]
    program = begin(rig, segments)
    rig.run()
    assert [rig.texts.get((part.request_id, 0), []) for part in segments] == by_hand(segments, [])[0]
    close(rig, program)
    assert names(rig) == []
    no_pins(rig)


def test_pins_and_idle_programs_that_hold_all_stand_in_nobody_s_way() -> None:
    rig = rig_of(120)
    open_ = begin(rig, [segment(prompt(3, 40), max_tokens=10, seed=1)])
    rig.run()
    pin(rig, prompt(1, 65))
    number = rig.submit(prompt(5, 100), max_tokens=20, seed=7, namespace=B)
    rig.run()
    finished(rig, number, prompt(5, 100), 20)
    close(rig, open_)
    no_pins(rig)


def test_what_is_past_the_quota_is_refused_at_once_or_when_another_was_faster() -> None:
    rig = rig_of(400, quota=100)
    too_long = rig.submit(prompt(1, 101), pin_s=9.0, max_tokens=0, namespace=A)
    assert "--pin-quota" in rig.errors[too_long] and not rig.scheduler.requests, "before anything is computed"
    both = [rig.submit(prompt(seed, 60), pin_s=9.0, max_tokens=0, namespace=A) for seed in (2, 3)]
    rig.run()
    assert sorted(number in rig.errors for number in both) == [False, True], "both fitted when they came"
    assert names(rig) == [60]
    rig.scheduler.cache.pins.total = 130
    assert "130 tokens may be pinned in all" in rig.errors[pin(rig, prompt(4, 80), namespace=B)]
    first = next(seed for number, seed in zip(both, (2, 3), strict=True) if number not in rig.errors)
    pin(rig, [*prompt(first, 60), *prompt(9, 35)], 20.0)
    assert names(rig) == [60, 95] and rig.scheduler.cache.pins.pinned(A) == 95, "what two pins share counts once"
    no_pins(rig)


@pytest.mark.parametrize("fields", [{"max_tokens": 1}, {"max_tokens": 0, "n": 2}, {"max_tokens": 0, "pin_s": 1e9}])
def test_pins_that_can_never_be_are_refused(fields: dict[str, float]) -> None:
    rig = rig_of(100)
    number = rig.submit([1, 2], **{"pin_s": 5.0, **fields})  # type: ignore[arg-type]
    assert number in rig.errors and not rig.scheduler.requests


def test_without_a_prefix_cache_nothing_can_be_pinned() -> None:
    rig = Rig(100, prefix_cache=False)
    assert "prefix cache is off" in rig.errors[rig.submit([1, 2], pin_s=5.0, max_tokens=0)]


def test_a_pin_that_has_expired_is_forgotten_with_the_next_step() -> None:
    rig = rig_of(100)
    pin(rig, prompt(1, 50), 10.0)
    pin_id = rig.scheduler.cache.pins.of(A)[0].id
    rig.clock.now += 10.1
    rig.submit(prompt(2, 45), max_tokens=1, seed=7, namespace=B)
    rig.run()
    told = answer(rig.scheduler, SchedulerQuery(query_id=1, what="unpin", namespace=A, pin_id=pin_id))
    assert told.error is not None and told.error.code == "pin_not_found"
    assert rig.scheduler.cache.pins.broken == 0
    idle(rig)


def test_aborted_requests_pin_nothing() -> None:
    rig = rig_of(300, max_num_batched_tokens=16)
    number = rig.submit(prompt(1, 100), pin_s=9.0, max_tokens=0)
    rig.step()
    rig.scheduler.cancel(number)
    rig.run()
    assert len(rig.scheduler.cache.pins) == 0
    idle(rig)


def test_a_failed_step_takes_pins_along_since_it_may_have_spoilt_them() -> None:
    history = PinHistory(3)
    history.rig.submit([1, 2, 3], pin_s=9.0, max_tokens=0)
    history.rig.run()
    assert len(history.rig.scheduler.cache.pins) == 1
    history.rig.submit([1, 2, 3, 4], max_tokens=3)
    history.rig.advance()
    history.cancelled.update(history.open)
    for number in history.open:
        history.wanted.pop(number, None)
    assert PIN_EVENTS["fail step"].act(history)
    assert len(history.rig.scheduler.cache.pins) == 0


SEEDS = 6


@pytest.mark.parametrize("seed", range(SEEDS))
def test_random_histories_with_pins(seed: int, long: bool) -> None:
    """Nobody waits for ever, whatever is pinned; quotas hold after each step; all counts end at zero."""
    steps = 100_000 // SEEDS + 1 if long else 700
    history = PinHistory(100 + seed)
    history.run(steps, PIN_EVENTS)
    assert history.finished > steps / 40
    assert {"pin", "select", "flush", "settle", "abort", "retract"} <= set(history.faults)
    assert history.most_pinned > 0.09 and not history.selects
    assert history.rig.scheduler.cache.pins.broken or history.most_pinned < 0.7
