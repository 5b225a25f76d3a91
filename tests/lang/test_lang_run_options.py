"""What a caller says of a run as a whole: time, salt, priority; how a batch is drawn as a generator."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from fake_backend import FakeBackend, Gate

from radixrt.errors import InvalidRequest
from radixrt.lang import ProgramError, ProgramState, function, gen, select
from tests.waiting import HANG_S


@function
def held(s, ending):
    s += ending + gen("x")
    s += "more" + gen("y")


@pytest.fixture
def backend() -> FakeBackend:
    backend = FakeBackend()
    backend.gates = {"held": Gate()}
    return backend


def test_salt_and_priority_go_with_every_request(backend: FakeBackend) -> None:
    @function
    def program(s):
        s += "ab" + gen("x") + select("y", ["a", "b"], choices_method="unconditional_likelihood_normalized")
        s.cache()
        forks = s.fork(2)
        forks += "!" + gen("z")
        forks.join()

    program.run(backend=backend, cache_salt="mine", priority=-3)
    wanted = {"cache_salt": "mine", "priority": -3}
    assert len(backend.options) == len(backend.prompts) + len(backend.probes) == 6
    assert backend.options == [wanted] * 6
    assert [options for *_, options in backend.selects] == [wanted]


def test_cache_computes_what_cannot_change_any_more(backend: FakeBackend) -> None:
    @function
    def program(s):
        s += "see ab"
        s.cache()
        s += "c" + gen("x", heal=False)

    state = program.run(backend=backend)
    cached, whole = backend.prompts
    assert backend.params[0].max_tokens == 0
    assert whole[: len(cached)] == cached and len(cached) == len(whole) - 1
    assert state["x"]


def test_a_run_that_takes_too_long_is_cancelled(backend: FakeBackend) -> None:
    with pytest.raises(ProgramError, match=r"took longer than 0\.05 s") as raised:
        held.run(ending="held", backend=backend, timeout=0.05)
    assert raised.value.code == "timeout"
    assert backend.cancelled == ["held"] and backend.active == 0


def test_reads_raise_the_timeout_and_the_body_may_end_as_it_likes(backend: FakeBackend) -> None:
    seen: list[str | None] = []

    @function
    def program(s):
        forks = s.fork(2)
        forks += "held" + gen("x")
        for fork in forks:
            try:
                fork["x"]
            except ProgramError as error:
                seen.append(error.code)

    with pytest.raises(ProgramError):
        program.run(backend=backend, timeout=0.05)
    assert seen == ["timeout", "timeout"]
    assert backend.active == 0


def test_a_stream_ends_with_the_timeout(backend: FakeBackend) -> None:
    state = held.stream(ending="held", backend=backend, timeout=0.05)
    with pytest.raises(ProgramError) as raised:
        list(state.text_iter())
    assert raised.value.code == "timeout"
    assert state.error is not None and state.error.code == "timeout"


def test_the_time_of_a_run_that_ends_does_not_run_on(backend: FakeBackend) -> None:
    state = held.run(ending="free", backend=backend, timeout=30)
    assert state["y"] and state.run.timed_out is None and state.error is None


def test_async_runs_time_out_wherever_they_wait(backend: FakeBackend) -> None:
    @function
    async def program(s, elsewhere):
        s += "held" + gen("x")
        if elsewhere:
            await asyncio.Event().wait()
        await s.aget("x")

    async def main() -> None:
        for elsewhere in (False, True):
            with pytest.raises(ProgramError) as raised:
                await program.arun(elsewhere=elsewhere, backend=backend, timeout=0.05)
            assert raised.value.code == "timeout"
        with pytest.raises(ProgramError) as raised:
            await held.arun(ending="held", backend=backend, timeout=0.05)
        assert raised.value.code == "timeout"

    asyncio.run(main())
    assert backend.active == 0


@pytest.mark.parametrize("asynchronous", [False, True])
def test_each_run_of_a_batch_has_its_own_time(backend: FakeBackend, asynchronous: bool) -> None:
    batch = [{"ending": ending} for ending in ("free", "held", "free")]
    if asynchronous:
        states = asyncio.run(held.arun_batch(batch, backend=backend, timeout=1.0, num_threads=1))
    else:
        states = held.run_batch(batch, backend=backend, timeout=1.0, num_threads=1)
    codes = [state.error.code if state.error else None for state in states]
    assert codes == [None, "timeout", None]


@pytest.mark.parametrize(
    ("options", "param"),
    [({"timeout": 0}, "timeout"), ({"timeout": "5"}, "timeout"), ({"timeout": float("inf")}, "timeout"),
     ({"cache_salt": 5}, "cache_salt"), ({"priority": 1.5}, "priority"), ({"priority": True}, "priority")],
)  # fmt: skip
def test_options_are_checked(backend: FakeBackend, options: dict[str, Any], param: str) -> None:
    for start in (held.run, held.stream):
        with pytest.raises(InvalidRequest) as raised:
            start(ending="free", backend=backend, **options)
        assert raised.value.param == param
    with pytest.raises(InvalidRequest):
        held.run_batch([{"ending": "free"}], backend=backend, **options)
    assert not backend.prompts


@pytest.mark.parametrize("name", ["backend", "timeout", "cache_salt", "priority"])
def test_a_program_cannot_have_a_parameter_that_run_takes(name: str) -> None:
    names: dict[str, Any] = {}
    exec(f"def program(s, {name}): pass", names)  # noqa: S102 - a parameter of that name
    with pytest.raises(InvalidRequest, match=f"called {name}"):
        function(names["program"])


# --- batches as generators ------------------------------------------------------------------------------------------


def test_states_come_as_soon_as_they_and_those_before_are_done(backend: FakeBackend) -> None:
    gate = backend.gates["held"]
    batch = [{"ending": ending} for ending in ("one", "held", "three")]
    states = held.iter_batch(batch, backend=backend)
    first = next(states)
    assert first["y"] and gate.reached.wait(HANG_S)
    gate.open()
    rest = list(states)
    assert [state.text().split("<")[0] for state in [first, *rest]] == ["one", "held", "three"]


def test_leaving_a_batch_early_cancels_what_runs(backend: FakeBackend) -> None:
    states = held.iter_batch([{"ending": "one"}, {"ending": "held"}, {"ending": "held"}], backend=backend)
    assert next(states)["y"]
    assert backend.gates["held"].reached.wait(HANG_S)
    states.close()
    assert backend.active == 0


def test_a_batchs_arguments_are_checked_before_anything_starts(backend: FakeBackend) -> None:
    with pytest.raises(InvalidRequest, match=r"batch\[1\]"):
        held.iter_batch([{"ending": "one"}, {"wrong": 1}], backend=backend)
    assert not backend.prompts and threading.active_count() >= 1


# --- lists and items ------------------------------------------------------------------------------------------------


def test_append_makes_a_list(backend: FakeBackend) -> None:
    backend.script = lambda text: str(text.count("?"))

    @function
    def program(s):
        for _ in range(3):
            s += "?" + gen("n", type=int, append=True)
        s += "!" + select("n", ["7", "8"], append=True)
        early = list(s["n"])
        s += "?" + gen("n", append=True)
        s.set("early", early)

    state = program.run(backend=backend)
    assert state["early"] == [1, 2, 3, state["early"][3]] and state["early"][3] in ("7", "8")
    assert state["n"] == [*state["early"], "4"] and state.get("n", str)[:3] == ["1", "2", "3"]
    assert len(state.metas("n")) == 5 and state.metas("n")[0].token_ids
    with pytest.raises(ProgramError, match="`metas`"):
        state.meta("n")
    assert "".join(state.text_iter("n")) == "".join(state.get("n", str))


def test_a_branch_appends_to_its_own_list(backend: FakeBackend) -> None:
    @function
    def program(s):
        s += "a" + gen("n", append=True)
        forks = s.fork(2)
        forks += "b" + gen("n", append=True)
        forks.join()
        s.set("lengths", [len(n) for n in forks["n"]])

    state = program.run(backend=backend)
    assert state["lengths"] == [2, 2] and len(state["n"]) == 1


def test_append_fails_with_its_item_and_only_lists_take_it(backend: FakeBackend) -> None:
    backend.failures = {"b": InvalidRequest("broken")}

    @function
    def program(s):
        s += "a" + gen("n", append=True) + "b" + gen("n", append=True)

    with pytest.raises(ProgramError, match="broken"):
        program.run(backend=backend)["n"]

    @function
    def wrong(s):
        s += "a" + gen("n")
        s += "a" + gen("n", append=True)

    with pytest.raises(InvalidRequest, match="no list"):
        wrong.run(backend=backend)
    with pytest.raises(InvalidRequest, match="name"):
        gen(append=True)


def test_fork_map_has_one_branch_an_item(backend: FakeBackend) -> None:
    @function
    def program(s):
        s += "Points:"
        forks = s.fork_map(["sun", "rain"], lambda fork, item: item + gen("x"))
        more = s.fork_map(range(3))
        for fork, item in zip(more, more.items, strict=True):
            fork += f"{item}" + gen("y")
        forks.join()
        more.join()
        s.fork_map([]).join()

    state = program.run(backend=backend)
    assert sorted(prompt[-3:] for prompt in backend.prompts)
    assert [len(state["x"]), len(state["y"])] == [2, 3]


def test_a_program_may_be_the_body_of_fork_map(backend: FakeBackend) -> None:
    @function
    def expand(s, item):
        s += item + gen("x")

    @function
    def program(s):
        s += "Points:"
        s.fork_map(["sun", "rain"], expand).join()

    state: ProgramState = program.run(backend=backend)
    assert len(state["x"]) == 2


def test_async_twins_answer_as_the_others(backend: FakeBackend) -> None:
    @function
    async def program(s):
        s += "a" + gen("x")
        assert (await s.ameta("x")).token_ids
        assert await s.aids() and await s.amessages() == []
        assert (await s.ausage()).completion_tokens > 0

    asyncio.run(program.arun(backend=backend))
