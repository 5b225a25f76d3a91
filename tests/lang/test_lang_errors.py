"""Failures are raised where a result is read, name what failed, and leave nothing running."""

from __future__ import annotations

import asyncio
import threading

import pytest
from fake_backend import FakeBackend, Gate
from lang_interrupting import interrupted

from radixrt.errors import ContextLengthExceeded, EngineDead, GenerationFailed, InvalidRequest
from radixrt.lang import ProgramError, UnknownVariable, function, gen, select, user
from tests.waiting import HANG_S


def test_a_failure_is_raised_by_every_later_read(backend: FakeBackend) -> None:
    backend.failures = {"two": ContextLengthExceeded("the prompt has 9,000 tokens, the limit is 8,192")}
    backend.script = lambda text: "fine"

    @function
    def story(s):
        s += "one" + gen("first") + "two" + gen("second") + "three" + gen("third") + select("fourth", ["a"])

    state = story.run(backend=backend)
    assert state["first"] == "fine"
    errors = []
    for read in (
        lambda: state["second"], lambda: state["third"], lambda: state.get("fourth"), lambda: state.meta("third"),
        state.text, state.messages, lambda: state.ids, lambda: list(state.text_iter("third")),
        lambda: list(state.text_iter()),
    ):  # fmt: skip
        with pytest.raises(ProgramError) as raised:
            read()
        errors.append(raised.value)
    assert all(error is errors[0] for error in errors)
    line = story.__wrapped__.__code__.co_firstlineno + 2
    where = f"program 'story', test_lang_errors.py:{line}, variable 'second'"
    assert str(errors[0]) == f"{where}: the prompt has 9,000 tokens, the limit is 8,192"
    assert errors[0].span is not None and (errors[0].span.file, errors[0].span.line) == (__file__, line)
    assert (errors[0].code, errors[0].status) == ("context_length_exceeded", 400)
    assert state.error is errors[0]
    assert state.usage.prompt_tokens > 0
    assert len(backend.prompts) == 2


def test_any_exception_of_a_backend_reaches_the_reader(backend: FakeBackend) -> None:
    backend.failures = {"a": ZeroDivisionError("oops")}

    @function
    def program(s):
        s += "a" + gen("x")

    with pytest.raises(ProgramError, match="ZeroDivisionError: oops"):
        program.run(backend=backend)["x"]


def test_unknown_names_list_the_known_ones(backend: FakeBackend) -> None:
    @function
    def program(s):
        s += "a" + gen("answer") + gen("reason")

    state = program.run(backend=backend)
    with pytest.raises(UnknownVariable) as raised:
        state["awnser"]
    assert isinstance(raised.value, KeyError) and isinstance(raised.value, ProgramError)
    assert "there are: answer, reason (did you mean 'answer'?)" in str(raised.value)
    for read in (state.get, state.meta, state.text_iter):
        with pytest.raises(UnknownVariable):
            read("nothing")
    empty = function(lambda s: None).run(backend=backend)
    with pytest.raises(UnknownVariable, match="there are none"):
        empty["x"]


def test_a_name_that_comes_later_is_waited_for_in_a_stream(backend: FakeBackend) -> None:
    gate = Gate()
    backend.gates = {"a": gate}

    @function
    def program(s):
        s += "a" + gen("early")
        s.set("late", s["early"] + "!")

    backend.script = lambda text: "v"
    state = program.stream(backend=backend)
    assert gate.reached.wait(HANG_S)
    got: list[str] = []
    reader = threading.Thread(target=lambda: got.append(state["late"]))
    reader.start()
    gate.open()
    reader.join(HANG_S)
    assert got == ["v!"]
    with pytest.raises(UnknownVariable):
        state["never"]


def test_an_exception_of_the_body_goes_through_and_cancels_what_runs(backend: FakeBackend) -> None:
    gate = Gate()
    backend.gates = {"a": gate}

    @function
    def program(s):
        s += "a" + gen("x")
        assert gate.reached.wait(HANG_S)
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        program.run(backend=backend)
    assert backend.cancelled == ["a"] and backend.active == 0


def test_an_exception_of_a_streamed_body_is_raised_where_it_is_read(backend: FakeBackend) -> None:
    @function
    def program(s):
        s += "a" + gen("x")
        assert s["x"]
        raise SystemExit(3)

    state = program.stream(backend=backend)
    with pytest.raises(ProgramError, match="the program raised SystemExit: 3"):
        state["y"]
    assert state["x"]
    assert state.error is not None
    with pytest.raises(ProgramError, match="SystemExit"):
        list(state.text_iter())


def test_keyboard_interrupt_ends_everything(backend: FakeBackend) -> None:
    gate = Gate(4)
    backend.gates = {"a": gate}

    @function
    def program(s):
        forks = s.fork(4)
        forks += "a" + gen("x")
        forks.join()

    with pytest.raises(KeyboardInterrupt), interrupted(gate.reached):
        program.run(backend=backend)
    assert len(backend.cancelled) == len(backend.prompts) == 4 and backend.active == 0


def test_cancelling_a_task_cancels_the_program(backend: FakeBackend) -> None:
    gate = Gate()
    backend.gates = {"a": gate}

    @function
    def program(s):
        s += "a" + gen("x")
        s["x"]

    @function
    async def deep(s):
        s += "a" + gen("x")
        await s.aget("x")

    async def main(which) -> None:
        task = asyncio.create_task(which.arun(backend=backend))
        await asyncio.to_thread(gate.reached.wait, 10)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    for which in (program, deep):
        gate.reached.clear()
        asyncio.run(main(which))
    end = function(lambda s: None).run(backend=backend)  # the loop has handled the cancellations that came before
    assert end.error is None
    assert backend.cancelled == ["a", "a"] and backend.active == 0


def test_a_state_whose_run_failed_takes_nothing_more(backend: FakeBackend) -> None:
    kept = []

    @function
    def program(s):
        kept.append(s)
        raise ValueError

    with pytest.raises(ValueError):
        program.run(backend=backend)
    state = kept[0]
    state += "a" + gen("x")
    with pytest.raises(ProgramError, match="ended with ValueError"):
        state["x"]


def test_the_engines_death_ends_all_reads(backend: FakeBackend) -> None:
    gate = Gate(3)
    backend.gates = {"a": gate}
    backend.failures = {"a": EngineDead("the runner process ended")}

    @function
    def program(s):
        forks = s.fork(3)
        forks += "a" + gen("x") + gen("y")
        assert gate.reached.wait(HANG_S)
        gate.open()
        results = forks.join(errors="return")
        assert [error.branch for error in results] == ["fork 1 of 3", "fork 2 of 3", "fork 3 of 3"]
        with pytest.raises(ProgramError, match="runner process"):
            forks["y"]

    program.run(backend=backend)


def test_waiting_on_the_loops_own_thread_is_refused(backend: FakeBackend) -> None:
    """A backend that runs a program inside a request must not stop the loop."""

    @function
    def inner(s):
        s += "x" + gen("x")
        return s["x"]

    class Nested(FakeBackend):
        async def agenerate(self, *args, **kwargs):
            inner.run(backend=self)["x"]

    @function
    def outer(s):
        s += "a" + gen("y")

    with pytest.raises(ProgramError, match=r"use inner\.arun"):
        outer.run(backend=Nested())["y"]


def test_turns_and_text_do_not_mix(backend: FakeBackend) -> None:
    @function
    def outside(s):
        s += user("hello") + "text"

    @function
    def after_text(s):
        s += "text" + user("hello")

    @function
    def nested(s):
        s += user("a" + user("b"))

    for program, words in ((outside, "outside of any turn"), (after_text, "follows text"), (nested, "do not nest")):
        with pytest.raises(InvalidRequest, match=words):
            program.run(backend=backend)
    assert backend.prompts == []


def test_only_text_and_expressions_are_appended(backend: FakeBackend) -> None:
    for wrong in (5, None, ["a"], b"a"):

        def program(s, wrong=wrong):
            s += wrong

        with pytest.raises(InvalidRequest, match="only text and expressions"):
            function(program).run(backend=backend)


def test_a_failed_generation_is_raised_in_the_stream(backend: FakeBackend) -> None:
    backend.failures = {"b": GenerationFailed("broken")}
    backend.script = lambda text: "x"

    @function
    def program(s):
        s += "a" + gen("one") + "b" + gen("two")

    state = program.stream(backend=backend)
    pieces: list[str] = []
    with pytest.raises(ProgramError, match="variable 'two': broken"):
        pieces.extend(state.text_iter())
    assert "".join(pieces) == "axb"
