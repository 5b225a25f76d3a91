"""A program run as program requests, one request a gen, and by hand: the same tokens, and nothing left of it."""

from __future__ import annotations

import asyncio
import importlib
import random
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_live_examples import NAMES

from radixrt import Engine
from radixrt.lang import (
    OneRequestEach,
    ProgramError,
    ProgramState,
    assistant,
    function,
    gen,
    select,
    set_default_backend,
    system,
    user,
)
from radixrt.lang.loop import loop_thread
from radixrt.messages import Abort, AppendProgram, OpenProgram, Select, Submit, Tokenize
from tests.waiting import until


@pytest.fixture(scope="module")
def tiny(tiny_path: Path) -> Iterator[Engine]:
    with Engine(str(tiny_path), check=True, dtype="float32", max_num_seqs=16) as engine:
        yield engine


class Recorder(OneRequestEach):
    """One request a gen, each written down."""

    def __init__(self, backend: Engine) -> None:
        super().__init__(backend)
        self.calls: list[tuple[Any, Any, Any, Any]] = []

    async def agenerate(self, prompt: Any, sampling: Any = None, *, constraint: Any = None, **options: Any) -> Any:
        result = await self._backend.agenerate(prompt, sampling, constraint=constraint, **options)
        self.calls.append((prompt.ids.tolist(), sampling, constraint, result))
        return result


def assert_idle(engine: Engine) -> None:
    """Nothing runs or waits any more, and no node is locked."""

    def idle() -> bool:
        stats = engine.stats()
        return not (stats.running or stats.waiting or sum(node.locks for node in engine.tree()))

    until(idle, "something is left")


def seen(state: ProgramState) -> list[Any]:
    """All that a run left: each branch's ids, text and turns."""
    state.text()
    return [
        (b.label, b.context.ids, b.context.text + b.context.pending, b.context.messages()) for b in state.run.branches
    ]


def values(state: ProgramState) -> dict[str, Any]:
    return {name: variable.future.result().raw for name, variable in state.variables().items()}


# --- all examples ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_an_example_gives_the_same_in_all_three_ways(
    name: str, tiny: Engine, capsys: pytest.CaptureFixture[str]
) -> None:
    module = importlib.import_module(f"radixrt.lang.examples.{name}")
    recorder = Recorder(tiny)
    results = []
    try:
        for backend in (tiny, recorder):
            set_default_backend(backend)
            try:
                result = module.main()
            except ProgramError as error:  # nonsense may be no value of a type: then so in both ways
                result = str(error)
            results.append(result)
    finally:
        set_default_backend(None)
    states = [result if isinstance(result, list) else [result] for result in results]
    assert [state if isinstance(state, str) else seen(state) for state in states[0]] == [
        state if isinstance(state, str) else seen(state) for state in states[1]
    ]
    for ids, sampling, constraint, result in recorder.calls:
        by_hand = tiny.generate(ids, sampling, constraint=constraint)
        assert [choice.token_ids for choice in by_hand.choices] == [choice.token_ids for choice in result.choices]
    assert_idle(tiny)


# --- random programs ------------------------------------------------------------------------------------------------

TEXTS = st.sampled_from(["One", " two", "\nLine:", " http:", " é", "x", ". ", " The end"])
GEN = st.fixed_dictionaries(
    {"max_tokens": st.integers(0, 6)},
    optional={
        "stop": st.sampled_from([" a", "e", "ing", ["\n", "o"]]),
        "regex": st.just("[a-z]{2,4}"),
        "heal": st.just(False),
        "n": st.just(2),
        "min_tokens": st.just(2),
    },
).filter(lambda g: not ("regex" in g and "min_tokens" in g) and g.get("min_tokens", 0) <= g["max_tokens"])
STEP = st.one_of(
    st.tuples(st.just("text"), TEXTS),
    st.tuples(st.just("gen"), GEN),
    st.tuples(st.just("gen"), GEN),
    st.tuples(st.just("select"), st.just(["yes", "no", "none"])),
    st.tuples(st.just("read"), st.none()),
)
STEPS = st.lists(STEP, min_size=1, max_size=5)


def write(s: ProgramState, steps: list[tuple[str, Any]]) -> None:
    last = None
    for i, (kind, value) in enumerate(steps):
        name = f"v{i}"
        if kind == "text":
            s += value
        elif kind == "read":
            if last is not None and s.get(last) == "never":
                s += "!"
        else:
            last = name
            if kind == "gen":
                fields = {**value, "max_tokens": max(1, value["max_tokens"])} if "regex" in value else value
                s += gen(name, temperature=0, **fields)
            else:
                s += select(name, value)


@function
def plain(s, steps, branches):
    s += "Go"
    write(s, steps)
    s.fork_map(branches, write).join()


@function
def turns(s, steps, branches):
    s += user("Go")
    with s.assistant():
        write(s, steps)
    for fork, branch in zip(s.fork(len(branches)) if branches else (), branches, strict=True):
        fork += user("And?")
        with fork.assistant():
            write(fork, branch)
    s += user("Once more") + assistant("So: " + gen("last", max_tokens=3, temperature=0))


def check_random(tiny: Engine, program: Any, steps: list[Any], branches: list[Any]) -> None:
    recorder = Recorder(tiny)
    arguments = {"steps": steps, "branches": branches}
    compiled = program.run(**arguments, backend=tiny)
    streamed = program.stream(**arguments, backend=tiny)
    eager = program.run(**arguments, backend=recorder)
    assert seen(compiled) == seen(eager) and values(compiled) == values(eager)
    streamed.run.idle().result()
    assert "".join(streamed.text_iter()) == streamed.text()
    assert seen(streamed) == seen(eager) and values(streamed) == values(eager)
    for ids, sampling, constraint, result in recorder.calls[:3]:
        assert tiny.generate(ids, sampling, constraint=constraint).token_ids == result.token_ids


def test_a_random_program_gives_the_same_in_all_three_ways(tiny: Engine, long: bool) -> None:
    @settings(max_examples=200 if long else 15, deadline=None)
    @given(st.sampled_from([plain, turns]), STEPS, st.lists(STEPS, max_size=2))
    def check(program: Any, steps: list[Any], branches: list[Any]) -> None:
        check_random(tiny, program, steps, branches)

    check()


# --- what is sent ---------------------------------------------------------------------------------------------------


@pytest.fixture
def sent(tiny: Engine, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    messages: list[Any] = []
    send = tiny._connection.send
    monkeypatch.setattr(tiny._connection, "send", lambda message: (messages.append(message), send(message))[1])
    return messages


@function
def six(s):
    for i in range(6):
        s += f"Line {i}:" + gen(f"g{i}", max_tokens=4, temperature=0, stop="\n" if i % 2 else ())
    s += "The end."


def test_six_gens_and_seven_texts_are_one_request(tiny: Engine, sent: list[Any]) -> None:
    loop_thread()
    hold = threading.Event()
    loop_thread().loop.call_soon_threadsafe(hold.wait)

    @function
    def whole(s):
        six.inline(s, (), {})
        hold.set()  # all is queued: what is sent then is one message

    state = whole.run(backend=tiny)
    assert [type(message) for message in sent if not isinstance(message, Tokenize)][:1] == [OpenProgram]
    assert not any(isinstance(message, Submit | AppendProgram) for message in sent)
    (opened,) = [message for message in sent if isinstance(message, OpenProgram)]
    assert [type(item).__name__ for item in opened.items] == ["Text", "Gen"] * 6 + ["Text"]
    assert not any(isinstance(message, Tokenize) for message in sent)  # not even one question between two gens
    assert state.meta("g5").usage.cached_tokens > 0
    assert six.compile(backend=tiny).request() == opened.items
    assert seen(state) == seen(six.run(backend=OneRequestEach(tiny)))
    assert_idle(tiny)


def test_gens_and_selects_without_a_read_are_one_request(tiny: Engine, sent: list[Any]) -> None:
    hold = threading.Event()
    loop_thread().loop.call_soon_threadsafe(hold.wait)

    @function
    def program(s):
        s += user("Well?") + assistant(select("a", ["Yes", "No"]) + ", " + gen("b", max_tokens=3, temperature=0))
        s += user("So?") + assistant("It is " + select("c", ["red", "reddish"]) + gen("d", max_tokens=2, temperature=0))
        hold.set()

    state = program.run(backend=tiny)
    assert [type(message) for message in sent if not isinstance(message, Abort)] == [OpenProgram]
    eager = program.run(backend=OneRequestEach(tiny))
    assert seen(state) == seen(eager) and values(state) == values(eager)
    assert state.meta("a").scores == pytest.approx(eager.meta("a").scores, abs=1e-4)
    origins = [(p.text, p.event.origin if p.event else None) for p in state.branch.context.pieces]
    assert origins == [(p.text, p.event.origin if p.event else None) for p in eager.branch.context.pieces]
    assert (state["a"], "selected") in [(text.strip(), kind) for text, kind in origins]
    assert_idle(tiny)


def test_a_read_is_a_sync_point_and_the_request_goes_on(tiny: Engine, sent: list[Any]) -> None:
    @function
    def program(s):
        s += "One" + gen("a", max_tokens=3, temperature=0)
        s += f" then {len(s['a'])}" + gen("b", max_tokens=3, temperature=0)
        s += select("c", ["x", "y"]) + gen("d", max_tokens=2, temperature=0)

    program.run(backend=tiny)
    kinds = [type(message) for message in sent]
    assert kinds.count(OpenProgram) == 1 and kinds.count(AppendProgram) >= 1
    assert not any(isinstance(message, Submit | Select) for message in sent)
    assert_idle(tiny)


def test_branches_are_requests_that_share_their_parents_path(tiny: Engine, sent: list[Any]) -> None:
    @function
    def program(s):
        s += "A beginning that all of them share, computed once." + gen("a", max_tokens=3, temperature=0)
        forks = s.fork(3)
        for i, fork in enumerate(forks):
            fork += f" Branch {i}" + gen("x", max_tokens=3, temperature=0)
        forks.join()

    tiny.flush()
    state = program.run(backend=tiny)
    opened = [message for message in sent if isinstance(message, OpenProgram)]
    assert [message.parent for message in opened] == [None] + [opened[0].request_id] * 3
    trunk = state.meta("a").usage.prompt_tokens + 3
    computed = state.usage.prompt_tokens - state.usage.cached_tokens
    assert computed <= trunk + 3 * 6
    assert_idle(tiny)


def test_what_fails_in_the_request_is_raised_where_it_is_read(tiny: Engine) -> None:
    @function
    def program(s):
        s += "A" + gen("a", max_tokens=2, temperature=0)
        s += "B" + gen("b", max_tokens=2, regex="(")
        s += "C" + gen("c", max_tokens=2)
        fork = s.fork(1)[0]
        fork += gen("d", max_tokens=1)
        assert len(s["a"]) >= 0
        with pytest.raises(ProgramError, match="'b'"):
            _ = s["c"]
        with pytest.raises(ProgramError, match="'b'"):
            _ = fork["d"]

    state = program.run(backend=tiny)
    assert state.error is not None and state.error.variable == "b" and state.error.span is not None
    assert_idle(tiny)


def distinct(prompts: list[list[int]]) -> int:
    """How many tokens there are to compute, if nothing that begins alike is computed twice."""
    return len({tuple(ids[:end]) for ids in prompts for end in range(1, len(ids) + 1)})


@pytest.mark.parametrize("at_once", [1, 8])
def test_what_a_batch_begins_with_alike_is_computed_once(tiny: Engine, at_once: int) -> None:
    """To the token: arguments that differ late share more than the constant text."""

    @function
    def sorts(s, ticket):
        s += system("You sort tickets. " + "Read every ticket twice before you answer. " * 20) + user(ticket)
        s += assistant(gen("label", max_tokens=1, temperature=0, ignore_eos=True))

    tickets = [f"The pump in hall {i} leaks" for i in range(4)] + [f"Can the lamp be {c}?" for c in ("red", "green")]
    tiny.flush()
    before = tiny.stats()
    states = sorts.run_batch([{"ticket": ticket} for ticket in tickets], backend=tiny, num_threads=at_once)
    after = tiny.stats()
    computed = (after.prompt_tokens - before.prompt_tokens) - (after.cached_tokens - before.cached_tokens)
    prompts = [state.branch.context.ids[: state.meta("label").usage.prompt_tokens] for state in states]
    assert computed == distinct(prompts)
    assert computed < len(prompts[0]) + 6 * 20
    assert_idle(tiny)


# --- a soak ---------------------------------------------------------------------------------------------------------


@function
def wild(s, seed):
    own = random.Random(seed)
    words = ["One", " two", "\nthree", " http:"]
    for i in range(own.randrange(1, 3)):
        fails = own.random() < 0.1
        s += own.choice(words) + gen("x", max_tokens=own.randrange(1, 20), append=True, regex="(" if fails else None)
        if own.random() < 0.2:
            s += select(f"y{i}", ["a", "ab"])
        forks = s.fork(own.randrange(1, 3))
        for fork in forks:
            fork += own.choice(words) + gen("z", max_tokens=own.choice([3, 100])) + own.choice(words)
            if own.random() < 0.3:
                fork += gen("w", stop="e", max_tokens=30)
        if own.random() < 0.4:
            forks.join(errors=own.choice(["raise", "return"]))
        if own.random() < 0.1:
            raise ValueError("of the body")


def soak(engine: Engine, programs: int) -> None:
    """Programs that fail, run out of time and are cancelled; then nothing is locked, runs or waits."""
    dice = random.Random(3)

    async def some(seeds: range) -> None:
        tasks = [
            asyncio.create_task(wild.arun(seed=seed, backend=engine, timeout=dice.choice([0.05, 0.2, 0.8])))
            for seed in seeds
        ]
        await asyncio.sleep(dice.random() * 0.1)
        for task in tasks:
            if dice.random() < 0.2:
                task.cancel()
        for outcome in await asyncio.gather(*tasks, return_exceptions=True):
            assert isinstance(outcome, ProgramState | ProgramError | ValueError | asyncio.CancelledError), outcome

    for first in range(0, programs, 30):
        asyncio.run(some(range(first, min(first + 30, programs))))
    assert_idle(engine)
    assert not engine._connection._inboxes
    assert engine.generate("Still here", None).usage.completion_tokens


def test_random_failures_aborts_and_timeouts_leave_nothing(tiny: Engine, long: bool) -> None:
    tasks = len(asyncio.all_tasks(loop_thread().loop))
    soak(tiny, 500 if long else 60)
    until(lambda: len(asyncio.all_tasks(loop_thread().loop)) <= tasks, "tasks are left")
