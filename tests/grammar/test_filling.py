"""The masks of a step in threads: nobody waits beyond the deadline, and only who is late fails."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from radixrt.errors import GenerationFailed, Overloaded
from radixrt.grammar import GrammarDeadEnd, MaskFiller, MatcherFailed
from radixrt.grammar.errors import TooComplex
from radixrt.grammar.filling import _Round
from tests.waiting import HANG_S


@pytest.fixture
def release() -> Iterator[threading.Event]:
    """What stuck jobs wait for; set at the end, so that no thread is left."""
    event = threading.Event()
    yield event
    event.set()


def marking(done: list[int], number: int) -> Callable[[], None]:
    return lambda: done.append(number)


def failing() -> None:
    raise GrammarDeadEnd("nothing follows")


def test_every_job_runs_once_and_errors_stay_with_their_jobs() -> None:
    filler, done = MaskFiller(60), []  # type: ignore[var-annotated]
    for _ in range(50):
        done.clear()
        errors = filler.run([failing if i == 3 else marking(done, i) for i in range(9)])
        assert sorted(done) == [0, 1, 2, 4, 5, 6, 7, 8]
        assert [i for i, error in enumerate(errors) if error is not None] == [3]
        assert isinstance(errors[3], GrammarDeadEnd)
    assert filler.run([]) == []


@pytest.mark.parametrize("stuck", [1, 5])
def test_only_those_who_are_late_fail(release: threading.Event, stuck: int) -> None:
    filler, done = MaskFiller(0.01), []  # type: ignore[var-annotated]
    jobs = [marking(done, i) for i in range(8)]
    errors = filler.run([*[lambda: bool(release.wait()) and None] * stuck, *jobs])
    assert all(isinstance(error, Overloaded) and "within 0.2 s" in error.message for error in errors[:stuck])
    assert errors[stuck:] == [None] * 8 and sorted(done) == list(range(8))
    # The threads that are held up are missed by nobody.
    assert filler.run([marking(done, 9)]) == [None] and done[-1] == 9


def test_what_begins_to_write_late_is_not_taken(release: threading.Event) -> None:
    filler, entered, left = MaskFiller(0.01), threading.Event(), threading.Event()

    def late() -> None:
        entered.set()
        release.wait()
        left.set()
        raise GenerationFailed("too late to be heard")

    (error,) = filler.run([late])
    assert entered.is_set() and isinstance(error, Overloaded)
    release.set()
    assert left.wait(HANG_S)
    assert filler.run([lambda: None]) == [None]


def test_a_fill_that_the_machine_does_not_let_run_is_no_fault_of_its_row(
    release: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, starved = [], _Round.starved

    def ask(self: _Round, deadline_s: float) -> bool:
        asked.append(starved(self, deadline_s))
        release.set()
        return asked[-1]

    monkeypatch.setattr(_Round, "starved", ask)
    assert MaskFiller(0.2).run([lambda: bool(release.wait()) and None, lambda: None]) == [None, None]
    assert asked[0]


def test_a_fill_that_works_too_long_fails(release: threading.Event) -> None:
    def spin() -> None:
        while not release.is_set():
            sum(range(1000))

    (error,) = MaskFiller(0.1).run([spin])
    assert isinstance(error, TooComplex) and "within 0.1 s" in error.message


def test_a_librarys_panic_ends_its_row_alone() -> None:
    class Panic(BaseException):
        """As pyo3's: no Exception."""

    def panics() -> None:
        raise Panic

    error, none = MaskFiller().run([panics, lambda: None])
    assert none is None and isinstance(error, MatcherFailed) and error.status == 400


def test_a_fault_of_our_own_is_raised() -> None:
    def broken() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        MaskFiller().run([broken])


def test_its_threads_end_with_it() -> None:
    before = set(threading.enumerate())
    filler = MaskFiller()
    assert filler.run([lambda: None] * 3) == [None] * 3
    began = set(threading.enumerate()) - before
    assert began
    del filler
    for thread in began:
        thread.join(HANG_S)
        assert not thread.is_alive()
