"""Odd requests of the kinds that public reports tell of: numbers, unicode, nulls, headers, methods, paths."""

from __future__ import annotations

import json
import socket
from typing import Any

import httpx
import pytest

from tests.waiting import HANG_S

from .conftest import Served
from .events import error_of, events
from .fake_backend import REPLY

CHAT = "/v1/chat/completions"
HI = '"messages": [{"role": "user", "content": "Hi"}]'


def post(served: Served, text: str | bytes, path: str = CHAT, **headers: str) -> httpx.Response:
    return served.http.post(path, content=text if isinstance(text, bytes) else text.encode(), headers=headers)


def raw(served: Served, data: bytes, *, ended: bool = False) -> bytes:
    """All that comes back; `ended`: nothing follows what is sent, which the server may take for a client that left."""
    with socket.create_connection(served.address(), timeout=HANG_S) as connection:
        connection.sendall(data)
        if ended:
            connection.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: connection.recv(65536), b""))


@pytest.mark.parametrize(
    ("field", "param"),
    [
        ('"seed": 18446744073709551616', "seed"), ('"n": 1e2', "n"), ('"n": 1.0', None), ('"max_tokens": 5.0', None),
        ('"max_tokens": -1', "max_tokens"), ('"max_tokens": 99999999999999999999999', "max_tokens"),
        ('"temperature": 1e400', None), ('"temperature": -0.0', None), ('"top_p": 0.0', "top_p"),
        ('"temperature": true', "temperature"), ('"stop": [1]', "stop[0]"), ('"stop": {}', "stop"),
        ('"logit_bias": {"-1": 1}', "logit_bias"), ('"logit_bias": {"99999999999999999999": 1}', "logit_bias"),
        ('"logit_bias": []', "logit_bias"), ('"presence_penalty": 2.1', "presence_penalty"), ('"user": 5', "user"),
        ('"stream": 1', "stream"), ('"tools": {}', "tools"), ('"tool_choice": "any"', "tool_choice"),
        ('"metadata": "x"', "metadata"), ('"top_logprobs": -1, "logprobs": true', "top_logprobs"),
        ('"stop": ["\\u0000"]', ""), ('"stop": ["🍎"]', ""), ('"n": 2, "best_of": 2', "best_of"),
    ],
)  # fmt: skip
def test_odd_values(served: Served, field: str, param: str | None) -> None:
    """An answer, or a 400 that names the field; `None`: either, `""`: an answer."""
    response = post(served, f"{{{HI}, {field}}}")
    assert response.status_code in (200, 400), response.text
    if param == "":
        assert response.status_code == 200, response.text
    elif param is not None:
        assert error_of(response, 400)["param"].startswith(param)
    assert served.chat().status_code == 200


@pytest.mark.parametrize(
    "content", ["\u0000", "\ufeffHi", "\u202eabc", "e\u0301", "🧑‍🚀", "\u2028\u2029",
                "a" * 100 + "\n" * 50, "\\u0041", '"}]'],
)  # fmt: skip
def test_any_text_reaches_the_prompt_as_it_is(served: Served, content: str) -> None:
    assert served.chat(content).status_code == 200
    prompt: Any = served.backend.seen[-1][0]
    assert prompt.messages[-1].content == content


@pytest.mark.parametrize("body", [
    b'\xef\xbb\xbf{"prompt": "a"}', '{"prompt": "a"}'.encode("utf-16"), b'{"prompt": "\xed\xa0\x80"}', b"'a'",
    b'{"prompt": "a",}', b'{"prompt": "a"} {"prompt": "b"}', b'{"prompt": Infinity}', b'{prompt: "a"}', b'null', b'""',
])  # fmt: skip
def test_what_is_not_json_is_a_400(served: Served, body: bytes) -> None:
    assert error_of(post(served, body, "/v1/completions"), 400)["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    "kind", ["text/plain", "application/x-www-form-urlencoded", "application/json; charset=utf-8", ""]
)
def test_the_body_counts_and_not_what_it_is_called(served: Served, kind: str) -> None:
    assert post(served, f"{{{HI}}}", **{"content-type": kind}).status_code == 200


@pytest.mark.parametrize("n", [1, 2, 3])
@pytest.mark.parametrize("stop", ["Äpf", "🍎", "no more.", "ölf Ä"])
def test_stops_and_samples_say_the_same_in_both_modes(served: Served, n: int, stop: str) -> None:
    body: dict[str, Any] = {"n": n, "stop": stop, "logprobs": True, "top_logprobs": 2}
    served.chat(**body)  # what is cached counts in the usage
    whole = served.chat(**body).json()
    chunks = events(served.chat(**body, stream=True, stream_options={"include_usage": True}))
    assert chunks[-1]["usage"] == whole["usage"] and chunks[-1]["choices"] == []
    for choice in whole["choices"]:
        mine = [c for chunk in chunks for c in chunk["choices"] if c["index"] == choice["index"]]
        assert "".join(c["delta"].get("content") or "" for c in mine) == choice["message"]["content"]
        assert [c["finish_reason"] for c in mine if c["finish_reason"]] == [choice["finish_reason"]]
        tokens = [token for c in mine if c.get("logprobs") for token in c["logprobs"]["content"]]
        assert tokens == choice["logprobs"]["content"]
        assert choice["message"]["content"] == REPLY.partition(stop)[0] and choice["stop_reason"] == stop
    assert sorted(c["index"] for c in whole["choices"]) == list(range(n))


@pytest.mark.parametrize("method", ["PUT", "PATCH", "DELETE", "TRACE", "OPTIONS", "GET", "HEAD", "QUERY"])
def test_other_methods_are_405_and_say_which_there_are(served: Served, method: str) -> None:
    response = served.http.request(method, CHAT)
    assert response.status_code == 405 and response.headers["allow"] == "POST"
    if method != "HEAD":
        assert response.json()["error"]["code"] == "method_not_allowed"


@pytest.mark.parametrize("path", [
    "/v1/chat/completions/", "//v1/chat/completions", "/v1/../v1/chat/completions/x", "/V1/chat/completions",
    "/v1/models/",
    "/v1/chat%2fcompletions", "/%00", "/..%2f..%2fetc/passwd", "/page/../app.py", "/page.js/x", "/v1/completions;x=1",
])  # fmt: skip
def test_paths_are_taken_literally(served: Served, path: str) -> None:
    host, port = served.address()
    answer = raw(served, f"GET {path} HTTP/1.1\r\nHost: {host}:{port}\r\nConnection: close\r\n\r\n".encode())
    assert answer.split(b" ", 2)[1] in (b"400", b"404", b"405"), answer[:200]
    assert b"Traceback" not in answer and b"/work" not in answer and b"root:" not in answer


@pytest.mark.parametrize("head", [
    b"X-A: a\r\nX-B: \x00", b"Content-Length: -1", b"Content-Length: 5\r\nContent-Length: 6", b"Content-Length: abc",
    b"Transfer-Encoding: chunked\r\nContent-Length: 3", b"Transfer-Encoding: gzip", b"Expect: 200-ok", b": x",
    b"A B: c",
])  # fmt: skip
def test_odd_heads_are_answered_or_closed(served: Served, head: bytes) -> None:
    answer = raw(served, b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n" + head + b"\r\n\r\n{}", ended=True)
    assert answer == b"" or answer.startswith(b"HTTP/1.1 4"), answer[:200]
    assert served.chat().status_code == 200


def test_nothing_a_client_sends_comes_back_in_headers(served: Served) -> None:
    name = "a\r\nX-Injected: yes"
    for response in (
        served.http.get("/v1/models/" + "%0d%0aX-Injected:%20yes"), served.complete("a", model=name),
        served.http.get("/health", headers={"x-request-id": "mine"}), served.http.get("/cache", params={name: "x"}),
    ):  # fmt: skip
        assert "x-injected" not in response.headers and response.headers["x-request-id"].startswith("req_")


def test_metrics_have_no_labels_that_clients_choose(served: Served) -> None:
    for path in ('/a"b\\c', "/v1/models/evil-model-name", "/nothing-here-at-all"):
        served.http.get(path)
    served.http.request("EVIL", "/health")
    page = served.http.get("/metrics").text
    assert "evil" not in page.lower() and "nothing-here" not in page


def test_expect_and_chunks_are_understood(served: Served) -> None:
    def pieces() -> Any:
        for byte in f"{{{HI}}}".encode():
            yield bytes([byte])

    assert served.http.post(CHAT, content=pieces()).status_code == 200
    body = f"{{{HI}}}".encode()
    head = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nConnection: close\r\n"
    answer = raw(served, head.encode() + f"Content-Length: {len(body)}\r\n\r\n".encode() + body)
    assert b"HTTP/1.1 200" in answer


def test_pipelined_requests_are_answered_in_order(served: Served) -> None:
    one = b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n"
    two = b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    answer = raw(served, one + two)
    assert answer.count(b"HTTP/1.1 200") == 2 and answer.index(b'"object":"list"') < answer.index(b'"status"')


@pytest.mark.parametrize("messages", [
    [{"role": "user", "content": None}], [{"role": "user"}], [{"role": "tool", "content": "x"}], [{"content": "x"}],
    [None], [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]}],
    [{"role": "user", "content": [1]}], [{"role": "", "content": "x"}],
    [{"role": "user", "content": [{"type": "text"}]}],
    [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://x"}}]}],
    [{"role": "user", "content": [{"type": "text", "text": None}]}],
])  # fmt: skip
def test_odd_messages_are_answered_or_named(served: Served, messages: Any) -> None:
    response = served.post(CHAT, {"messages": messages})
    if response.status_code != 200:
        assert error_of(response, 400)["param"].startswith("messages")


def test_a_null_in_every_place_is_an_absence_or_a_400(served: Served) -> None:
    document = served.http.get("/openapi.json").json()["components"]["schemas"]
    for name, path in (("CompletionRequest", "/v1/completions"), ("ResponsesRequest", "/v1/responses")):
        good = {"prompt": "Hi"} if path == "/v1/completions" else {"input": "Hi"}
        for field in document[name]["properties"]:
            response = post(served, json.dumps({**good, field: None}), path)
            # A null schema is a schema, if none that is allowed; elsewhere the value is absent.
            wanted = (400,) if field in good else (200, 400) if "schema" in field or "tag" in field else (200,)
            assert response.status_code in wanted, (field, response.text)
