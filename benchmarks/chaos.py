"""Mixed load on a real server while its processes are killed: nothing may hang, be wrong, be lost, leak or be left.

    python benchmarks/chaos.py [MODEL] [--minutes 2] [--clients 64] [--seed 0]

`radixrt serve` runs on a loopback port with a key and `--on-engine-death restart`, in float32, so that greedy answers
do not depend on the batch. Clients send kinds of request (`chaos_kinds.py`) one after another, at random; meanwhile
each process of the engine, a compile worker too, is ended with SIGKILL in turn. Faults, which make the exit status 1:

- a wrong answer: not what the same request got alone, or not what its constraint allows; an undeclared status
- a request without an end: no answer, error or event within two minutes, a stream or connection cut off without a word
- an error that no outage explains, or an outage of more than 30 s
- afterwards: slots, rows or requests still held, memory that kept growing, an unexpected error in the log,
  a process left
- a run that is not over when it must be, or that broke off: said with what every client was at, and the log's end

A line on stderr every half minute says how far it is.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil
from chaos_kinds import KEY, KINDS, REFERENCES, Down, Load, Wrong
from chaos_report import SERVER, Outage, Outcome, Report, judge_memory, show

HANG_S = 120.0
OUTAGE_S = 30.0
GRACE_S = 3.0
"""A request that began so long before an outage, or after it, may have met it."""
START_S = 120.0
SAY_EVERY_S = 30.0
BETWEEN_S = 130.0
"""The server forgives a death after two minutes of service, and gives up after five in a row."""
VICTIMS = ("tokenizer", "scheduler", "runner", "grammar")
GAUGES = ("radixrt_requests_running", "radixrt_requests_waiting", "radixrt_kv_used_tokens")


class Chaos:
    """One run against one server."""

    def __init__(self, process: subprocess.Popen[bytes], url: str, log: Path, seed: int) -> None:
        self.process = process
        self.url = url
        self.log = log
        self.random = random.Random(seed)
        self.report = Report()
        self.seen: dict[int, psutil.Process] = {}
        self.stopping = asyncio.Event()
        self.busy: dict[int, tuple[str, float]] = {}
        """What each client is at, and since when."""
        self._listens = False

    async def run(self, minutes: float, clients: int) -> Report:
        """The whole run; one that breaks off or is not over in time is a fault that says what everybody was at."""
        limit_s = minutes * 60 + START_S + 2 * HANG_S + 2 * OUTAGE_S
        saying = asyncio.create_task(self._say())
        try:
            async with asyncio.timeout(limit_s):
                await self._run(minutes, clients)
            self.report.ended = True
        except TimeoutError:
            self._broke_off(f"the run was not over after {limit_s:.0f} s")
        except (RuntimeError, OSError, httpx.HTTPError) as error:
            self._broke_off(f"the run broke off: {type(error).__name__}: {error}")
        finally:
            saying.cancel()
        return self.report

    async def _run(self, minutes: float, clients: int) -> None:
        limits = httpx.Limits(max_connections=clients + 8, max_keepalive_connections=clients)
        headers = {"authorization": f"Bearer {KEY}"}
        async with (
            httpx.AsyncClient(base_url=self.url, timeout=HANG_S, headers=headers, limits=limits) as http,
            ended_with() as tasks,
        ):
            host, port = self.url.removeprefix("http://").split(":")
            load = Load(http, (host, int(port)), self.random)
            await self._until_ready(http, START_S)
            for kind, answers in REFERENCES.items():
                known = len(load.expected) + answers
                while len(load.expected) < known:
                    await kind(load)
            began = time.monotonic()
            tasks += [asyncio.create_task(self._client(load, number)) for number in range(clients)]
            tasks += [asyncio.create_task(self._watch())]
            try:
                await self._kill(http, minutes * 60)
                self.stopping.set()
                await asyncio.gather(*tasks)
            finally:
                self.report.seconds = time.monotonic() - began
            await self._calm(http)

    def _broke_off(self, why: str) -> None:
        now = time.monotonic()
        at = ", ".join(f"{kind} for {now - since:.0f} s" for kind, since in sorted(self.busy.values()))
        self.report.fault(f"{why}; clients were at: {at or 'nothing'}; the log ends with:\n{self._log_end()}")

    def _log_end(self) -> str:
        return self.log.read_text(errors="replace")[-3000:]

    async def _say(self) -> None:
        while True:
            await asyncio.sleep(SAY_EVERY_S)
            print(f"chaos: {self.report.progress()}", file=sys.stderr, flush=True)

    async def _client(self, load: Load, number: int) -> None:
        kinds, weights = list(KINDS), list(KINDS.values())
        while not self.stopping.is_set():
            kind = self.random.choices(kinds, weights)[0]
            began = time.monotonic()
            self.busy[number] = (kind.__name__, began)
            self.report.counts[kind.__name__] += 1
            outcome: Outcome = "fault"
            try:
                await asyncio.wait_for(kind(load), HANG_S)
                outcome = "answered"
            except Down as error:
                if self._explains(began, time.monotonic()):
                    outcome = "outage"
                else:
                    self.report.fault(f"{kind.__name__}: an error without an outage: {error}")
            except TimeoutError:
                self.report.fault(f"{kind.__name__}: no end within {HANG_S:.0f} s")
            except (Wrong, httpx.HTTPError, OSError, KeyError, IndexError, TypeError, ValueError) as error:
                self.report.fault(f"{kind.__name__}: {type(error).__name__}: {error}")
            self.report.outcomes[outcome] += 1
            if outcome == "outage":
                await asyncio.sleep(1)
        self.busy.pop(number, None)

    def _explains(self, began: float, ended: float) -> bool:
        """Whether a request that ran from `began` to `ended` may have met an outage."""
        return any(
            began <= (outage.ended or ended) + GRACE_S and ended >= outage.began - GRACE_S
            for outage in self.report.outages
            if outage.all_down
        )

    async def _kill(self, http: httpx.AsyncClient, seconds: float) -> None:
        """Kill each process in turn, the last one early enough for a calm while at the end."""
        began = time.monotonic()
        count = max(len(VICTIMS), int(seconds * 0.8 / BETWEEN_S))
        for turn in range(count):
            await asyncio.sleep(began + seconds * 0.8 * (turn + 0.5) / count - time.monotonic())
            await self._strike(http, VICTIMS[turn % len(VICTIMS)])
        await asyncio.sleep(began + seconds - time.monotonic())

    async def _strike(self, http: httpx.AsyncClient, name: str) -> None:
        found = [child for child in self._children() if f"radixrt.{name}" in " ".join(_words(child))]
        if not found:
            if name != "grammar":
                self.report.fault(f"there is no {name} process to kill")
            return
        outage = Outage(name, time.monotonic())
        self.report.outages.append(outage)
        found[0].kill()
        if not outage.all_down:  # a compile worker is replaced, and nobody else notices
            outage.ended = time.monotonic()
            return
        while await self._ready(http):
            if time.monotonic() - outage.began > 10:
                self.report.fault(f"nobody noticed in 10 s that the {name} was dead")
                break
            await asyncio.sleep(0.05)
        outage.noticed = time.monotonic() - outage.began
        await self._until_ready(http, OUTAGE_S)
        outage.ended = time.monotonic()

    async def _ready(self, http: httpx.AsyncClient) -> bool:
        try:
            return (await http.get("/ready", timeout=10)).status_code == 200
        except httpx.HTTPError as error:
            if self._listens:
                self.report.fault(f"/ready: {type(error).__name__}")
            return False

    async def _until_ready(self, http: httpx.AsyncClient, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if self.process.poll() is not None:
                raise RuntimeError(f"the server ended with {self.process.returncode}")
            if await self._ready(http):
                self._listens = True
                return
            await asyncio.sleep(0.1)
        self.report.fault(f"the server was not ready again after {seconds:.0f} s")

    def _children(self) -> list[psutil.Process]:
        try:
            children = psutil.Process(self.process.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return []
        self.seen |= {child.pid: child for child in children}
        return children

    async def _watch(self) -> None:
        while not self.stopping.is_set():
            sizes = {SERVER: resident(self.process.pid)}
            for child in self._children():
                name = next((victim for victim in VICTIMS if f"radixrt.{victim}" in " ".join(_words(child))), None)
                if name is not None:
                    sizes[name] = sizes.get(name, 0) + resident(child.pid)
            self.report.memory.append((time.monotonic(), sizes))
            await asyncio.sleep(1)

    async def _calm(self, http: httpx.AsyncClient) -> None:
        """Nothing is held, and nothing moves any more."""
        end = time.monotonic() + 15
        while True:
            gauges = await metrics(http)
            held = {name: gauges.get(name) for name in GAUGES if gauges.get(name) != 0}
            if not held:
                break
            if time.monotonic() > end:
                self.report.fault(f"still held when all clients had gone: {held}")
                return
            await asyncio.sleep(0.1)
        before = await metrics(http)
        await asyncio.sleep(1)
        after = await metrics(http)
        moved = {
            name for name in before if before[name] != after.get(name) and "http" not in name and "check" not in name
        }
        if moved:
            self.report.fault(f"counters that move while nothing runs: {sorted(moved)}")


def judge_end(chaos: Chaos) -> None:
    """The server stops cleanly, leaves no process, and its log tells of nothing unexpected."""
    chaos._children()
    chaos.process.send_signal(signal.SIGTERM)
    try:
        status = chaos.process.wait(30)
        if status != 0:
            chaos.report.fault(f"the server ended with {status}")
    except subprocess.TimeoutExpired:
        chaos.report.fault("the server did not stop within 30 s of SIGTERM")
        chaos.process.kill()
    _, left = psutil.wait_procs(chaos.seen.values(), timeout=10)
    for process in left:
        chaos.report.fault(f"a process was left: {' '.join(_words(process))[:100]}")
        process.kill()
    text = chaos.log.read_text(errors="replace")
    if "Traceback" in text:
        chaos.report.fault(f"the server's log: {text[text.index('Traceback') :][:1500]}")


@asynccontextmanager
async def ended_with() -> AsyncIterator[list[asyncio.Task[None]]]:
    """Tasks that do not outlive the block."""
    tasks: list[asyncio.Task[None]] = []
    try:
        yield tasks
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def resident(pid: int) -> int:
    """Bytes that a process alone holds (its unique set); 0 when it is gone."""
    try:
        info = psutil.Process(pid).memory_info()
        return int(info.rss - info.shared)
    except psutil.Error:
        return 0


def _words(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


async def metrics(http: httpx.AsyncClient) -> dict[str, float]:
    page = (await http.get("/metrics")).text
    rows = (line.rsplit(" ", 1) for line in page.splitlines() if line and not line.startswith("#"))
    return {name: float(value) for name, value in rows}


def run(model: str, *, minutes: float, clients: int, seed: int = 0, log: Path) -> Report:
    """Start a server, run the chaos, stop the server, judge."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "radixrt", "serve", model, "--port", str(port), "--served-model-name", "chaos"]
    command += ["--api-key", KEY, "--weights", "float32", "--context-length", "1024", "--kv-tokens", "16384"]
    command += ["--on-engine-death", "restart", "--drain-timeout-s", "3"]
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, env=os.environ)
        chaos = Chaos(process, f"http://127.0.0.1:{port}", log, seed)
        try:
            asyncio.run(chaos.run(minutes, clients))
            judge_memory(chaos.report)
            judge_end(chaos)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
    return chaos.report


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("model", nargs="?", default="smollm2-135m")
    parser.add_argument("--minutes", type=float, default=2.0)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        arguments: dict[str, Any] = {"minutes": options.minutes, "clients": options.clients, "seed": options.seed}
        log = Path(folder) / "server.log"
        report = run(options.model, **arguments, log=log)
        if report.faults:
            print(f"the server's log ends with:\n{log.read_text(errors='replace')[-3000:]}", file=sys.stderr)
    print(show(report), flush=True)
    sys.exit(1 if report.faults else 0)


if __name__ == "__main__":
    main()
