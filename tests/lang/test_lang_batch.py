"""run_batch: order, bounds, failures, interruption, and the bar."""

from __future__ import annotations

import io
import sys
import threading

import pytest
from fake_backend import FakeBackend, Gate
from lang_interrupting import interrupted

from radixrt.errors import GenerationFailed, InvalidRequest
from radixrt.lang import ProgramError, function, gen
from tests.waiting import HANG_S


@function
def echo(s, word, fail=False):
    s += word + gen("x")
    if fail:
        raise ValueError(f"about {word}")


def test_results_are_in_order(backend: FakeBackend) -> None:
    backend.pause = True
    backend.script = lambda text: text[::-1]
    words = [f"w{i}" for i in range(50)]
    states = echo.run_batch([{"word": word} for word in words], backend=backend, num_threads=7)
    assert [state["x"] for state in states] == [word[::-1] for word in words]
    assert backend.peak <= 7
    assert echo.run_batch([], backend=backend) == []


def test_no_more_than_num_threads_run_at_once(backend: FakeBackend) -> None:
    gate = Gate(3)
    backend.gates = {"w": gate}
    done = []
    batch = threading.Thread(
        target=lambda: done.append(echo.run_batch([{"word": "w"}] * 9, backend=backend, num_threads=3))
    )
    batch.start()
    assert gate.reached.wait(HANG_S)
    gate.open()
    batch.join(HANG_S)
    assert len(done[0]) == 9 and backend.peak == 3


def test_a_failed_run_raises_where_it_is_read_and_the_others_go_on(backend: FakeBackend) -> None:
    backend.failures = {"bad": GenerationFailed("dead end")}
    backend.script = lambda text: "v"
    states = echo.run_batch(
        [{"word": "good"}, {"word": "bad"}, {"word": "worse", "fail": True}, {"word": "good"}], backend=backend
    )
    assert states[0]["x"] == states[3]["x"] == "v"
    with pytest.raises(ProgramError, match="dead end"):
        states[1]["x"]
    with pytest.raises(ProgramError, match="program 'echo': the program raised ValueError: about worse") as raised:
        states[2]["y"]
    assert isinstance(raised.value.__cause__, ValueError)
    assert [state.error is None for state in states] == [True, False, False, True]


def test_arguments_are_checked_before_anything_runs(backend: FakeBackend) -> None:
    with pytest.raises(InvalidRequest, match=r"batch\[1\]: echo: .*word"):
        echo.run_batch([{"word": "a"}, {"wrod": "b"}], backend=backend)
    with pytest.raises(InvalidRequest, match=r"batch\[0\] must be a dict"):
        echo.run_batch(["a"], backend=backend)  # type: ignore[list-item]
    for threads in (0, -1, True, 2.5):
        with pytest.raises(InvalidRequest, match="num_threads"):
            echo.run_batch([{"word": "a"}], backend=backend, num_threads=threads)  # type: ignore[arg-type]
    assert backend.prompts == []


def test_bound_arguments_count(backend: FakeBackend) -> None:
    backend.script = lambda text: "v"
    states = echo.bind(word="a").run_batch([{}, {"word": "b"}], backend=backend)
    assert [state.text() for state in states] == ["av", "bv"]


def test_an_interrupt_ends_the_batch(backend: FakeBackend) -> None:
    gate = Gate(4)
    backend.gates = {"w": gate}

    with pytest.raises(KeyboardInterrupt), interrupted(gate.reached):
        echo.run_batch([{"word": "w"}] * 20, backend=backend, num_threads=4)
    assert len(backend.cancelled) == 4 and backend.active == 0
    assert len(backend.prompts) == 4


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("stream", "wanted", "drawn"), [(Terminal, True, True), (Terminal, False, False), (io.StringIO, True, False)]
)
def test_the_bar_is_drawn_on_a_terminal_only(
    backend: FakeBackend, monkeypatch: pytest.MonkeyPatch, stream: type[io.StringIO], wanted: bool, drawn: bool
) -> None:
    output = stream()
    monkeypatch.setattr(sys, "stderr", output)
    monkeypatch.setenv("TERM", "xterm")
    echo.run_batch([{"word": str(i)} for i in range(3)], backend=backend, progress_bar=wanted)
    monkeypatch.undo()
    assert ("echo" in output.getvalue() and "3/3" in output.getvalue()) == drawn
    assert drawn or output.getvalue() == ""
