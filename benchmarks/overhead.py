"""What everything but the model costs: CPU time a request and a token, by process, and how late the event loop is.

    python benchmarks/overhead.py [MODEL] [--requests 400] [--streams 64] [--tokens 150] [--profile]
    python benchmarks/overhead.py --health-of http://127.0.0.1:8000 [--streams 64] [--tokens 150] [--seconds 60]

A server whose runner computes nothing (`overhead_server.py`) is asked for plain chat requests of one token, then for
`--streams` streams at once. CPU time is what the system says each process has used, so other work on the machine
changes it little. MODEL gives the tokenizer and the chat template; its weights are not read.

- http: answers made in the server's own process; HTTP and events alone
- trio: tokenizer, scheduler and their ZeroMQ hops too; the server's column then holds the engine's client
- lag: streams of 30 tokens a second each, the server's process on one core of its own; percentiles of how late a task
  is woken that sleeps for 5 ms
- health: how long a running server (a real one) takes to answer /health, on a new connection each time, while that many
  clients read streams of that many tokens, one after the other
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import pstats
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import psutil
import zmq
from measure import percentile

from radixrt.messages import FromScheduler, TokenBatch, TokenDelta
from radixrt.transport import Link, open_socket, private_directory

HERE = Path(__file__).parent


class Server:
    """A measured server, up and ready."""

    def __init__(self, process: subprocess.Popen[bytes], port: int) -> None:
        self.process = process
        self.port = port

    def cpu(self) -> dict[str, float]:
        """Seconds of CPU that each process has used."""
        used = {"server": self._used(psutil.Process(self.process.pid))}
        for child in psutil.Process(self.process.pid).children(recursive=True):
            words = " ".join(child.cmdline())
            for name in ("tokenizer", "scheduler"):
                if f"radixrt.{name}" in words:
                    used[name] = self._used(child)
        return used

    def pin(self) -> None:
        """The server's process on one core, all others on the rest."""
        cores = sorted(os.sched_getaffinity(0))
        for process in (psutil.Process(self.process.pid).children(recursive=True), [psutil.Process()]):
            for other in process:
                other.cpu_affinity(cores[1:] or cores)
        for thread in psutil.Process(self.process.pid).threads():
            os.sched_setaffinity(thread.id, cores[:1])

    @staticmethod
    def _used(process: psutil.Process) -> float:
        times = process.cpu_times()
        return float(times.user + times.system)


@contextmanager
def serving(form: str, model: str, step_ms: float, report: Path, profile: Path | None = None) -> Iterator[Server]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, str(HERE / "overhead_server.py"), form, model, str(port), str(step_ms), str(report)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE.parent), os.environ.get("PYTHONPATH", "")])}
    process = subprocess.Popen([*command, *([str(profile)] if profile else [])], env=environment)
    try:
        end = time.monotonic() + 120
        while True:
            try:
                if httpx.get(f"http://127.0.0.1:{port}/ready").status_code == 200:
                    break
            except httpx.TransportError:
                time.sleep(0.1)
            if process.poll() is not None or time.monotonic() > end:
                raise RuntimeError("the measured server did not start")
        yield Server(process, port)
    finally:
        process.terminate()
        process.wait(30)


async def ask(port: int, tokens: int, *, streamed: bool) -> int:
    """One chat request over a connection of its own; the number of events that it was answered with."""
    messages = [{"role": "user", "content": "Tell me a story about a lamp in winter."}]
    body = json.dumps({"messages": messages, "max_tokens": tokens, "ignore_eos": True, "stream": streamed}).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {len(body)}"
    writer.write(head.encode() + b"\r\n\r\n" + body)
    received = await reader.read()
    while more := await reader.read():
        received += more
    writer.close()
    if not received.startswith(b"HTTP/1.1 200") or (streamed and b"[DONE]" not in received):
        raise RuntimeError(received[:500].decode(errors="replace"))
    return received.count(b"\ndata: ")


async def requests(port: int, count: int, at_once: int) -> None:
    left = iter(range(count))

    async def worker() -> None:
        for _ in left:
            await ask(port, 1, streamed=False)

    await asyncio.gather(*(worker() for _ in range(at_once)))


async def streams(port: int, count: int, tokens: int) -> None:
    await asyncio.gather(*(ask(port, tokens, streamed=True) for _ in range(count)))


async def health(url: str, at_once: int, tokens: int, seconds: float) -> list[float]:
    """Milliseconds that /health took, asked twenty times a second for `seconds` beside the streams."""
    port = int(url.rsplit(":", 1)[1].rstrip("/"))
    took: list[float] = []

    async def client() -> None:
        while True:
            await ask(port, tokens, streamed=True)

    clients = [asyncio.create_task(client()) for _ in range(at_once)]
    try:
        await asyncio.sleep(3)
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            await asyncio.sleep(0.05)
            begun = time.perf_counter()
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            if not (await reader.read()).startswith(b"HTTP/1.1 200"):
                raise RuntimeError("/health did not say 200")
            took.append(1000 * (time.perf_counter() - begun))
            writer.close()
            if broken := [task for task in clients if task.done()]:
                broken[0].result()
    finally:
        for task in clients:
            task.cancel()
        await asyncio.gather(*clients, return_exceptions=True)
    return sorted(took)


def measure(server: Server, count: int, at_once: int, tokens: int) -> dict[str, tuple[float, float]]:
    """Process -> microseconds (a request, a token)."""
    asyncio.run(requests(server.port, 32, 8))  # what is made once
    first = server.cpu()
    asyncio.run(requests(server.port, count, 8))
    second = server.cpu()
    asyncio.run(streams(server.port, at_once, tokens))
    third = server.cpu()
    return {
        name: (1e6 * (second[name] - first[name]) / count, 1e6 * (third[name] - second[name]) / (at_once * tokens))
        for name in first
    }


def hop(rows: int, count: int = 5000) -> float:
    """Microseconds of CPU that one message of a step's tokens costs, sent and received."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    address = f"ipc://{private_directory()}/hop"
    receiver: Link[FromScheduler, FromScheduler] = Link(
        open_socket(context, zmq.PULL, address, bind=True), FromScheduler
    )  # fmt: skip
    sender: Link[FromScheduler, FromScheduler] = Link(
        open_socket(context, zmq.PUSH, address, bind=False), FromScheduler
    )  # fmt: skip
    message = TokenBatch(items=[TokenDelta(request_id=i, index=0, ids=[i]) for i in range(rows)])
    began, seen = time.process_time(), 0
    for _ in range(count):
        sender.send(message)
        receiver.wait(1.0)
        seen += sum(1 for _ in receiver.receive())
    used = time.process_time() - began
    for link in (sender, receiver):
        link.close(0)
    context.term()
    return 1e6 * used / max(1, seen)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("model", nargs="?", default="smollm2-135m")
    parser.add_argument("--requests", type=int, default=400)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=150)
    parser.add_argument("--profile", action="store_true", help="show where the server's process spends its time")
    parser.add_argument("--health-of", metavar="URL", help="measure /health of this running server, and nothing else")
    parser.add_argument("--seconds", type=float, default=60)
    options = parser.parse_args()
    if options.health_of:
        took = asyncio.run(health(options.health_of, options.streams, options.tokens, options.seconds))
        shown = ", ".join(f"p{p} {percentile(took, p):.1f} ms" for p in (50, 90, 99, 100))
        print(f"/health beside {options.streams} streams, asked {len(took)} times: {shown}")
        return
    with tempfile.TemporaryDirectory() as folder:
        report, profile = Path(folder) / "lag", Path(folder) / "profile"
        print("| what | process | a request, us | a token, us |\n|---|---|---|---|")
        for form in ("http", "trio"):
            with serving(form, options.model, 0, report, profile if options.profile else None) as server:
                found = measure(server, options.requests, options.streams, options.tokens)
            for name, (request, token) in found.items():
                print(f"| {form} | {name} | {request:,.0f} | {token:,.1f} |", flush=True)
            if options.profile:
                pstats.Stats(str(profile)).sort_stats("tottime").print_stats(35)
        for rows in (1, 64):
            print(f"| ZeroMQ hop | a message of {rows} rows | | {hop(rows):,.1f} a message |")
        with serving("trio", options.model, 1000 / 30, report) as server:
            server.pin()
            asyncio.run(streams(server.port, options.streams, options.tokens))
        lags = sorted(1000 * float(line) for line in report.read_text().split())
        shown = ", ".join(f"p{p} {percentile(lags, p):.1f} ms" for p in (50, 90, 99, 100))
        print(f"\n{options.streams} streams of 30 tokens/s, one core, {len(lags)} samples: event loop's lag {shown}")


if __name__ == "__main__":
    main()
