"""Resident memory of a server's processes: after start, after many requests, and at its peak.

    python benchmarks/memory.py [MODEL] [--requests 10000] [--option=--weights=int8]
    python benchmarks/memory.py MODEL.gguf --load

The requests are short and unrelated, 32 at once, so that cache, tables and logs turn over; what grows with them shows.
--load starts the server twice with a cache directory of its own, which first packs the weights and then finds them
packed, and prints the runner's peak (VmHWM: pages of mapped files that are resident count) beside the size of the file.
Linux: it reads /proc.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import tempfile
from pathlib import Path
from typing import Any

import psutil
from measure import Server
from servers import Target, radixrt
from workloads import prose

from radixrt.checkpoint import resolve

READINGS = 10
FLAT = 1.05
"""Growth between the middle and the end of the run, beside the KV pool, that counts as flat."""
MIB = 2**20


def resident(target: Target) -> dict[str, dict[str, float]]:
    """MiB of each process, by its module: resident, of that private, of files, shared (the KV pool), and the peak."""
    if target.process is None:
        raise SystemExit("the server has ended")
    parent = psutil.Process(target.process.pid)
    found = {}
    for process in [parent, *parent.children(recursive=True)]:
        lines = dict(line.split(":", 1) for line in Path(f"/proc/{process.pid}/status").read_text().splitlines())
        name = next((part for part in process.cmdline() if part.startswith("radixrt.")), "server")
        sizes = {key: int(lines[key].split()[0]) / 1024 for key in ("VmRSS", "RssAnon", "RssFile", "RssShmem", "VmHWM")}
        found[name] = sizes
    return found


def total(reading: dict[str, dict[str, float]]) -> float:
    return sum(sizes["VmRSS"] for sizes in reading.values())


def pool(reading: dict[str, dict[str, float]]) -> float:
    """MiB of the KV pool that have been written: a cache, it fills up to its size (`--kv-tokens`) and stays."""
    return sum(sizes["RssShmem"] for sizes in reading.values())


async def load(target: Target, requests: int) -> list[dict[str, dict[str, float]]]:
    """Readings at equal distances through the requests."""
    server = Server(target.url, None, None, ignore_eos=True, timeout_s=300)
    await server.open()
    rng, gate = random.Random(0), asyncio.Semaphore(32)
    failed = 0

    async def one(prompt: str) -> None:
        nonlocal failed
        async with gate:
            record = await server.complete(prompt, max_tokens=8)
            failed += record.error is not None

    readings = []
    for number in range(READINGS):
        count = requests * (number + 1) // READINGS - requests * number // READINGS
        await asyncio.gather(*(one(prose(rng, 30)) for _ in range(count)))
        readings.append(resident(target))
        all_of_it, cached = total(readings[-1]), pool(readings[-1])
        done = requests * (number + 1) // READINGS
        print(f"{done:>8} requests {all_of_it:>9.1f} MiB, {all_of_it - cached:>7.1f} beside the KV pool", flush=True)
    await server.close()
    if failed:
        raise SystemExit(f"{failed} requests failed")
    return readings


def peaks(model: str, options: list[str]) -> int:
    """Print what the runner's memory was at its peak through a first and a second start."""
    path = resolve(model)
    size = (path.stat().st_size if path.is_file() else sum(f.stat().st_size for f in path.glob("*.safetensors"))) / MIB
    print(f"{'start':<10}{'ready, s':>10}{'peak, MiB':>12}{'of the file':>14}{'private':>10}{'of files':>10}")
    with tempfile.TemporaryDirectory(prefix="radixrt-memory-") as home:
        for name in ("first", "second"):
            target = radixrt(str(path), *options, home=Path(home))
            try:
                seconds = target.start()
                runner = resident(target)["radixrt.runner"]
            finally:
                target.stop()
            peak = runner["VmHWM"] - runner["RssShmem"]
            print(
                f"{name:<10}{seconds:>10.1f}{peak:>12.0f}{peak / size:>14.3f}"
                f"{runner['RssAnon']:>10.0f}{runner['RssFile']:>10.0f}",
                flush=True,
            )
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("model", nargs="?", default="smollm2-135m")
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--option", action="append", default=[], help="of `radixrt serve`, repeatable")
    parser.add_argument("--json", metavar="FILE", type=Path)
    parser.add_argument("--load", action="store_true", help="only the peak of two starts (TMPDIR: room for a copy)")
    options = parser.parse_args()
    if options.load:
        return peaks(options.model, options.option)
    target = radixrt(options.model, *options.option)
    try:
        target.start()
        begun = resident(target)
        for name, sizes in begun.items():
            print(f"{name:<24}" + "".join(f"{key} {size:>8.1f}   " for key, size in sizes.items()))
        print(f"{'after start':<17} {total(begun):>9.1f} MiB", flush=True)
        readings = asyncio.run(load(target, options.requests))
    finally:
        target.stop()
    middle, end = readings[len(readings) // 2 - 1], readings[-1]
    growth = (total(end) - pool(end)) / (total(middle) - pool(middle))
    flat = "flat" if growth <= FLAT else "NOT flat"
    print(f"beside the pool, from the middle of the run to its end: {growth:.3f} times ({flat})")
    if options.json:
        report: dict[str, Any] = {"requests": options.requests, "start": begun, "readings": readings, "growth": growth}
        options.json.write_text(json.dumps(report))
    return 0 if growth <= FLAT else 1


if __name__ == "__main__":
    sys.exit(main())
