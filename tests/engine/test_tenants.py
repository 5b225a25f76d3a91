"""What one tenant has cached is nothing to another: no text, count, hit, pin, report or order tells of it."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

import msgspec
import pytest

from radixrt import Engine, SamplingParams
from radixrt.errors import NotFound
from radixrt.results import Usage

REPORT = SamplingParams(max_tokens=4, temperature=0, ignore_eos=True, return_cache_report=True)
SECRET = "The recipe of the house: seven spoons of cardamom, two of cloves, and never a word to the neighbours. " * 4
ENDING = "It closes with a toast to the cook."

names = count(1)


@pytest.fixture
def two(small_engine: Engine) -> tuple[Engine, Engine]:
    """Two tenants nobody has heard of."""
    number = next(names)
    return small_engine.for_tenant(f"ana-{number}"), small_engine.for_tenant(f"ben-{number}")


def told(usage: Usage) -> object:
    """All that a usage says but for times, the name of a pin, and guesses: how often they hold is learned from all."""
    plain = msgspec.to_builtins(usage)
    if plain["pin"]:
        plain["pin"] = plain["pin"]["tokens"]
    return {key: value for key, value in plain.items() if not key.endswith(("_s", "draft_tokens"))}


PROBES: dict[str, Callable[[Engine], object]] = {
    "the same prompt": lambda e: told(e.generate(SECRET, REPORT).usage),
    "a prompt that goes on": lambda e: told(e.generate(SECRET + ENDING, REPORT).usage),
    "a prompt that diverges": lambda e: told(e.generate(SECRET[:200] + ENDING, REPORT).usage),
    "a select": lambda e: told(e.select(SECRET, ["yes", "no"]).usage),
    "scores": lambda e: told(e.score(SECRET, [[40, 41], [42]]).usage),
    "a pin": lambda e: e.pin(SECRET, 60).tokens,
    "the tree": lambda e: [(n.depth, n.tokens, n.hits, n.locks, n.pins, n.text) for n in e.tree()],
    "the cache": lambda e: (e.cache().tokens, len(e.cache().pins), e.cache().pinned_tokens, e.cache().tier),
    "a flush": lambda e: (e.unpin(e.cache().pins[0]).tokens, e.flush(), len(e.tree())),
}


def test_nothing_tells_of_another_tenant_s_prefixes(two: tuple[Engine, Engine]) -> None:
    """Whoever asks gets word for word what a tenant gets in an engine that has seen nothing."""
    ana, ben = two
    untouched = {name: probe(ben) for name, probe in PROBES.items()}
    number = next(names)
    salted, third = ana.for_tenant(f"ana-{number}"), ana.for_tenant(f"cyd-{number}")
    for salt in (None, "s"):
        salted.generate(SECRET + ENDING, REPORT, cache_salt=salt)
        salted.generate(SECRET, REPORT, cache_salt=salt)
    kept = salted.pin(SECRET, 60)
    assert salted.generate(SECRET, REPORT).usage.cached_tokens > 80
    assert {name: probe(third) for name, probe in PROBES.items()} == untouched
    with pytest.raises(NotFound):
        third.unpin(kept)
    with pytest.raises(NotFound):
        salted.unpin(kept, cache_salt="s")
    assert salted.cache().pinned_tokens == kept.tokens, "nobody's flush and unpin touched it"
    assert salted.generate(SECRET, REPORT).usage.cached_tokens > 80
    assert salted.unpin(kept).id == kept.id


def test_a_salt_shares_nothing_with_its_tenant_s_other_salts(small_engine: Engine) -> None:
    ana = small_engine.for_tenant(f"salts-{next(names)}")
    ana.generate(SECRET, REPORT, cache_salt="a")
    usage = ana.generate(SECRET, REPORT, cache_salt="b").usage
    assert usage.cached_tokens == 0 and usage.cache is not None
    assert (usage.cache.reason, usage.cache.diverged_from) == ("never_seen", ())
    assert not ana.tree() and ana.tree(cache_salt="a") and ana.tree(cache_salt="b")


def test_a_tenant_s_flush_empties_its_part_of_tree_and_tier_and_no_other(two: tuple[Engine, Engine]) -> None:
    ana, ben = two
    for engine, salt in ((ana, None), (ana, "s"), (ben, None)):
        engine.generate(SECRET, REPORT, cache_salt=salt)
    held = ana.save()
    kept = ben.generate(SECRET, REPORT).usage.cached_tokens
    assert kept > 80
    assert ana.flush() > 2 * kept
    assert not ana.tree() and not ana.tree(cache_salt="s") and ben.tree()
    for salt in (None, "s"):
        usage = ana.generate(SECRET, REPORT, cache_salt=salt).usage
        assert usage.cached_tokens == usage.restored_tokens == 0, "neither from the tree nor from the tier"
    assert ana.flush() > 0
    assert ben.generate(SECRET, REPORT).usage.cached_tokens == kept
    assert 0 < held - ana.save() <= 2 * (kept + 16), "the tier let go of what was ana's alone"
