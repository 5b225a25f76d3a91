"""Random histories of the scheduler: a table of events, and what must be true whatever their order.

An event is a function of a `History`; its weight says how often it happens. To add a kind of fault, write the function
and give the table a line (`EVENTS | {"pin": Event(0.02, pin)}`); `History.check_invariants` is called after each step
and `History.check_end` at the end, and both take further checks in `History.checks`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache

import msgspec

from radixrt.messages import Namespace, StepFailed
from radixrt.scheduler.requests import sample_seed
from tests.scheduler.fakes import Rig, expected

OPEN = 24
"""Requests that are open at once at most."""
PATIENCE = 2500
"""Steps that a request may be open: far above what it takes when nobody is starved."""
FOREVER_S = 1e7
"""No pin lives so long."""
NAMESPACES = (
    Namespace(), Namespace(salt="a"), Namespace(salt="b"), Namespace(tenant="t"), Namespace(tenant="t", salt="a"),
)  # fmt: skip


@dataclass(frozen=True)
class Wanted:
    """A request that was made, and what a fresh engine gives it."""

    prompt: tuple[int, ...]
    max_tokens: int
    seed: int
    n: int
    constraint: str | None
    since: int
    """Step in which it was made."""

    def sample(self, index: int) -> tuple[list[int], str]:
        return alone(self.prompt, self.max_tokens, sample_seed(self.seed, index), self.constraint)


@lru_cache(maxsize=4096)
def alone(prompt: tuple[int, ...], most: int, seed: int, constraint: str | None) -> tuple[list[int], str]:
    return expected(list(prompt), most, seed, constraint)


class History:
    """A rig, what was asked of it, and which requests need not end well."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = random.Random(seed)
        self.settings = {
            "kv_tokens": rng.choice([130, 220, 400, 1500]),
            "max_num_seqs": rng.choice([2, 3, 8]),
            "max_num_batched_tokens": rng.choice([9, 40, 128]),
            "lookahead": rng.choice([0, 1, 2]),
            "growth": rng.choice([1, 4, 16]),
            "max_drafts": rng.choice([0, 2, 8]),
            "policy": rng.choice(["lpm", "lpm", "fcfs"]),
            "fair": rng.choice([True, True, False]),
            "max_wait_s": rng.choice([0.0, 0.3, 2.0]),
        }
        settings = dict(self.settings)
        self.rig = Rig(int(settings.pop("kv_tokens")), **settings)
        self.stems = [[rng.randrange(1, 60) for _ in range(rng.randrange(5, 60))] for _ in range(4)]
        self.wanted: dict[int, Wanted] = {}
        self.cancelled: set[int] = set()
        self.stopped: set[tuple[int, int]] = set()
        self.steps = 0
        self.faults: dict[str, int] = {}
        self.finished = 0
        self.checks: list[Callable[[History], None]] = []

    @property
    def open(self) -> list[int]:
        return list(self.rig.scheduler.requests)

    def run(self, steps: int, events: Mapping[str, Event]) -> None:
        """Until so many steps were settled (or failed), then to the end of everything."""
        names, weights = [*events], [event.weight for event in events.values()]
        while self.steps < steps:
            before = self.steps
            name = self.rng.choices(names, weights)[0]
            if events[name].act(self):
                self.faults[name] = self.faults.get(name, 0) + 1
            self.rig.collect()
            if self.steps > before:
                self.check_invariants()
        release_compiles(self)
        self.rig.run()
        self.rig.collect()
        self.rig.clock.now += FOREVER_S
        self.rig.scheduler.cache.pins.expire()
        self.check_end()

    def check_invariants(self) -> None:
        """Slots have one owner each (the scheduler itself proves it in each step), and nobody is starved."""
        for number in self.open:
            if self.steps - self.wanted[number].since > PATIENCE:
                raise AssertionError(f"request {number} is open since {PATIENCE} steps: {self.settings}")
        if self.steps % 100 == 0:
            self._judge_finished()
        for check in self.checks:
            check(self)

    def check_end(self) -> None:
        """Everything that was made came to an end, and every count is zero."""
        self._judge_finished()
        rig, scheduler = self.rig, self.rig.scheduler
        assert not self.wanted, f"no end for {self.wanted}"
        assert not scheduler.requests and not scheduler.compiling
        assert not scheduler.rows.running and not scheduler.rows.waiting and not scheduler.steps
        assert not len(scheduler.cache.pins) and not scheduler.cache.pins.tokens
        assert scheduler.cache.available == scheduler.cache.capacity
        assert all(node.locks == 0 for _, node in scheduler.cache.tree.walk())
        scheduler.cache.check()
        assert not rig.runner.plans
        for check in self.checks:
            check(self)

    def _judge_finished(self) -> None:
        """Compare what is over with a fresh engine, then forget it (a long history must not remember everything)."""
        rig = self.rig
        for number in [number for number in self.wanted if number not in rig.scheduler.requests]:
            wanted = self.wanted.pop(number)
            for index in range(wanted.n):
                text, reason = wanted.sample(index)
                got = rig.texts.pop((number, index), [])
                ended = rig.reasons.pop((number, index), None)
                if number in self.cancelled or number in rig.errors or (number, index) in self.stopped:
                    # What was told before is right nevertheless.
                    assert got == text[: len(got)]
                else:
                    assert (got, ended) == (text, reason), (number, self.settings)
                    self.finished += 1
            error = rig.errors.pop(number, None)
            excuses = ("the model runner failed", "dead end", "not finite", "timeout", "is bad", "would be pinned")
            assert error is None or any(excuse in error for excuse in excuses), error
            rig.usage.pop(number, None)


@dataclass(frozen=True)
class Event:
    """`act` returns whether it happened: it may find nothing to happen to."""

    weight: float
    act: Callable[[History], bool] = field(repr=False)


# --- the ordinary ones ----------------------------------------------------------------------------------------------


def submit(history: History) -> bool:
    rng = history.rng
    if len(history.open) >= OPEN:
        return False
    stem = rng.choice(history.stems)
    prompt = stem[: rng.randrange(1, len(stem) + 1)] + [rng.randrange(1, 60) for _ in range(rng.randrange(3))]
    n, most, seed = rng.choice([1, 1, 1, 2, 3]), rng.randrange(1, 40), rng.randrange(4)
    constraint = None
    if rng.random() < 0.25:
        constraint = rng.choice(["even", "even", "slow even", "bad"]) + f" {rng.randrange(1, 6)}"
    rig = history.rig
    number = rig.submit(
        prompt,
        constraint=constraint,
        priority=rng.choice([0] * 9 + [-1]),
        namespace=rng.choice(NAMESPACES),
        timeout_s=rng.uniform(0.0, 3.0) if rng.random() < 0.15 else None,
        max_tokens=most,
        n=n,
        seed=seed,
    )
    if number not in rig.errors:
        plain = constraint.removeprefix("slow ") if constraint else None
        history.wanted[number] = Wanted(tuple(prompt), most, seed, n, plain, history.steps)
    else:
        assert constraint is not None and constraint.startswith("bad")
        del rig.errors[number]
    return True


def plan(history: History) -> bool:
    return history.rig.advance()


def settle(history: History) -> bool:
    rig = history.rig
    if not rig.runner.can_run():
        return False
    rig.scheduler.settle(rig.runner.run())
    rig.clock.now += 0.01
    history.steps += 1
    return True


def stop_string(history: History) -> bool:
    rig, number = history.rig, _some(history)
    if number is None or (number, 0) in rig.reasons:
        return False
    rig.scheduler.stop_row(number, 0, len(rig.texts.get((number, 0), [])))
    history.stopped.add((number, 0))
    return True


def release_compiles(history: History) -> bool:
    """Compiles that were under way come back."""
    scheduler = history.rig.scheduler
    slow = [request.constraint.value for request in scheduler.compiling.values() if request.constraint is not None]
    scheduler.compiler.released.update(slow)  # type: ignore[attr-defined]
    scheduler.compiled()
    scheduler.compiler.released.clear()  # type: ignore[attr-defined]
    return bool(slow)


# --- faults ---------------------------------------------------------------------------------------------------------


def abort(history: History) -> bool:
    number = _some(history)
    if number is None:
        return False
    history.rig.scheduler.cancel(number)
    history.cancelled.add(number)
    return True


def retract(history: History) -> bool:
    rows = history.rig.scheduler.rows
    if not rows.running:
        return False
    rows.retract(history.rng.choice(rows.running))
    history.rig.scheduler.verify()
    return True


def fail_step(history: History) -> bool:
    """The runner raises: nothing of the step is there."""
    rig = history.rig
    if not rig.runner.can_run():
        return False
    rig.scheduler.fail_step(StepFailed(step=rig.runner.fail(), message="out of memory"))
    history.steps += 1
    return True


def fail_row(history: History) -> bool:
    """The runner finds no token for one row."""
    rig = history.rig
    if not rig.runner.can_run():
        return False
    result = rig.runner.run()
    if result.tokens.size:
        tokens = result.tokens.copy()
        tokens[history.rng.randrange(tokens.size)] = -1
        result = msgspec.structs.replace(result, tokens=tokens)
    rig.scheduler.settle(result)
    history.steps += 1
    return bool(result.tokens.size)


def time_passes(history: History) -> bool:
    """Long enough for deadlines to pass and for waiting rows to become late."""
    history.rig.clock.now += history.rng.uniform(0.1, 1.0)
    return True


def _some(history: History) -> int | None:
    numbers = history.open
    return history.rng.choice(numbers) if numbers else None


EVENTS: dict[str, Event] = {
    "submit": Event(0.28, submit),
    "plan": Event(0.30, plan),
    "settle": Event(0.36, settle),
    "stop string": Event(0.01, stop_string),
    "release compiles": Event(0.02, release_compiles),
    "abort": Event(0.02, abort),
    "retract": Event(0.015, retract),
    "fail step": Event(0.002, fail_step),
    "fail row": Event(0.003, fail_row),
    "time passes": Event(0.01, time_passes),
}
