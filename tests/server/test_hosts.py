"""Names and origins: what web pages can make a browser send to a loopback address, and what is answered."""

from __future__ import annotations

import pytest

from radixrt.errors import StartupError
from radixrt.messages import TextPrompt
from radixrt.server.hosts import origins_of
from radixrt.server.keys import keys_of

from .conftest import Served, serving
from .events import error_of
from .fake_backend import FakeBackend
from .test_guard import bearer, raw


def test_host_names_on_a_loopback_address() -> None:
    backend = FakeBackend()
    with serving(backend, backend, allowed_hosts=["Box.Example"]) as served:
        port = served.address()[1]
        for good in (
            "localhost",
            f"localhost:{port}",
            "127.0.0.1",
            f"127.8.9.1:{port}",
            f"[::1]:{port}",
            "box.example:80",
        ):
            assert served.http.get("/v1/models", headers={"host": good}).status_code == 200, good
        for bad in (
            "evil.test",
            "127.0.0.1.evil.test",
            "localhost.evil.test",
            "10.0.0.1",
            "[::2]",
            "",
            "a@localhost:x",
        ):
            response = served.http.get("/v1/models", headers={"host": bad})
            assert response.status_code == 403, bad
            assert response.json()["error"]["code"] == "host_not_allowed"
        twice = raw(served, b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nHost: evil.test\r\n\r\n")
        assert twice.startswith(b"HTTP/1.1 400") and b'"code":"invalid_host"' in twice


def test_http_1_1_asks_for_one_host_header(served: Served) -> None:
    """RFC 9112, section 3.2; also where any name will do."""
    for head, answer in (
        (b"GET /v1/models HTTP/1.1\r\n", b"HTTP/1.1 400"),
        (b"POST /v1/completions HTTP/1.1\r\nContent-Length: 2\r\n", b"HTTP/1.1 400"),
        (b"GET /health HTTP/1.1\r\nHost: a\r\nHost: a\r\n", b"HTTP/1.1 400"),
        (b"GET /v1/models HTTP/1.1\r\nHost:\r\n", b"HTTP/1.1 200"),
        (b"GET /v1/models HTTP/1.1\r\nhost: any.example\r\n", b"HTTP/1.1 200"),
        (b"GET /v1/models HTTP/1.0\r\n", b"HTTP/1.1 200"),
    ):
        got = raw(served, head + b"\r\n{}")
        assert got.startswith(answer) and (answer.endswith(b"200") or b"invalid_host" in got), (head, got)


def test_pages_of_other_sites_start_nothing_on_a_loopback_address() -> None:
    """A form or a no-cors fetch of any page reaches 127.0.0.1, and needs no leave to be answered unread."""
    backend = FakeBackend()
    ours = ("http://localhost:3000", "http://127.0.0.1:1", "http://[::1]:5", "https://box.example", "http://app.test")
    others = (
        "http://evil.test",
        "null",
        "",
        "file://",
        "app://localhost",
        "http://localhost.evil.test",
        "http://a@[::1]",
    )
    with serving(backend, backend, allowed_hosts=["box.example"], cors_origins=["http://app.test"]) as served:
        for origin in ours:
            assert served.post("/v1/completions", {"prompt": "a"}, headers={"origin": origin}).status_code == 200, (
                origin
            )
        for origin in others:
            for path in ("/v1/completions", "/flush_cache", "/v1/chat/completions"):
                headers = {"origin": origin, "content-type": "text/plain"}
                refused = served.http.post(path, content=b'{"prompt": "a"}', headers=headers)
                assert error_of(refused, 403)["code"] == "origin_not_allowed", origin
            assert served.http.get("/v1/models", headers={"origin": origin}).status_code == 200
        assert served.chat().status_code == 200, "programs that are no browsers send none"
    assert [seen[0] for seen in backend.seen[:-1]] == [TextPrompt(text="a")] * len(ours)
    keyed = keys_of(["client-key-1234"])
    with serving(backend, backend, allowed_hosts=[], keys=keyed) as served:
        headers = {**bearer("client-key-1234"), "origin": "https://behind.proxy"}
        assert served.post("/v1/completions", {"prompt": "a"}, headers=headers).status_code == 200, "it has the key"


@pytest.mark.parametrize("good", ["*", "http://app.test", "https://app.test:8443", "http://[::1]:3000"])
def test_origins_are_as_browsers_send_them(good: str) -> None:
    assert origins_of([good]) == [good]
    assert origins_of(["HTTP://App.test/"]) == ["http://app.test"]


@pytest.mark.parametrize(
    "bad", ["app.test", "http://", "http://app.test/page", "http://u@app.test", "//app.test", "", "http://a:x"]
)
def test_origins_that_no_browser_sends_are_refused(bad: str) -> None:
    with pytest.raises(StartupError, match="no origin"):
        origins_of([bad])
