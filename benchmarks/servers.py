"""Servers that a benchmark starts, or finds running."""

from __future__ import annotations

import os
import shlex
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import psutil

READY_S = 600.0


@dataclass
class Target:
    """A server by its URL, or a command that starts one (`{port}` in it is where)."""

    name: str
    url: str = ""
    command: list[str] = field(default_factory=list)
    environment: dict[str, str] = field(default_factory=dict)
    log: Path | None = None
    process: subprocess.Popen[bytes] | None = None

    @staticmethod
    def of(spec: str) -> Target:
        """`name=http://host:port`, or `name=command with {port}`."""
        name, equals, what = spec.partition("=")
        if not (name and equals and what):
            raise SystemExit(f"{spec!r} is neither name=URL nor name=COMMAND")
        if what.startswith(("http://", "https://")):
            return Target(name, url=what.rstrip("/").removesuffix("/v1"))
        if "{port}" not in what:
            raise SystemExit(f"the command of {name} has no {{port}}")
        return Target(name, command=shlex.split(what))

    def start(self) -> float:
        """Start it; the seconds until it has answered a request for one token."""
        port = _free_port()
        self.url = f"http://127.0.0.1:{port}"
        self.log = Path(tempfile.gettempdir()) / f"benchmark-{self.name.replace(' ', '-')}-{port}.log"
        began = time.perf_counter()
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [part.replace("{port}", str(port)) for part in self.command],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=os.environ | self.environment,
            )  # fmt: skip
        while not self._answers():
            if self.process.poll() is not None or time.perf_counter() - began > READY_S:
                self.stop()
                raise SystemExit(f"{self.name} did not start: see {self.log}")
            time.sleep(0.02)
        return time.perf_counter() - began

    def _answers(self) -> bool:
        try:
            models = httpx.get(f"{self.url}/v1/models", timeout=5)
            if models.status_code != 200:
                return False
            body = {"model": models.json()["data"][0]["id"], "prompt": "Hello", "max_tokens": 1, "temperature": 0}
            return httpx.post(f"{self.url}/v1/completions", json=body, timeout=120).status_code == 200
        except httpx.HTTPError:
            return False

    def processes(self) -> list[psutil.Process]:
        """Of a server that was started here: its process and all below it."""
        if self.process is None:
            return []
        parent = psutil.Process(self.process.pid)
        return [parent, *parent.children(recursive=True)]

    def stop(self) -> None:
        """End a server that was started here; one that was found running is left alone."""
        if self.process is None:
            return
        self.process.terminate()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process = None


@contextmanager
def alone(target: Target, targets: Sequence[Target]) -> Iterator[None]:
    """Of the servers that were started here only `target` runs: what others do while they are idle costs it nothing."""
    others = [process for other in targets if other is not target for process in other.processes()]
    try:
        for process in others:
            process.suspend()
        yield
    finally:
        for process in others:
            if process.is_running():
                process.resume()


class OtherWork:
    """What share of all cores processes other than this one and the servers used, from its making until `share`."""

    def __init__(self, targets: Sequence[Target]) -> None:
        self._targets = targets
        self._began, self._seconds = time.perf_counter(), self._used()

    def share(self) -> float:
        """0 is a quiet machine; what a virtual machine's host took away (steal) counts, too."""
        elapsed = time.perf_counter() - self._began
        return max(0.0, (self._used() - self._seconds) / elapsed / (psutil.cpu_count() or 1))

    def _used(self) -> float:
        everything = psutil.cpu_times()
        parts = ("user", "nice", "system", "irq", "softirq", "steal")
        processes = [psutil.Process(), *(process for target in self._targets for process in target.processes())]
        ours = [process.cpu_times() for process in processes]
        return float(sum(getattr(everything, part, 0.0) for part in parts) - sum(own.user + own.system for own in ours))


def radixrt(
    model: str, *options: str, home: Path | None = None, name: str = "radixrt", cpu: str | None = None
) -> Target:
    """radixrt as this Python has it.

    `home`: where it keeps compiled kernels and packed weights; `cpu`: the highest instruction set that it may use.
    """
    command = [sys.executable, "-m", "radixrt", "serve", model, "--port", "{port}", *options]
    environment = {"RADIXRT_HOME": home and str(home), "RADIXRT_CPU": cpu}
    return Target(name, command=command, environment={key: value for key, value in environment.items() if value})


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
