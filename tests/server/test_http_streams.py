"""Streams that go wrong, and clients that leave."""

from __future__ import annotations

import json
import socket
from typing import Any

import httpx
import pytest

from radixrt.server import http_protocol
from radixrt.server.state import Limits
from tests.waiting import HANG_S

from .conftest import Served, serving
from .events import error_of, parts_of, strict
from .fake_backend import CONTEXT, FakeBackend

ROUTES = {
    "/v1/chat/completions": lambda text: {"messages": [{"role": "user", "content": text}]},
    "/v1/completions": lambda text: {"prompt": text, "max_tokens": 100},
    "/generate": lambda text: {"prompt": text, "sampling": {"max_tokens": 100}},
}


def send(served: Served, path: str, body: dict[str, Any]) -> socket.socket:
    """A request on a bare socket, which the test may drop as it likes."""
    connection = socket.create_connection(served.address(), timeout=HANG_S)
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(data)}\r\n\r\n"
    connection.sendall(head.encode() + data)
    return connection


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("word", ["WAIT", "SLOW"])
def test_a_client_that_leaves_frees_its_request(served: Served, path: str, stream: bool, word: str) -> None:
    connections = [send(served, path, {**ROUTES[path](word), "stream": stream}) for _ in range(5)]
    assert served.backend.wait_active(5)
    if word == "SLOW" and stream:
        assert connections[0].recv(10) == b"HTTP/1.1 2"
    for connection in connections:
        connection.close()
    assert served.backend.wait_active(0)
    assert served.backend.aborted == 5
    assert served.chat().status_code == 200


def rest(connection: socket.socket) -> bytes:
    """What comes until the server closes."""
    return b"".join(iter(lambda: connection.recv(65536), b""))


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/messages", "/api/generate"])
@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_closes_its_sending_side_is_told_what_that_means(served: Served, path: str, stream: bool) -> None:
    """It cannot be told from one that leaves: its generation ends, but not in silence."""
    for word in ("WAIT", "SLOW") if stream else ("WAIT",):
        body = {"model": "fake", "prompt": word, "max_tokens": 100, "messages": [{"role": "user", "content": word}]}
        for name in {"/v1/completions": ("messages",), "/v1/messages": ("prompt",)}.get(
            path, ("messages", "max_tokens")
        ):
            del body[name]
        with send(served, path, {**body, "stream": stream}) as connection:
            assert served.backend.wait_active(1)
            got = connection.recv(10) if word == "SLOW" else b""
            connection.shutdown(socket.SHUT_WR)
            got += rest(connection)
        assert b"closed its sending side" in got and got.count(b"HTTP/1.1 ") == 1 and b"[DONE]" not in got
        assert got.startswith(b"HTTP/1.1 200" if word == "SLOW" else b"HTTP/1.1 499")
        assert served.backend.wait_active(0)


def test_what_is_not_generated_is_answered_behind_a_closed_sending_side(served: Served) -> None:
    cut = b'POST /tokenize HTTP/1.1\r\nHost: a\r\nContent-Length: 99\r\n\r\n{"prompt": "abc"'
    for head in (b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n", b"GET /v1/models HTTP/1.1\r\nHost: a\r\n\r\n" * 3):
        with socket.create_connection(served.address(), timeout=HANG_S) as connection:
            connection.sendall(head)
            connection.shutdown(socket.SHUT_WR)
            got = rest(connection)
        assert got.count(b"HTTP/1.1 200") == head.count(b"GET")
    with socket.create_connection(served.address(), timeout=HANG_S) as connection:
        connection.sendall(cut)
        connection.shutdown(socket.SHUT_WR)
        rest(connection)  # a request that is not whole has no answer, and holds nothing up
    assert served.chat().status_code == 200


def test_leaving_cancels_every_prompt_of_a_request(served: Served) -> None:
    for stream in (False, True):
        connection = send(served, "/v1/completions", {"prompt": ["WAIT"] * 4, "n": 2, "stream": stream})
        assert served.backend.wait_active(4)
        connection.close()
        assert served.backend.wait_active(0)


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize(
    ("word", "kind", "words"),
    [
        ("DIE", "EngineDead", "the scheduler process ended"),
        ("DEADEND", "GenerationFailed", "the constraint met a dead end"),
        ("MIDBOOM", "RadixrtError", "unexpected error"),
    ],
)
def test_an_error_in_the_middle_is_the_last_event(served: Served, path: str, word: str, kind: str, words: str) -> None:
    connection = send(served, path, {**ROUTES[path](word), "stream": True})
    received = b"".join(iter(lambda: connection.recv(65536), b""))  # ends only because the server closes
    connection.close()
    assert b"200 OK" in received.split(b"\r\n")[0] and received.endswith(b"0\r\n\r\n")
    assert b"[DONE]" not in received and b"secret internals" not in received
    parts = parts_of(served.post(path, {**ROUTES[path](word), "stream": True}))
    assert len(parts) > 2
    error = strict(parts[-1])["error"]
    assert error["kind"] == kind and words in error["message"]
    assert all("error" not in strict(part) for part in parts[:-1])
    assert served.backend.wait_active(0)


def test_a_good_stream_ends_with_its_socket(served: Served) -> None:
    connection = send(served, "/v1/chat/completions", {**ROUTES["/v1/chat/completions"]("Hi"), "stream": True})
    received = b"".join(iter(lambda: connection.recv(65536), b""))
    connection.close()
    assert received.rstrip().endswith(b"data: [DONE]\n\n\r\n0")


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize("stream", [False, True])
def test_what_is_wrong_from_the_start_is_a_plain_error(served: Served, path: str, stream: bool) -> None:
    make = ROUTES[path]
    error = error_of(served.post(path, {**make("x" * 1000), "stream": stream}), 400)
    assert error["code"] == "context_length_exceeded" and f"limit is {CONTEXT}" in error["message"]
    error = error_of(served.post(path, {**make("BOOM"), "stream": stream}), 500)
    assert error["type"] == "server_error" and "secret" not in json.dumps(error)


def test_slow_readers_get_everything(served: Served) -> None:
    served.backend.reply = "x" * 400
    with served.http.stream(
        "POST", "/v1/completions", json={"prompt": "a", "max_tokens": 400, "stream": True}
    ) as answer:
        lines = [line for line in answer.iter_lines() if line]
    assert lines[-1] == "data: [DONE]"
    assert "".join(json.loads(line[6:])["choices"][0]["text"] for line in lines[:-1]) == "x" * 400


def test_a_line_separator_in_a_text_does_not_break_an_event(served: Served) -> None:
    served.backend.reply = "a\u2028b\u0085c\r\nd"
    answer: httpx.Response = served.chat(stream=True)
    text = "".join(
        choice["delta"].get("content", "") for part in parts_of(answer)[:-1] for choice in strict(part)["choices"]
    )
    assert text == served.backend.reply


@pytest.mark.parametrize("word", ["WAIT", "SLOW"])
def test_a_silent_stream_is_kept_alive_and_still_watched(word: str) -> None:
    backend = FakeBackend()
    with serving(backend, backend, limits=Limits(sse_keep_alive_s=0.05)) as served:
        connection = send(served, "/v1/chat/completions", {**ROUTES["/v1/chat/completions"](word), "stream": True})
        received = b""
        while received.count(b": keep-alive\n\n") < 3:
            received += connection.recv(65536)
        assert received.startswith(b"HTTP/1.1 200")
        assert (b"data: " in received) == (word == "SLOW")
        connection.close()
        assert backend.wait_active(0)
        assert served.chat().status_code == 200


def test_an_error_after_the_headers_of_a_silent_stream_is_an_event() -> None:
    backend = FakeBackend()
    with serving(backend, backend, limits=Limits(sse_keep_alive_s=0.05)) as served:
        connection = send(served, "/generate", {**ROUTES["/generate"]("WAIT"), "stream": True})
        received = b""
        while b": keep-alive\n\n" not in received:
            received += connection.recv(65536)
        backend.alive = False
        received += b"".join(iter(lambda: connection.recv(65536), b""))
        connection.close()
        events = [line for line in received.split(b"\n") if line.startswith(b"data: ")]
        assert len(events) == 1 and strict(events[0].removeprefix(b"data: ").decode())["error"]["kind"] == "EngineDead"


def test_a_client_that_stops_reading_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_protocol, "WRITE_TIMEOUT_S", 0.3)
    backend = FakeBackend()
    backend.reply = "x" * 500
    with serving(backend, backend) as served:
        body = {**ROUTES["/v1/chat/completions"]("Hi"), "stream": True, "n": 64, "logprobs": True, "top_logprobs": 20}
        connection = send(served, "/v1/chat/completions", body)
        assert connection.recv(12) == b"HTTP/1.1 200"
        assert backend.wait_active(0), "its request is cancelled although the connection is open"
        assert backend.aborted == 1
        assert served.chat().status_code == 200
        connection.close()
