"""An engine that dies and is started again: how long is waited, what is said meanwhile, and when it is given up."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest

from radixrt.errors import EngineDead, StartupError
from radixrt.server.restarts import Restarts
from radixrt.server.serve import serve
from radixrt.server.state import ServerState
from tests.waiting import HANG_S

from .fake_backend import FakeBackend


def test_the_wait_doubles_and_a_long_life_forgives() -> None:
    restarts = Restarts(tries=4, first_s=1, longest_s=5, healthy_s=100)
    assert [restarts.after_death(now) for now in (0, 2, 5, 10, 20)] == [1, 2, 4, 5, None]
    restarts = Restarts(tries=2, first_s=1, healthy_s=100)
    restarts.opened(0)
    assert restarts.left(99) and restarts.after_death(99) == 1
    restarts.opened(100)
    assert restarts.after_death(150) == 2, "it served, but not for long"
    restarts.opened(150)
    assert restarts.after_death(250) == 1
    assert restarts.after_death(251) == 2, "one that does not even start has served for no time"
    assert not restarts.left(252) and restarts.after_death(252) is None


class Engines:
    """Engines to be opened one after the other; None: it cannot start."""

    def __init__(self, *engines: FakeBackend | None) -> None:
        self.left = list(engines)
        self.closed: list[FakeBackend] = []
        self.ready = threading.Semaphore(0)

    @contextmanager
    def __call__(self) -> Iterator[FakeBackend]:
        engine = self.left.pop(0)
        if engine is None:
            raise StartupError("no memory")
        try:
            yield engine
        finally:
            self.closed.append(engine)


def test_a_dead_engine_is_replaced_until_it_has_died_too_often() -> None:
    first, second = FakeBackend(), FakeBackend()
    engines = Engines(first, None, second)
    url: list[str] = []
    ended: list[BaseException] = []

    def run() -> None:
        try:
            serve(
                engines, port=0, restarts=Restarts(tries=2, first_s=0.01), dead_grace_s=0.3,
                on_bound=url.append, on_ready=lambda info: engines.ready.release(),
            )  # fmt: skip
        except BaseException as error:  # noqa: BLE001 - the test looks at it
            ended.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    assert engines.ready.acquire(timeout=HANG_S)
    with httpx.Client(base_url=url[0], timeout=HANG_S) as http:
        waiting = threading.Thread(target=lambda: errors.append(http.post("/v1/completions", json={"prompt": "WAIT"})))
        errors: list[httpx.Response] = []
        waiting.start()
        assert first.wait_active(1)
        assert first.after_death() == "it is being restarted: try again"
        first.alive = False
        waiting.join(HANG_S)
        assert errors[0].status_code == 503 and errors[0].json()["error"]["kind"] == "EngineDead"
        assert engines.ready.acquire(timeout=HANG_S), "the second try found an engine"
        assert engines.closed == [first]
        assert second.after_death() == "it has died too often, and the server ends", "both tries are used up"
        assert http.get("/health").json() == {"status": "serving"}
        assert http.post("/v1/completions", json={"prompt": "Hi"}).status_code == 200
        second.alive = False
        thread.join(HANG_S)
    assert isinstance(ended[0], EngineDead) and engines.closed == [first, second]


def test_who_comes_right_after_a_death_hears_what_follows() -> None:
    state, engine = ServerState(), FakeBackend()
    state.adopt(engine)
    assert state.stage == "serving"
    engine.alive = False
    with pytest.raises(EngineDead, match="has died: the server ends"):
        state.engine  # noqa: B018 - asked for, not used


def test_an_engine_that_never_starts_is_not_tried_again() -> None:
    engines = Engines(None, FakeBackend())
    with pytest.raises(StartupError, match="no memory"):
        serve(engines, port=0, restarts=Restarts(first_s=0.01))
    assert len(engines.left) == 1
