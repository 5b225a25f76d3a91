"""The small model over HTTP: clients that leave, metrics, health, dead processes, signals (R39, R51, R53, R55, R56)."""

from __future__ import annotations

import json
import signal
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.waiting import HANG_S, all_end, until

from .events import strict
from .live import Live, live_server, stop, until_ready

LONG: dict[str, Any] = {
    "messages": [{"role": "user", "content": "Write a very long story."}], "max_tokens": 900, "ignore_eos": True,
}  # fmt: skip


def start(live: Live, body: dict[str, Any]) -> socket.socket:
    host, port = live.url.removeprefix("http://").split(":")
    connection = socket.create_connection((host, int(port)), timeout=HANG_S)
    data = json.dumps(body).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(data)}\r\n\r\n".encode()
    connection.sendall(head + data)
    return connection


def ended(live: Live, reason: str) -> float:
    """How many requests have ended for this reason."""
    return live.metrics().get(f"radixrt_requests_finished_total|{reason}", 0)


@pytest.mark.parametrize("n", [1, 2])
def test_clients_that_leave_a_stream(live: Live, n: int) -> None:
    live.wait_until_idle()
    before = live.metrics()["radixrt_requests_finished_total|abort"]
    connections = [start(live, {**LONG, "stream": True, "n": n}) for _ in range(8)]
    for connection in connections:
        assert connection.recv(12) == b"HTTP/1.1 200"  # its first token is there
    for connection in connections:
        connection.close()
    live.wait_until_idle()
    assert live.metrics()["radixrt_requests_finished_total|abort"] == before + 8


def test_clients_that_leave_a_plain_request_or_the_queue(live: Live) -> None:
    live.wait_until_idle()
    before = ended(live, "length") + ended(live, "stop")
    bodies = [{**LONG, "stream": i % 2 == 0, "n": 4} for i in range(24)]  # more rows than one step has
    for i in range(0, 24, 8):  # these are left while their prompts are computed
        bodies[i] |= {"messages": [{"role": "user", "content": f"{i}" + " word" * 700}], "max_tokens": 100}
    connections = [start(live, body) for body in bodies]
    until(lambda: live.metrics()["radixrt_requests_running"] > 0)
    for _ in range(20):
        assert live.http.get("/health").status_code == 200
    assert live.metrics()["radixrt_requests_running"] > 0, "health was answered while they run"
    for connection in connections:
        connection.close()
    live.wait_until_idle()
    assert ended(live, "length") + ended(live, "stop") <= before + 3, "the long ones were cancelled"
    assert live.answer("hi", choice=["fine"]) == "fine"


def test_metrics_are_sums_of_usage(live: Live) -> None:
    live.wait_until_idle()
    before = live.metrics()
    usages = [live.chat(text, max_tokens=3).json()["usage"] for text in ("One", "Two", "One", "Two")]
    after = live.metrics()

    def grown(name: str) -> float:
        return after[name] - before[name]

    cached = sum(usage["prompt_tokens_details"]["cached_tokens"] for usage in usages)
    assert cached > 0 and grown("radixrt_prefix_hits_tokens_total") == cached
    assert grown("radixrt_prefix_queries_tokens_total") == sum(usage["prompt_tokens"] for usage in usages)
    assert grown("radixrt_generation_tokens_total") == sum(usage["completion_tokens"] for usage in usages)


def test_the_tree_is_shown_and_flushed(live: Live) -> None:
    assert live.chat("Zebras are striped.", max_tokens=2).status_code == 200
    nodes = live.http.get("/cache").json()["nodes"]
    assert any("Zebra" in node["text"] for node in nodes) or sum(node["tokens"] for node in nodes) > 20
    live.wait_until_idle()
    assert live.http.post("/flush_cache").json()["freed_tokens"] > 0
    assert live.metrics()["radixrt_kv_cached_tokens"] == 0


@pytest.fixture
def own(smollm2_path: Path, tmp_path: Path) -> Iterator[Live]:
    """A server that the test may ruin."""
    with live_server(tmp_path / "server.log", "--kv-tokens", "4096") as server:
        yield server


@pytest.mark.parametrize("victim", ["scheduler", "runner", "tokenizer"])
def test_a_dead_process_is_noticed_and_told(own: Live, victim: str) -> None:
    children = own.children()
    (target,) = [child for child in children if any(f"radixrt.{victim}" in word for word in child.cmdline())]
    killed = threading.Event()
    parts: list[str] = []

    def read() -> None:
        body = {**LONG, "stream": True}
        with httpx.stream("POST", f"{own.url}/v1/chat/completions", json=body, timeout=HANG_S) as response:
            for line in response.iter_lines():
                if line:
                    parts.append(line.removeprefix("data: "))
                if len(parts) == 3 and not killed.is_set():
                    target.kill()
                    killed.set()

    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(read)
        assert killed.wait(HANG_S)
        reading.result(timeout=HANG_S)
    assert "error" in strict(parts[-1]) and "[DONE]" not in parts
    response = own.http.get("/health")
    assert response.status_code == 503
    assert all_end(children)
    if victim == "runner":  # starting again takes seconds: once is enough
        until_ready(own.http, own.process, own.log)
        assert own.answer("Hi", max_tokens=4)
        own.wait_until_idle()


@pytest.mark.parametrize(
    ("number", "drain_s"), [(signal.SIGINT, HANG_S), (signal.SIGTERM, 0.01)], ids=["finishes", "cuts"]
)
def test_a_signal_ends_everything(smollm2_path: Path, tmp_path: Path, number: int, drain_s: float) -> None:
    """Within the drain time answers are let finish; after it those that are left end with an error."""
    patient = drain_s == HANG_S
    with live_server(tmp_path / "log", "--kv-tokens", "4096", "--drain-timeout-s", str(drain_s)) as own:
        children = own.children()
        assert len(children) >= 3
        body = {**LONG, "stream": True, "max_tokens": 24 if patient else 900}
        streams = [start(own, body), start(own, body)]
        assert [stream.recv(12) for stream in streams] == [b"HTTP/1.1 200"] * 2
        assert stop(own, number) == 0
        for stream in streams:
            received = b"".join(iter(partial(stream.recv, 65536), b""))
            stream.close()
            assert (b"[DONE]" in received, b'"error"' in received) == (patient, not patient)
        assert all_end(children)
        host, port = own.url.removeprefix("http://").split(":")
        socket.create_server((host, int(port))).close()
