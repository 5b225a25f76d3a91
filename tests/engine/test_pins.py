"""Pins and cache reports of a whole engine, from Python."""

from __future__ import annotations

import random
from itertools import count

import pytest

from radixrt import Engine, SamplingParams
from radixrt.errors import InvalidRequest, NotFound
from radixrt.lang import ProgramError, assistant, function, gen, select, user
from radixrt.results import CacheReport, Usage
from tests.waiting import until

REPORT = SamplingParams(max_tokens=2, temperature=0, ignore_eos=True, return_cache_report=True)
POLICY = "Parcels that have not arrived within ten days are sent again, free of charge, to the same address. " * 3

names = count(1)


@pytest.fixture
def mine(small_engine: Engine) -> Engine:
    return small_engine.for_tenant(f"pins-{next(names)}")


def gone(engine: Engine) -> bool:
    """Whether no pin is left, sooner or later."""
    until(lambda: not engine.cache().pins)
    return True


def report(usage: Usage) -> CacheReport:
    assert usage.cache is not None and usage.cache.cached + usage.cache.computed == usage.prompt_tokens
    return usage.cache


def test_what_is_pinned_outlives_pressure_and_flushes(mine: Engine) -> None:
    pin = mine.pin(POLICY, 600)
    rng = random.Random(0)
    for _ in range(5):
        mine.generate([rng.randrange(100, 40_000) for _ in range(1800)], REPORT)
    mine.flush()
    view = mine.cache()
    assert [(one.id, one.tokens) for one in view.pins] == [(pin.id, pin.tokens)]
    assert view.pinned_tokens == pin.tokens <= view.pin_quota == 400
    assert sum(node.tokens for node in view.nodes if node.pins) == pin.tokens
    usage = mine.generate(POLICY + "And now?", REPORT).usage
    assert usage.cached_tokens >= pin.tokens - 1 and usage.restored_tokens == 0, "from the pool, not from a tier"
    assert mine.pin(POLICY, 900).id == pin.id, "the same text: the same pin, prolonged"
    assert mine.unpin(pin).tokens == pin.tokens and not mine.cache().pins
    assert mine.generate(POLICY, REPORT).usage.cached_tokens >= pin.tokens - 1, "unpinned is not evicted"


def test_a_pin_ends_by_itself(mine: Engine) -> None:
    pin = mine.pin(POLICY, 0.05)
    assert 0 <= pin.expires_in_s <= 0.05 and gone(mine)
    assert mine.cache().pinned_tokens == 0 and mine.tree(), "the text is still there, as any other"
    with pytest.raises(NotFound) as raised:
        mine.unpin(pin.id)
    assert raised.value.code == "pin_not_found"


def test_the_quota_is_a_tenant_s_under_all_its_salts(mine: Engine, small_engine: Engine) -> None:
    half = list(range(1000, 1250))
    mine.pin(half, 60)
    with pytest.raises(InvalidRequest, match="--pin-quota") as raised:
        mine.pin([7, *half], 60, cache_salt="s")
    assert raised.value.code == "pin_quota" and raised.value.param == "prompt"
    other = small_engine.for_tenant(f"pins-{next(names)}")
    theirs = other.pin([7, *half], 60)
    mine.unpin(mine.cache().pins[0])
    mine.unpin(mine.pin([7, *half], 60, cache_salt="s"), cache_salt="s")
    other.unpin(theirs)
    for wrong in (0, -1, float("nan"), float("inf"), True, "long"):
        with pytest.raises(InvalidRequest):
            mine.pin("x", wrong)  # type: ignore[arg-type]


def test_the_three_reasons_for_a_miss(mine: Engine) -> None:
    first = report(mine.generate(POLICY, REPORT).usage)
    assert (first.cached, first.missed_at, first.reason, first.diverged_from) == (0, 0, "never_seen", ())
    whole = report(mine.generate(POLICY, REPORT).usage)
    assert (whole.computed, whole.missed_at, whole.reason) == (1, None, None), "all that could be cached was"
    half = POLICY[:150] + " Or else we send two."
    other = report(mine.generate(half, REPORT).usage)
    assert other.reason == "diverged" and other.missed_at == other.cached > 20
    (branch,) = other.diverged_from
    assert branch.text and branch.text in POLICY and len(branch.token_ids) <= 8
    longer = mine.tokenize(POLICY).ids[: other.cached]
    assert mine.tokenize(half).ids[: other.cached] == longer
    mine.flush()
    evicted = report(mine.generate(POLICY, REPORT).usage)
    assert (evicted.cached, evicted.missed_at, evicted.reason) == (0, 0, "evicted")


def test_selects_report_too(mine: Engine) -> None:
    def ask(prompt: str, *, wanted: bool = True) -> Usage:
        return mine.select(prompt, [" yes", " no"], return_cache_report=wanted).usage

    assert ask(POLICY, wanted=False).cache is None
    mine.flush()
    assert report(ask(POLICY)).reason == "evicted"
    assert report(ask(POLICY)).reason is None
    other = report(ask(POLICY[:150] + " Or else"))
    assert other.reason == "diverged" and other.diverged_from[0].text
    assert report(ask("Never heard of it")).reason == "diverged", "at its very first token"
    alone = mine.for_tenant(f"pins-{next(names)}").select("To be, or", [" not", " to"], return_cache_report=True)
    assert report(alone.usage).reason == "never_seen"


@function
def sort(s, ticket, ttl=None):
    s += user(POLICY + ticket)
    if ttl:
        s.pin(ttl=ttl)
    s += assistant(
        "Label: "
        + select("label", ["late", "lost"], return_cache_report=True)
        + " because"
        + gen("why", max_tokens=3, temperature=0, ignore_eos=True, return_cache_report=True)
        + "!"
        + gen("more", max_tokens=2, temperature=0, ignore_eos=True, return_cache_report=True)
    )


def test_programs_report_each_gen_and_select(mine: Engine) -> None:
    first = sort.run(ticket="It is late.", backend=mine)
    assert report(first.meta("label").usage).reason == "never_seen"
    second = sort.run(ticket="Where is it?", backend=mine)
    label = report(second.meta("label").usage)
    assert label.reason == "diverged" and label.cached > 40
    assert any("It is late" in branch.text for branch in label.diverged_from)
    for name in ("why", "more"):
        found = second.meta(name).usage.cache
        assert found is not None and found.cached > label.cached, "what the program computed before"
    assert second.usage.cache is not None


def test_programs_pin_and_unpin(mine: Engine) -> None:
    state = sort.run(ticket="It is late.", ttl=60, backend=mine)
    (pin,) = state.pins
    assert [one.id for one in mine.cache().pins] == [pin.id] and pin.tokens > 60
    mine.flush()
    again = sort.run(ticket="It is late.", backend=mine)
    assert again.meta("label").usage.cached_tokens >= pin.tokens
    state.unpin()
    assert state.pins == () and not mine.cache().pins

    @function
    def forks(s):
        s += POLICY
        s.pin(30)
        branches = s.fork(2)
        for number, branch in enumerate(branches):
            branch += f"And number {number}: "
            branch.pin(30)
            branch += gen("x", max_tokens=1)
        branches.join()
        s.unpin()

    state = forks.run(backend=mine, cache_salt="s")
    assert state["x"] and state.pins == ()
    left = mine.cache(cache_salt="s").pins
    assert len(left) == 2 and not mine.cache().pins, "the forks' own stay"
    for pin in left:
        mine.unpin(pin, cache_salt="s")


def test_a_program_hears_of_a_quota(mine: Engine) -> None:
    @function
    def too_much(s):
        s += POLICY * 6
        s.pin(30)
        s += gen("x", max_tokens=1)

    with pytest.raises(ProgramError, match="pin-quota") as raised:
        too_much.run(backend=mine)["x"]
    assert raised.value.code == "pin_quota"
    with pytest.raises(InvalidRequest, match="ttl"):
        sort.run(ticket="", ttl=-1, backend=mine)
