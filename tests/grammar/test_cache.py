"""The caches, with a clock and sizes of our own."""

from __future__ import annotations

from typing import Any, cast

from radixrt.errors import ConstraintError
from radixrt.grammar import Grammar
from radixrt.grammar.cache import GrammarCache, Refusals
from radixrt.params import Constraint


def constraint(text: str) -> Constraint:
    return Constraint(kind="regex", value=text)


class Named(str):
    """A grammar by its name."""

    grown_bytes = 0


def grammar(name: str, grown_bytes: int = 0) -> Grammar:
    found = Named(name)
    found.grown_bytes = grown_bytes
    return cast("Grammar", cast("Any", found))


def test_bytes_are_bounded_and_the_newest_stays() -> None:
    cache = GrammarCache(max_entries=10, max_bytes=100)
    for name, size in (("a", 40), ("b", 40), ("c", 15)):
        cache.put(constraint(name), grammar(name), size)
    assert cache.get(constraint("a")) == "a"
    cache.put(constraint("d"), grammar("d"), 30)
    assert cache.get(constraint("b")) is None and cache.total_bytes == 85
    cache.put(constraint("a"), grammar("a2"), 10)
    assert cache.get(constraint("a")) == "a2" and cache.total_bytes == 55
    cache.put(constraint("huge"), grammar("huge"), 500)
    assert len(cache) == 1 and cache.get(constraint("huge")) == "huge" and cache.total_bytes == 500


def test_what_rows_have_made_grow_goes_first() -> None:
    cache = GrammarCache(max_entries=10, max_bytes=100)
    heavy, light, medium = grammar("heavy"), grammar("light"), grammar("medium")
    for each in (light, medium, heavy):
        cache.put(constraint(str(each)), each, 10)
    heavy.grown_bytes, medium.grown_bytes = 90, 40  # type: ignore[misc]
    assert cache.get(constraint("heavy")) is heavy, "it is in use, and the most recent one"
    cache.put(constraint("new"), grammar("new"), 10)
    assert cache.get(constraint("heavy")) is None and cache.get(constraint("medium")) is medium
    cache.put(constraint("newest"), grammar("newest"), 31)
    assert cache.get(constraint("medium")) is None and cache.get(constraint("light")) is light
    cache.put(constraint("huge"), grammar("huge", 1000), 10)
    assert cache.get(constraint("huge")) and cache.total_bytes == 61, "the newest is kept"


def test_refusals_age_and_are_bounded() -> None:
    now = [0.0]
    refusals = Refusals(max_entries=2, keep_s=10, clock=lambda: now[0])
    error = ConstraintError("no", param="/x", code="why")
    for name in "abc":
        refusals.put(constraint(name), error)
    assert refusals.get(constraint("a")) is None and len(refusals) == 2
    kept = refusals.get(constraint("c"))
    assert kept is not None and kept is not error and kept.info() == error.info()
    now[0] = 10.0
    assert refusals.get(constraint("c")) is None and len(refusals) == 1
