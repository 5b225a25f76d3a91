"""A real server as its users start it: `radixrt serve` as a process of its own, over the small model."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil
from prometheus_client.parser import text_string_to_metric_families

from tests.waiting import HANG_S, all_end, until

MODEL = "smollm2-135m"
CONTEXT = 1024


class Live:
    def __init__(self, url: str, process: subprocess.Popen[bytes], log: Path, http: httpx.Client) -> None:
        self.url = url
        self.process = process
        self.log = log
        self.http = http

    def post(self, path: str, **body: Any) -> httpx.Response:
        return self.http.post(path, json=body)

    def chat(self, text: str, **body: Any) -> httpx.Response:
        return self.post("/v1/chat/completions", messages=[{"role": "user", "content": text}], **body)

    def complete(self, prompt: Any, **body: Any) -> httpx.Response:
        return self.post("/v1/completions", prompt=prompt, **body)

    def answer(self, text: str, **body: Any) -> str:
        response = self.chat(text, **body)
        assert response.status_code == 200, response.text
        return str(response.json()["choices"][0]["message"]["content"])

    def text(self, prompt: Any, **body: Any) -> str:
        response = self.complete(prompt, **body)
        assert response.status_code == 200, response.text
        return str(response.json()["choices"][0]["text"])

    def metrics(self) -> dict[str, float]:
        page = self.http.get("/metrics").text
        return {
            sample.name + "".join(f"|{value}" for _, value in sorted(sample.labels.items())): sample.value
            for family in text_string_to_metric_families(page)
            for sample in family.samples
        }

    def wait_until_idle(self) -> None:
        """Wait until nothing runs, waits or holds slots."""
        names = ("radixrt_requests_running", "radixrt_requests_waiting", "radixrt_kv_used_tokens")

        def idle() -> bool:
            now = self.metrics()
            return all(now[name] == 0 for name in names)

        until(idle, "the server is not idle")

    def children(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)


@contextmanager
def live_server(log: Path, *options: str, model: str = MODEL) -> Iterator[Live]:
    """Start a server and wait until it is ready; at the end whatever is left of it is killed."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "radixrt", "serve", model, "--port", str(port), "--context-length", str(CONTEXT)]
    command += ["--drain-timeout-s", "1"]
    with log.open("wb") as stderr:
        process = subprocess.Popen([*command, *options], stderr=stderr, stdout=stderr, env=os.environ)
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=HANG_S) as http:
            until_ready(http, process, log)
            yield Live(f"http://127.0.0.1:{port}", process, log, http)
    finally:
        if process.poll() is None:
            children = psutil.Process(process.pid).children(recursive=True)
            process.kill()
            process.wait()
            all_end(children)


def until_ready(http: httpx.Client, process: subprocess.Popen[bytes], log: Path) -> None:
    def ready() -> bool:
        assert process.poll() is None, f"the server ended with {process.returncode}: {log.read_text()}"
        try:
            return http.get("/ready").status_code == 200
        except httpx.TransportError:
            return False

    until(ready, "the server does not become ready")


def stop(server: Live, number: int = signal.SIGINT) -> int:
    """Signal the server and wait for its end; its exit status."""
    server.process.send_signal(number)
    return server.process.wait(HANG_S)
