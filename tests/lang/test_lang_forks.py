"""Branches: order, isolation, gathering, failures, and many of them at once."""

from __future__ import annotations

import pytest
from fake_backend import FakeBackend, Gate, decode, encode

from radixrt.errors import GenerationFailed, InvalidRequest
from radixrt.lang import Forks, ProgramError, function, gen
from tests.waiting import HANG_S


def test_branches_share_what_stands_and_differ_after(backend: FakeBackend) -> None:
    backend.script = lambda text: text[-1].upper()

    @function
    def program(s):
        s += "abc" + gen("first")
        forks = s.fork(3)
        for letter, fork in zip("xyz", forks, strict=True):
            fork += letter + gen("second")
        s.set("texts", [fork.text() for fork in forks])
        s.set("again", forks["second"])
        s += "!"

    state = program.run(backend=backend)
    assert state["texts"] == ["abcCxX", "abcCyY", "abcCzZ"]
    assert state["again"] == ["X", "Y", "Z"]
    assert state.text() == "abcC!"
    prefix = encode("abc") + encode("C")
    assert sorted(backend.prompts[1:]) == sorted(prefix + encode(letter) for letter in "xyz")


def test_branches_run_at_once_and_are_gathered_in_order(backend: FakeBackend) -> None:
    gates = {letter: Gate() for letter in "xyz"}
    backend.gates = dict(gates)
    backend.script = lambda text: text[-1].upper()

    @function
    def program(s):
        s += "p"
        forks = s.fork(3)
        for letter, fork in zip("xyz", forks, strict=True):
            fork += letter + gen("v")
        for letter in "zxy":  # all three are under way; they end in another order
            assert gates[letter].reached.wait(HANG_S)
        for letter in "zyx":
            gates[letter].open()
        forks.join()

    state = program.run(backend=backend)
    assert state["v"] == ["X", "Y", "Z"]
    assert backend.peak == 3


def test_join_aligns_lists_with_branches_and_keeps_the_sources_names(backend: FakeBackend) -> None:
    @function
    def program(s):
        s.set("own", "mine")
        forks = s.fork(3)
        for i, fork in enumerate(forks):
            fork.set("own", "theirs")
            fork.set("all", i)
            if i == 1:
                fork.set("one", "only")
        assert forks.join() == [None, None, None]

    state = program.run(backend=backend)
    assert (state["own"], state["all"], state["one"]) == ("mine", [0, 1, 2], [None, "only", None])


def test_as_a_with_block_and_list(backend: FakeBackend) -> None:
    backend.script = lambda text: "v"

    @function
    def program(s):
        s += "a"
        with s.fork(2) as forks:
            assert isinstance(forks, Forks) and len(forks) == 2 and len(forks[0:1]) == 1
            forks += gen("x")
        assert s["x"] == ["v", "v"]

    program.run(backend=backend)


def test_copy_and_nested_forks_have_names(backend: FakeBackend) -> None:
    backend.failures["bad"] = GenerationFailed("dead end")

    @function
    def program(s):
        other = s.copy()
        other += "ok" + gen("x")
        inner = s.fork(2)[1].fork(3)[2]
        inner += "bad" + gen("y")
        s.set("other", other["x"])
        with pytest.raises(ProgramError) as raised:
            inner["y"]
        assert raised.value.branch == "fork 2 of 2 > fork 3 of 3"

    program.run(backend=backend)


@pytest.mark.parametrize("n", [0, -1, True, 2.0, "3", 5000])
def test_fork_takes_a_number(backend: FakeBackend, n: object) -> None:
    @function
    def program(s):
        s.fork(n)

    with pytest.raises(InvalidRequest, match="fork takes a number"):
        program.run(backend=backend)


def test_a_failed_branch_raises_at_join_and_cancels_its_siblings(backend: FakeBackend) -> None:
    backend.gates = {"x": Gate(), "z": Gate()}
    backend.failures = {"y": GenerationFailed("the constraint met a dead end", code="dead_end")}

    @function
    def program(s):
        forks = s.fork(3)
        for letter, fork in zip("xyz", forks, strict=True):
            fork += letter + gen("v")
        assert backend.gates["x"].reached.wait(HANG_S) and backend.gates["z"].reached.wait(HANG_S)
        with pytest.raises(ProgramError) as raised:
            forks.join()
        error = raised.value
        assert (error.program, error.branch, error.variable) == ("program", "fork 2 of 3", "v")
        assert error.reason == "the constraint met a dead end" and error.code == "dead_end"
        assert isinstance(error.__cause__, GenerationFailed)
        with pytest.raises(ProgramError, match=r"a branch beside it failed.*dead end") as cancelled:
            forks[2]["v"]
        assert cancelled.value.code == "cancelled" and cancelled.value.branch == "fork 3 of 3"

    program.run(backend=backend)
    assert sorted(backend.cancelled) == ["x", "z"] and backend.active == 0


def test_reading_a_failed_branch_cancels_its_siblings(backend: FakeBackend) -> None:
    backend.gates = {"x": Gate()}
    backend.failures = {"y": GenerationFailed("no")}

    @function
    def program(s):
        forks = s.fork(2)
        for letter, fork in zip("xy", forks, strict=True):
            fork += letter + gen("v")
        assert backend.gates["x"].reached.wait(HANG_S)
        with pytest.raises(ProgramError, match="fork 2 of 2"):
            forks[1]["v"]
        with pytest.raises(ProgramError, match="beside it failed"):
            forks[0]["v"]

    program.run(backend=backend)
    assert backend.cancelled == ["x"]


def test_join_can_return_the_errors(backend: FakeBackend) -> None:
    backend.failures = {"y": GenerationFailed("no")}
    backend.script = lambda text: "v"

    @function
    def program(s):
        forks = s.fork(3)
        for letter, fork in zip("xyz", forks, strict=True):
            fork += letter + gen("v")
        first, second, third = forks.join(errors="return")
        assert first is None and third is None
        assert isinstance(second, ProgramError) and second.branch == "fork 2 of 3"
        assert s["v"] == ["v", second, "v"]
        with pytest.raises(InvalidRequest, match="errors"):
            forks.join(errors="ignore")

    program.run(backend=backend)
    assert backend.cancelled == []


def test_children_of_a_failed_parent_fail_with_its_error(backend: FakeBackend) -> None:
    backend.failures = {"p": GenerationFailed("parent")}

    @function
    def program(s):
        s += "p" + gen("v")
        forks = s.fork(2)
        forks += "x" + gen("w")
        with pytest.raises(ProgramError, match="parent") as raised:
            forks.join()
        assert raised.value.variable == "v" and raised.value.branch is None
        with pytest.raises(ProgramError, match="parent"):
            forks[1].text()

    program.run(backend=backend)
    assert len(backend.prompts) == 1


def test_children_copy_open_turns(backend: FakeBackend) -> None:
    backend.script = lambda text: "v"

    @function
    def program(s):
        with s.user():
            s += "q"
        with s.assistant():
            s += "a" + gen("x")
            forks = s.fork(2)
            forks += gen("y")
        s.set("messages", [fork.messages()[-1]["content"] for fork in forks])

    state = program.run(backend=backend)
    assert state["messages"] == ["avv", "avv"]
    assert state.messages()[-1]["content"] == "av"


def test_sixty_four_programs_of_eight_forks_on_eight_threads(backend: FakeBackend) -> None:
    backend.pause = True
    backend.script = lambda text: text[-3:]

    @function
    def program(s, i):
        s += f"{i:02d}"
        forks = s.fork(8)
        for j, fork in enumerate(forks):
            fork += f"{j}" + gen("x")
            inner = fork.fork(2)
            inner += gen("deep")
            inner.join()
        forks.join()
        s += "." + gen("last")

    states = program.run_batch([{"i": i} for i in range(64)], backend=backend, num_threads=8)
    assert [state["x"] for state in states] == [[f"{i:02d}{j}" for j in range(8)] for i in range(64)]
    assert states[5]["deep"] == [["050", "050"], ["051", "051"]] + [[f"05{j}"] * 2 for j in range(2, 8)]
    assert len(backend.prompts) == 64 * (8 + 16 + 1)
    assert backend.active == 0
    assert all(decode(prompt)[:2].isdigit() for prompt in backend.prompts)


def test_one_branch_may_be_written_by_its_index(backend: FakeBackend) -> None:
    @function
    def program(s):
        s += "a"
        forks = s.fork(2)
        forks[1] += "b" + gen("x")
        forks.join()
        with pytest.raises(InvalidRequest, match="cannot be replaced"):
            forks[0] = forks[1]

    assert program.run(backend=backend)["x"][0] is None
