"""Servers for tests: the real application behind the real HTTP server, over the fake backend or over a real engine."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn

from radixrt.server.app import create_app
from radixrt.server.http_protocol import BoundedHttpProtocol
from radixrt.server.listening import bind, url_of
from tests.waiting import HANG_S

from .fake_backend import FakeBackend
from .live import Live, live_server


@dataclass
class Served:
    """A server in a thread of this process."""

    url: str
    backend: FakeBackend
    http: httpx.Client
    app: Any

    def post(self, path: str, body: Any, **kwargs: Any) -> httpx.Response:
        return self.http.post(path, json=body, **kwargs)

    def chat(self, text: str = "Hi", **body: Any) -> httpx.Response:
        return self.post("/v1/chat/completions", {"messages": [{"role": "user", "content": text}], **body})

    def complete(self, prompt: Any = "Hi", **body: Any) -> httpx.Response:
        return self.post("/v1/completions", {"prompt": prompt, **body})

    def address(self) -> tuple[str, int]:
        host, port = self.url.removeprefix("http://").split(":")
        return host, int(port)


@contextmanager
def serving(engine: Any, backend: FakeBackend, **options: Any) -> Iterator[Served]:
    app = create_app(engine, **options)
    listener: socket.socket = bind("127.0.0.1", 0)
    server = uvicorn.Server(
        uvicorn.Config(
            app,
            log_config=None,
            log_level="warning",
            access_log=False,
            http=BoundedHttpProtocol,
            ws="none",
            lifespan="on",
        )
    )
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        with httpx.Client(base_url=url_of(listener), timeout=HANG_S) as http:
            yield Served(url_of(listener), backend, http, app)
    finally:
        server.should_exit = server.force_exit = True
        thread.join()
        listener.close()


@pytest.fixture(scope="session")
def shared_server() -> Iterator[Served]:
    backend = FakeBackend()
    with serving(backend, backend) as server:
        yield server


@pytest.fixture
def served(shared_server: Served) -> Served:
    """One server for all tests (starting one takes time), over a backend that has seen nothing yet."""
    shared_server.backend.reset()
    return shared_server


@pytest.fixture(scope="session")
def live(smollm2_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """`radixrt serve` over the small model in dense float32, for all live tests of a session."""
    log = tmp_path_factory.mktemp("live") / "server.log"
    with live_server(log, "--weights", "float32", "--kv-tokens", "12000") as server:
        yield server
