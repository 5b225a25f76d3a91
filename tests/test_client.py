"""The client against a real server over the fake backend: the same values and exceptions as the engine's."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator

import numpy as np
import pytest

from radixrt.backend import Backend
from radixrt.client import Client
from radixrt.errors import (
    Aborted,
    ConstraintError,
    ContextLengthExceeded,
    EngineDead,
    GenerationFailed,
    InvalidRequest,
    Overloaded,
    RadixrtError,
    Unauthorized,
)
from radixrt.messages import ChatMessage, ChatPrompt, TextPrompt, TokensPrompt
from radixrt.params import Constraint, SamplingParams
from radixrt.results import Usage
from radixrt.server.keys import keys_of
from tests.waiting import HANG_S

from .server.conftest import Served, serving
from .server.fake_backend import REPLY, FakeBackend, logprob


@pytest.fixture(scope="module")
def shared() -> Iterator[Served]:
    backend = FakeBackend()
    with serving(backend, backend) as served:
        yield served


@pytest.fixture
def backend(shared: Served) -> FakeBackend:
    shared.backend.reset()
    return shared.backend


@pytest.fixture
def client(shared: Served, backend: FakeBackend) -> Iterator[Client]:
    with Client(shared.url, timeout=HANG_S) as client:
        yield client


def test_it_is_a_backend(client: Client) -> None:
    assert isinstance(client, Backend)


def test_info(client: Client, backend: FakeBackend) -> None:
    assert client.info == backend.info


def test_results_are_those_of_the_engine(client: Client, backend: FakeBackend) -> None:
    params = SamplingParams(n=2, max_tokens=20, logprobs=1, prompt_logprobs=1, stop=("more",), seed=3)
    expected = asyncio.run(backend.agenerate("Hä", params, cache_salt="a"))
    assert client.generate("Hä", params, cache_salt="b").choices == expected.choices
    made = asyncio.run(client.agenerate("Hä", params, cache_salt="b", priority=2))
    assert made.choices == expected.choices and made.prompt_logprobs == expected.prompt_logprobs
    assert made.usage.cached_tokens == 2
    assert backend.seen[-1] == (TextPrompt(text="Hä"), params, None, "b", 2)
    constraint = Constraint(kind="choice", choices=("x", "y"))
    assert client.generate("a", constraint=constraint).text == "y"
    assert backend.seen[-1][1:3] == (SamplingParams(), constraint)


def test_streams_are_those_of_the_engine(client: Client, backend: FakeBackend) -> None:
    backend.reply = "a\u2028b\u0085c\r\n\x0bd" + REPLY
    params = SamplingParams(n=2, logprobs=0)

    async def expected() -> list[object]:
        return [delta async for delta in backend.astream("Hi", params)]

    async def read() -> list[object]:
        async with Client(client._base_url) as other:
            return [delta async for delta in other.astream("Hi", params)]

    asyncio.run(expected())
    wanted = asyncio.run(expected())
    assert list(client.stream("Hi", params)) == wanted
    assert asyncio.run(read()) == wanted


def test_every_kind_of_prompt_arrives(client: Client, backend: FakeBackend) -> None:
    client.generate([65, 66])
    assert isinstance(backend.seen[-1][0], TokensPrompt) and backend.seen[-1][0].ids.tolist() == [65, 66]
    client.generate(TokensPrompt(ids=np.array([67], dtype=np.int32)))
    assert backend.seen[-1][0].ids.dtype == np.int32  # type: ignore[union-attr]
    prompt = ChatPrompt(
        messages=[ChatMessage(role="user", content="x"), ChatMessage(role="assistant", content="y")],
        continue_final_message=True, add_generation_prompt=False, after=1, after_open=True,
    )  # fmt: skip
    client.generate(prompt)
    assert backend.seen[-1][0] == prompt
    client.generate([{"role": "user", "content": "Hi"}])
    assert backend.seen[-1][0] == ChatPrompt(messages=[ChatMessage(role="user", content="Hi")])


def test_tokens_and_scores(client: Client, backend: FakeBackend) -> None:
    assert client.tokenize("Hä") == backend.tokenize("Hä") == asyncio.run(client.atokenize("Hä"))
    ids = np.array(list("Hä".encode()))
    assert client.detokenize(ids) == "Hä" == asyncio.run(client.adetokenize(ids, skip_special_tokens=True))  # type: ignore[arg-type]
    scores = client.score("x", [[1, 2], [3]])
    assert scores.logprobs == [(logprob(1), logprob(2)), (logprob(3),)]
    assert scores.usage == Usage(prompt_tokens=3 + 2)
    assert backend.scored == (None, 0, 20)
    assert asyncio.run(client.ascore("x", [[1]], cache_salt="s", priority=4, timeout=9)).logprobs == [(logprob(1),)]
    assert backend.scored == ("s", 4, 9)
    with pytest.raises(InvalidRequest, match="timeout_s"):
        client.score("x", [[1]], timeout=-1)


@pytest.mark.parametrize(
    ("prompt", "params", "constraint", "kind", "code"),
    [
        ("x" * 700, SamplingParams(), None, ContextLengthExceeded, "context_length_exceeded"),
        ("x", SamplingParams(), Constraint(kind="regex", value="[unclosed"), ConstraintError, "invalid_constraint"),
        ("DEADEND", SamplingParams(), None, GenerationFailed, None),
        ("DIE", SamplingParams(), None, EngineDead, None),
        ("BOOM", SamplingParams(), None, RadixrtError, "internal_error"),
    ],
)
def test_exceptions_are_those_of_the_engine(
    client: Client,
    backend: FakeBackend,
    prompt: str,
    params: SamplingParams,
    constraint: Constraint | None,
    kind: type[RadixrtError],
    code: str | None,
) -> None:
    async def aread() -> None:
        async for _ in client.astream(prompt, params, constraint=constraint):
            pass

    for call in (
        lambda: client.generate(prompt, params, constraint=constraint),
        lambda: list(client.stream(prompt, params, constraint=constraint)),
        lambda: asyncio.run(client.agenerate(prompt, params, constraint=constraint)),
        lambda: asyncio.run(aread()),
    ):
        with pytest.raises(RadixrtError) as caught:
            call()
        assert type(caught.value) is kind and caught.value.code == code and caught.value.message
    assert backend.wait_active(0)


def test_leaving_a_stream_cancels_the_request(client: Client, backend: FakeBackend) -> None:
    stream = client.stream("SLOW")
    next(stream)
    assert backend.wait_active(1)
    stream.close()  # type: ignore[attr-defined]
    assert backend.wait_active(0)

    async def leave() -> None:
        deltas = client.astream("SLOW")
        await anext(deltas)
        await deltas.aclose()  # type: ignore[attr-defined]
        assert await asyncio.to_thread(backend.wait_active, 0, 2.0)
        task = asyncio.create_task(client.agenerate("WAIT"))
        assert await asyncio.to_thread(backend.wait_active, 1)
        task.cancel()
        assert await asyncio.to_thread(backend.wait_active, 0, 2.0)
        await client.aclose()

    asyncio.run(leave())
    assert backend.aborted == 3


def test_a_timeout_cancels_the_request(client: Client, backend: FakeBackend) -> None:
    for call in (
        lambda: client.generate("WAIT", timeout=0.05),
        lambda: list(client.stream("SLOW", timeout=0.05)),
        lambda: asyncio.run(client.agenerate("WAIT", timeout=0.05)),
    ):
        with pytest.raises(Aborted):
            call()
    assert backend.wait_active(0) and backend.aborted == 3


def test_what_is_no_radixrt_server() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with Client(f"http://127.0.0.1:{port}") as client:
        with pytest.raises(EngineDead, match=f"127.0.0.1:{port}"):
            client.generate("x")
        with pytest.raises(EngineDead):
            asyncio.run(client.agenerate("x"))


def test_the_key() -> None:
    backend = FakeBackend()
    with serving(backend, backend, keys=keys_of(["K"])) as served:
        with Client(f"{served.url}/v1/", api_key="K") as client:
            assert client.generate("x").text == REPLY
        with Client(served.url) as client, pytest.raises(Unauthorized):
            client.generate("x")
        backend.alive = False
        with Client(served.url, api_key="K") as client, pytest.raises(EngineDead):
            client.generate("x")


def test_bad_values_do_not_leave_the_machine(client: Client, backend: FakeBackend) -> None:
    with pytest.raises(InvalidRequest):
        client.generate([])
    with pytest.raises(InvalidRequest):
        client.stream([{"role": "user", "content": 3}])
    assert backend.seen == []


def test_a_server_that_loads() -> None:
    with serving(lambda: _never(), FakeBackend()) as served, Client(served.url) as client:
        with pytest.raises(Overloaded) as caught:
            client.generate("x")
        assert caught.value.code == "loading"


class _never:
    """An engine that never finishes loading."""

    def __enter__(self) -> FakeBackend:
        import threading

        threading.Event().wait()
        raise AssertionError

    def __exit__(self, *_: object) -> None:
        return None
