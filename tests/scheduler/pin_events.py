"""Events of pins for random histories (`histories.py`), and of selects beside them."""

from __future__ import annotations

from typing import cast

from radixrt.messages import Namespace, SchedulerQuery
from radixrt.scheduler.inspector import answer
from tests.scheduler.histories import EVENTS, NAMESPACES, OPEN, Event, History, Wanted
from tests.scheduler.test_select import check


class PinHistory(History):
    """A history in which pins may hold the default share of the pool, or all of it."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        pins = self.rig.scheduler.cache.pins
        if self.rng.random() < 0.6:
            pins.quota = pins.total = self.rig.scheduler.cache.capacity
        self.refused = 0
        self.most_pinned = 0.0
        self.selects: dict[int, tuple[list[int], list[list[int]]]] = {}
        self.checks += [quotas_hold, selects_are_right]


def pin(history: History) -> bool:
    """A request that pins its prompt; refused at once where that is past a limit, or at its end."""
    rng, rig = history.rng, history.rig
    if len(history.open) >= OPEN:
        return False
    stem = rng.choice(history.stems)
    prompt = stem[: rng.randrange(1, len(stem) + 1)]
    ttl = rng.choice([0.05, 0.5, 5.0, 500.0])
    number = rig.submit(prompt, namespace=rng.choice(NAMESPACES), pin_s=ttl, max_tokens=0, seed=1)
    error = rig.errors.pop(number, None)
    if error is not None:
        assert "would be pinned" in error
        cast(PinHistory, history).refused += 1
        return True
    history.wanted[number] = Wanted(tuple(prompt), 0, 1, 1, None, history.steps)
    return True


def unpin(history: History) -> bool:
    """One of the namespace's pins; another namespace's is not found."""
    rng, scheduler = history.rng, history.rig.scheduler
    namespace, other = rng.choice(NAMESPACES), rng.choice(NAMESPACES)
    pins = scheduler.cache.pins.of(namespace)
    if not pins:
        return False
    pin_id = rng.choice(pins).id
    if other != namespace:
        refused = answer(scheduler, SchedulerQuery(query_id=1, what="unpin", namespace=other, pin_id=pin_id))
        assert refused.error is not None and refused.error.code == "pin_not_found"
    told = answer(scheduler, SchedulerQuery(query_id=1, what="unpin", namespace=namespace, pin_id=pin_id))
    assert told.error is None and told.pin is not None and told.pin.id == pin_id
    return True


def select(history: History) -> bool:
    rng, rig = history.rng, history.rig
    if len(rig.scheduler.selects.open) + len(rig.scheduler.selects.waiting) >= 3:
        return False
    stem = rng.choice(history.stems)
    options = [[rng.randrange(1, 60) for _ in range(rng.randrange(1, 6))] for _ in range(rng.randrange(1, 5))]
    cast(PinHistory, history).selects[rig.select(stem, options)] = stem, options
    return True


def flush(history: History) -> bool:
    """A namespace's flush leaves pinned text where it is."""
    scheduler = history.rig.scheduler
    before = scheduler.cache.pins.tokens
    answer(scheduler, SchedulerQuery(query_id=1, what="flush", namespace=history.rng.choice(NAMESPACES)))
    assert scheduler.cache.pins.tokens == before
    return True


def quotas_hold(history: History) -> None:
    """What is said to be pinned is what is, by owner and in all, and never more than may be."""
    cache = history.rig.scheduler.cache
    owners: dict[Namespace, int] = {}
    for _, node in cache.tree.walk():
        if node.pins and not node.is_root:
            owner = cast(Namespace, node.namespace).owner
            owners[owner] = owners.get(owner, 0) + len(node)
    assert {owner: cache.pins.pinned(owner) for owner in owners} == owners
    assert all(tokens <= cache.pins.quota for tokens in owners.values())
    assert sum(owners.values()) == cache.pins.tokens <= cache.pins.total
    history = cast(PinHistory, history)
    history.most_pinned = max(history.most_pinned, cache.pins.tokens / cache.capacity)


def selects_are_right(history: History) -> None:
    """Each that has ended has the scores of a fresh engine, or fell with a failed step."""
    rig, selects = history.rig, cast(PinHistory, history).selects
    for number in [number for number in selects if number in rig.selected or number in rig.errors]:
        prompt, options = selects.pop(number)
        error = rig.errors.pop(number, None)
        if error is None:
            check(rig, number, prompt, options)
            del rig.selected[number]
        else:
            assert "the model runner failed" in error


PIN_EVENTS = EVENTS | {
    "pin": Event(0.06, pin),
    "unpin": Event(0.01, unpin),
    "select": Event(0.01, select),
    "flush": Event(0.003, flush),
}
