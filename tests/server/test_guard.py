"""Who may do what: keys, rates, budgets, hosts, heads of requests, sockets, and that nothing secret is said."""

from __future__ import annotations

import json
import logging
import re
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from radixrt.errors import RateLimited, StartupError
from radixrt.process import setup_logging
from radixrt.server import http_protocol
from radixrt.server.allowance import Allowance
from radixrt.server.app import ROUTES, create_app
from radixrt.server.keys import ApiKey, Keys, keys_of
from radixrt.server.listening import Tls, bind_unix
from radixrt.server.serve import serve
from tests.waiting import HANG_S

from .conftest import Served, serving
from .events import error_of
from .fake_backend import FakeBackend

CALLERS = {"none": None, "wrong": "wrong-key-1234", "client": "client-key-1234", "admin": "admin-key-1234"}


OF_THE_FRAMEWORK = (("GET", "/openapi.json"),)
"""Routes that FastAPI adds."""


def bearer(secret: str | None) -> dict[str, str]:
    return {} if secret is None else {"authorization": f"Bearer {secret}"}


def table() -> str:
    """Who gets what at each route, by asking: `yes` for any answer but a refusal of the key."""
    backend = FakeBackend()
    lines = ["| route | no key | wrong key | key | admin key |", "|---|---|---|---|---|"]
    with serving(backend, backend, keys=keys_of(["client-key-1234"], admin="admin-key-1234")) as served:
        for method, path in (*((route.method, route.path) for route in ROUTES), *OF_THE_FRAMEWORK, ("GET", "/nothing")):
            answers = []
            for secret in CALLERS.values():
                status = served.http.request(method, path, headers=bearer(secret)).status_code
                answers.append(str(status) if status in (401, 403) or path == "/nothing" else "yes")
            name = "any other path, whatever the method" if path == "/nothing" else f"{method} {path}"
            lines.append(f"| {name} | {' | '.join(answers)} |")
    return "\n".join(lines)


METHODS = ("GET", "HEAD", "OPTIONS", "POST", "PUT", "PATCH", "DELETE", "TRACE")


def test_no_method_and_no_upgrade_opens_what_a_key_is_needed_for() -> None:
    """Every path of the application with every method, asked by callers who may not."""
    backend = FakeBackend()
    access = {route.path: route.access for route in ROUTES}
    upgrade = {"connection": "Upgrade", "upgrade": "websocket", "sec-websocket-version": "13"}
    with serving(backend, backend, keys=keys_of(["client-key-1234"], admin="admin-key-1234")) as served:
        paths = {getattr(route, "path", "/nothing") for route in served.app.routes} | {"/nothing", "/docs", "/redoc"}
        assert paths > set(access)
        for path in paths:
            for method in METHODS:
                for caller, more in (("none", {}), ("wrong", {}), ("none", upgrade)):
                    status = served.http.request(method, path, headers=bearer(CALLERS[caller]) | more).status_code
                    if access.get(path) == "open":
                        assert status == (200 if method in ("GET", "HEAD") else 405), (method, path)
                    else:
                        assert status == 401, (method, path, caller)
                if access.get(path) == "admin":
                    status = served.http.request(method, path, headers=bearer(CALLERS["client"])).status_code
                    assert status == 403, (method, path)
    assert backend.active == 0 and backend.prompt_tokens == 0, "nothing of it has reached the engine"


def test_the_table_in_the_readme_is_what_the_server_does() -> None:
    readme = Path(__file__).parents[2] / "radixrt" / "server" / "README.md"
    made = table()
    assert made in readme.read_text(), f"radixrt/server/README.md should hold this table:\n{made}"


def test_no_route_is_open_by_accident() -> None:
    assert {route.path for route in ROUTES if route.access == "open"} <= {"/health", "/", "/page.css", "/page.js"}
    declared = {route.path for route in ROUTES}
    backend = FakeBackend()
    extra = {getattr(route, "path", "") for route in create_app(backend).routes} - declared
    with serving(backend, backend, keys=keys_of(["client-key-1234"])) as served:
        for path in (
            *extra,
            "/nothing",
            "/health/",
            "//health/metrics",
            "/health/../metrics",
            "/%2e/health",
            "/HEALTH",
        ):
            assert served.http.get(path).status_code == 401, path


def test_a_key_is_taken_from_either_header() -> None:
    backend = FakeBackend()
    with serving(backend, backend, keys=keys_of(["client-key-1234", "second-key-1234"])) as served:
        assert served.http.get("/v1/models", headers={"x-api-key": "second-key-1234"}).status_code == 200
        assert served.http.get("/v1/models", headers={"Authorization": "bearer client-key-1234"}).status_code == 200
        assert served.http.get("/v1/models", headers={"Authorization": "Basic client-key-1234"}).status_code == 401
        # Several equal keys: none of them operates the server.
        assert error_of(served.http.post("/flush_cache", headers=bearer("client-key-1234")), 403)


def test_key_files(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    entry = {"name": "ana", "key": "secret-of-ana", "namespace": "team", "requests_per_minute": 2}
    file.write_text(json.dumps([entry, {"name": "root", "key": "secret-of-root", "admin": True}]))
    file.chmod(0o600)
    keys = keys_of(["plain-secret"], file=file)
    ana, root, plain = keys
    assert (ana.namespace, ana.requests_per_minute, ana.admin) == ("team", 2, False)
    assert root.admin and keys.may_operate(root) and not keys.may_operate(ana)
    assert plain.namespace == "key-1", "beside others a plain key has a namespace of its own"
    assert next(iter(keys_of(["plain-secret"]))).namespace is None
    assert keys.find(b"secret-of-ana") is ana and keys.find(b"secret-of-an") is None
    assert "secret-of-ana" not in repr(list(keys))
    file.chmod(0o644)
    with pytest.raises(StartupError, match="chmod 600"):
        keys_of(file=file)
    file.chmod(0o600)
    for wrong, words in (
        ([{**entry, "rate": 1}], "rate"), ([{**entry, "key": "x"}], "length"), ([{**entry, "name": "a b"}], "name"),
        ([entry, entry], "same name"), ({}, "array"),
    ):  # fmt: skip
        file.write_text(json.dumps(wrong))
        with pytest.raises(StartupError, match=words):
            keys_of(file=file)
    with pytest.raises(StartupError, match="cannot be read"):
        keys_of(file=tmp_path / "absent.json")
    with pytest.raises(StartupError, match="visible ASCII"):
        keys_of([""])


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def key(**limits: int) -> ApiKey:
    return ApiKey("k", b"", None, **limits)


def test_requests_a_minute() -> None:
    clock = Clock()
    allowance = Allowance(key(requests_per_minute=3), clock)
    for _ in range(3):
        allowance.admit()
    with pytest.raises(RateLimited) as caught:
        allowance.admit()
    assert caught.value.retry_after_s == pytest.approx(20)
    clock.now += 19.9
    with pytest.raises(RateLimited):
        allowance.admit()
    clock.now += 0.2
    allowance.admit()
    clock.now -= 500  # a clock that jumps back gives nothing and takes nothing
    with pytest.raises(RateLimited):
        allowance.admit()
    clock.now += 3600
    for _ in range(3):
        allowance.admit()
    with pytest.raises(RateLimited):
        allowance.admit()


def test_tokens_a_minute_and_in_all() -> None:
    clock = Clock()
    allowance = Allowance(key(tokens_per_minute=600, token_budget=1000), clock)
    allowance.admit()
    allowance.charge(900)  # known only afterwards: 300 of debt
    with pytest.raises(RateLimited) as caught:
        allowance.admit()
    assert caught.value.retry_after_s == pytest.approx(30.1)
    clock.now += 31
    allowance.admit()
    allowance.charge(100)
    clock.now += 3600
    with pytest.raises(RateLimited) as caught:
        allowance.admit()
    assert caught.value.code == "insufficient_quota" and caught.value.retry_after_s is None


def test_a_key_over_its_rate_costs_nobody_else_anything() -> None:
    backend = FakeBackend()
    slow = ApiKey("slow", keys_digest("slow-key-1234"), "slow", requests_per_minute=1, tokens_per_minute=100_000)
    free = ApiKey("free", keys_digest("free-key-1234"), "free")
    with serving(backend, backend, keys=Keys([slow, free])) as served:
        headers = bearer("slow-key-1234")
        body = {"messages": [{"role": "user", "content": "Hi"}]}
        first = served.post("/v1/chat/completions", body, headers=headers)
        assert first.status_code == 200
        assert first.headers["x-ratelimit-limit-requests"] == "1"
        assert first.headers["x-ratelimit-remaining-requests"] == "0"
        second = served.post("/v1/chat/completions", body, headers=headers)
        error = error_of(second, 429)
        assert (error["type"], error["code"]) == ("rate_limit_error", "rate_limit_exceeded")
        assert 1 <= int(second.headers["retry-after"]) <= 60
        usage = first.json()["usage"]
        left = int(second.headers.get("x-ratelimit-remaining-tokens", 100_000 - usage["total_tokens"]))
        assert left <= 100_000 - usage["total_tokens"] + 100
        assert served.post("/v1/chat/completions", body, headers=bearer("free-key-1234")).status_code == 200
        assert served.http.get("/v1/models", headers=headers).status_code == 200, "looking costs nothing"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("route", ["/v1/chat/completions", "/v1/completions", "/generate"])
def test_every_way_to_generate_is_charged(route: str, stream: bool) -> None:
    backend = FakeBackend()
    poor = ApiKey("poor", keys_digest("poor-key-1234"), "poor", token_budget=1)
    body = {
        "/v1/chat/completions": {"messages": [{"role": "user", "content": "Hi"}]},
        "/v1/completions": {"prompt": "Hi"},
        "/generate": {"prompt": {"type": "TextPrompt", "text": "Hi"}, "sampling": {"max_tokens": 4}},
    }[route]
    with serving(backend, backend, keys=Keys([poor])) as served:
        first = served.post(route, {**body, "stream": stream}, headers=bearer("poor-key-1234"))
        assert first.status_code == 200, first.text
        assert error_of(served.post(route, body, headers=bearer("poor-key-1234")), 429)["code"] == "insufficient_quota"


def keys_digest(secret: str) -> bytes:
    return next(iter(keys_of([secret]))).digest


def raw(served: Served, data: bytes) -> bytes:
    """What the server says to some bytes, until it closes or the answer's head is there."""
    with socket.create_connection(served.address(), timeout=HANG_S) as connection:
        connection.sendall(data)
        got = b""
        while b"\r\n\r\n" not in got:
            piece = connection.recv(4096)
            if not piece:
                break
            got += piece
    return got


def guarded(monkeypatch: pytest.MonkeyPatch, head_bytes: int, timeout_s: float) -> None:
    monkeypatch.setattr(http_protocol, "MAX_HEAD_BYTES", head_bytes)
    monkeypatch.setattr(http_protocol, "HEAD_TIMEOUT_S", timeout_s)


@contextmanager
def really_serving(**options: object) -> Iterator[str]:
    """`serve` itself in a thread; ended by its dead engine."""
    backend, bound, url = FakeBackend(), threading.Event(), list[str]()

    def on_bound(at: str) -> None:
        url.append(at)
        bound.set()

    def run() -> None:
        with pytest.raises(Exception, match="died"):
            serve(backend, port=0, dead_grace_s=0, on_bound=on_bound, **options)  # type: ignore[arg-type]

    thread = threading.Thread(target=run)
    thread.start()
    try:
        assert bound.wait(HANG_S)
        yield url[0]
    finally:
        backend.alive = False
        thread.join()


def connect(url: str) -> socket.socket:
    return socket.create_connection(("127.0.0.1", int(url.rsplit(":", 1)[1])), timeout=HANG_S)


def test_heads_are_bounded_in_size_and_time(monkeypatch: pytest.MonkeyPatch) -> None:
    guarded(monkeypatch, 8192, 0.3)
    with really_serving() as url:
        with connect(url) as connection:
            connection.sendall(b"GET /health HTTP/1.1\r\nX: " + b"a" * 20_000)
            assert b"400" in connection.recv(4096).split(b"\r\n")[0]
        for beginning in (b"", b"GET /health HTTP/1.1\r\nHost: local"):
            with connect(url) as connection:
                connection.sendall(beginning)
                answer = connection.recv(4096)  # until the server gives up
                assert answer == b"" or b" 400 " in answer
        assert httpx.get(f"{url}/health").status_code == 200
        with httpx.Client(base_url=url) as client:  # a connection that waits between requests is not a slow head
            for _ in range(2):
                assert client.get("/health").status_code == 200


def test_what_is_no_http_is_refused_and_logged_with_its_sender(caplog: pytest.LogCaptureFixture) -> None:
    with really_serving() as url:
        for data, words in ((b"hello\r\n\r\n", "no HTTP request"), (b"\x16\x03\x01\x02\x00\x01", "TLS")):
            caplog.clear()
            with connect(url) as connection:
                connection.sendall(data)
                answer = b"".join(iter(lambda at=connection: at.recv(4096), b""))
                port = connection.getsockname()[1]
            assert answer.startswith(b"HTTP/1.1 400")
            error = error_of(httpx.Response(400, content=answer.split(b"\r\n\r\n", 1)[1]), 400)
            assert error["code"] == "invalid_http" and words in error["message"]
            said = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
            assert len(said) == 1 and said[0].startswith(f"refused 127.0.0.1:{port}: ") and words in said[0]


def test_what_follows_a_request_is_not_answered_in_its_answer(served: Served) -> None:
    for body, end in ((b'{"prompt": "Hi", "stream": true}', b"data: [DONE]"), (b'{"prompt": "Hi"}', b"}")):
        with socket.create_connection(served.address(), timeout=HANG_S) as connection:
            head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
            connection.sendall(head.encode() + body + b"\x00\x01 no request\r\n\r\n")
            got = b"".join(iter(lambda at=connection: at.recv(4096), b""))
        assert got.startswith(b"HTTP/1.1 200") and got.count(b"HTTP/1.1") == 1 and end in got


def test_a_unix_socket(tmp_path: Path) -> None:
    path = tmp_path / "radixrt.sock"
    abandoned = socket.socket(socket.AF_UNIX)
    abandoned.bind(str(path))
    abandoned.close()  # as after kill -9: the file is there, nobody listens
    with really_serving(uds=path) as url:
        assert url == f"unix:{path}"
        assert path.stat().st_mode & 0o777 == 0o600
        with httpx.Client(transport=httpx.HTTPTransport(uds=str(path)), base_url="http://radixrt") as client:
            assert client.get("/v1/models").status_code == 200
        with pytest.raises(StartupError, match="another server"):
            bind_unix(path)
    assert not path.exists()
    path.write_text("a file of somebody's")
    with pytest.raises(StartupError, match="cannot listen"):
        bind_unix(path)
    assert path.read_text() == "a file of somebody's"


def test_https(tmp_path: Path) -> None:
    certificate, private = tmp_path / "cert.pem", tmp_path / "key.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", private, "-out", certificate,
         "-days", "2", "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"],
        check=True, capture_output=True,
    )  # fmt: skip
    with really_serving(tls=Tls(certificate, private)) as url:
        assert url.startswith("https://")
        trust = ssl.create_default_context(cafile=str(certificate))
        assert httpx.get(f"{url}/v1/models", verify=trust).status_code == 200
    with pytest.raises(StartupError, match="TLS"):
        serve(FakeBackend(), port=0, tls=Tls(private, certificate))


def test_request_ids_are_ours_and_logs_say_nothing_secret(
    served: Served, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    root = logging.getLogger()
    before = root.handlers[:], root.level
    setup_logging("info", "server", "json")
    try:
        response = served.http.post(
            "/v1/chat/completions?api_key=in-the-query",
            json={"messages": [{"role": "user", "content": "my password is tulip"}]},
            headers={"x-request-id": "chosen\tby-client", "authorization": "Bearer sk-secret"},
        )
        served.http.get("/no/such/SECRET-path")
        ids = response.headers["x-request-id"], served.http.get("/health").headers["x-request-id"]
    finally:
        root.handlers[:], root.level = before
    assert all(re.fullmatch(r"req_[0-9a-f]{32}", name) for name in ids) and ids[0] != ids[1]
    lines = [json.loads(line) for line in capfd.readouterr().err.splitlines() if line.startswith("{")]
    said = [line for line in lines if line["logger"] == "radixrt.access" and line.get("request_id") == ids[0]]
    assert len(said) == 1 and said[0]["message"].startswith("POST /v1/chat/completions 200")
    everything = json.dumps([line for line in lines if line["logger"] != "httpx"])  # which is the client's
    for secret in ("tulip", "sk-secret", "in-the-query", "by-client", "SECRET"):
        assert secret not in everything
