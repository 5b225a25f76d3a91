"""Random programs: the same tokens as by hand, however they are run; and nothing is left behind by those that fail."""

from __future__ import annotations

import random
from typing import Any

from fake_backend import FakeBackend, Gate, decode, encode
from hypothesis import given, settings
from hypothesis import strategies as st

from radixrt.errors import GenerationFailed
from radixrt.lang import ProgramError, ProgramState, function, gen, select

TEXT = st.text("abc e!\n", min_size=1, max_size=6)
STEP = st.one_of(
    st.tuples(st.just("text"), TEXT),
    st.tuples(st.just("gen"), st.integers(1, 4)),
    st.tuples(st.just("list"), st.integers(1, 4)),
)
STEPS = st.lists(STEP, min_size=1, max_size=6)


@function
def follow(s, steps, branches):
    write(s, steps)
    forks = s.fork_map(branches, write)
    forks.join()


def write(s: ProgramState, steps: list[tuple[str, Any]]) -> None:
    for i, (kind, value) in enumerate(steps):
        if kind == "text":
            s += value
        else:
            name = "list" if kind == "list" else f"x{i}"
            s += gen(name, max_tokens=value, append=kind == "list", heal=False)


def by_hand(backend: FakeBackend, ids: list[int], pending: str, steps: list[tuple[str, Any]]) -> tuple[list[int], str]:
    """One plain request a gen, its prompt put together from the ids that stand."""
    for kind, value in steps:
        if kind == "text":
            pending += value
            continue
        ids, pending = ids + encode(pending), ""
        ids = ids + encode(backend.script(decode(ids)))[:value]
    return ids, pending


@settings(max_examples=60, deadline=None)
@given(STEPS, st.lists(STEPS, max_size=3))
def test_the_tokens_are_those_of_requests_made_by_hand(
    steps: list[tuple[str, Any]], branches: list[list[tuple[str, Any]]]
) -> None:
    backend = FakeBackend()
    steps = [("text", "Go"), *steps]
    ids, pending = by_hand(backend, [], "", steps)
    expected = [by_hand(backend, ids, pending, branch) for branch in branches]
    states = [
        follow.run(steps=steps, branches=branches, backend=backend),
        follow.stream(steps=steps, branches=branches, backend=backend),
        *follow.run_batch([{"steps": steps, "branches": branches}] * 2, backend=backend),
    ]
    for state in states:
        assert "".join(state.text_iter()) == state.text() == decode(ids + encode(pending))
        assert state.error is None and state.ids == ids + encode(pending)
        contexts = [branch.context for branch in state.run.branches[1:]]
        assert [(context.ids, context.pending) for context in contexts] == expected


def test_random_failures_and_timeouts_leave_nothing_behind() -> None:
    """That no thread is left is what the room's fixture checks after every test."""
    dice = random.Random(7)
    words = ["ab", "red ", "é!", "\n\n", "c"]

    @function
    def program(s, seed):
        own = random.Random(seed)
        for _ in range(own.randrange(1, 4)):
            s += own.choice(words) + gen("x", max_tokens=own.randrange(1, 5), append=True)
            if own.random() < 0.3:
                s += own.choice(words) + select("y", ["a", "ab", "!"])
            forks = s.fork(own.randrange(1, 4))
            for fork in forks:
                fork += own.choice(words) + gen("z") + own.choice(words)
                if own.random() < 0.2:
                    fork += gen("w")
            if own.random() < 0.5:
                forks.join(errors=own.choice(["raise", "return"]))
            if own.random() < 0.1:
                raise ValueError("of the body")

    for round_ in range(12):
        backend = FakeBackend()
        backend.pause = True
        if dice.random() < 0.6:
            backend.failures = {dice.choice(words).strip() or "\n": GenerationFailed("broken")}
        if dice.random() < 0.4:
            backend.gates = {dice.choice(words): Gate()}  # is never opened: only the timeout ends such a run
        states = program.run_batch(
            [{"seed": 100 * round_ + i} for i in range(10)], backend=backend, num_threads=4, timeout=0.2
        )
        for state in states:
            assert state.error is None or isinstance(state.error, ProgramError)
            assert not state.run.busy and all(branch._task is None for branch in state.run.branches)
        assert backend.active == 0
