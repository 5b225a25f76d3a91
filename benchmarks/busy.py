"""What a busy neighbour costs: single and batch while something spins on a core, beside the same on a quiet machine.

    python benchmarks/busy.py [MODEL] [--rounds 3] [--nice 19 --nice 0] [--idle-s 20] [-- options of radixrt serve]

One server; each round runs the workloads quiet, then beside a spinner of each niceness (bound to no core, as a browser
or a build would be). The spinner costs what the kernel's scheduler gives it: an un-niced one is owed its fair share.
`ratio` is the median tokens/s over that of the quiet runs; `gap` the longest time between two chunks of any stream, in
all rounds. Before that the server is left alone, and the CPU time of all its processes is counted.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import psutil
from measure import Record, Server, summarise
from servers import Target, radixrt
from workloads import WORKLOADS

NAMES = ("single", "batch")


@contextmanager
def spinner(nice: int | None) -> Iterator[None]:
    """A process that wants a core all the time; None: none."""
    if nice is None:
        yield
        return
    code = f"import os\nos.nice({nice})\nwhile os.getppid() == {os.getpid()}:\n    sum(range(100000))"
    process = subprocess.Popen([sys.executable, "-c", code])
    try:
        time.sleep(0.3)
        yield
    finally:
        process.kill()
        process.wait()


def idle_percent(target: Target, seconds: float) -> float:
    """CPU of all the server's processes together while nobody asks anything, in percent of a core."""
    if target.process is None:
        raise SystemExit("idle time is measured of a server that was started here")
    whole = psutil.Process(target.process.pid)

    def used() -> float:
        times = [process.cpu_times() for process in (whole, *whole.children(recursive=True))]
        return sum(taken.user + taken.system for taken in times)

    time.sleep(2)  # what a start leaves behind
    before = used()
    time.sleep(seconds)
    return 100 * (used() - before) / seconds


async def run(url: str, name: str, seed: int) -> list[Record]:
    server = Server(url, None, None, ignore_eos=True, timeout_s=120)
    await server.open()
    try:
        return await WORKLOADS[name](server, random.Random(seed))
    finally:
        await server.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="smollm2-135m")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--nice", type=int, action="append", help="niceness of a spinner (default: 19 and 0)")
    parser.add_argument("--idle-s", type=float, default=20.0)
    parser.add_argument("options", nargs="*", help="options of radixrt serve, behind --")
    args = parser.parse_args()
    neighbours: list[int | None] = [None, *(args.nice or [19, 0])]
    target = radixrt(args.model, *args.options)
    print(f"ready after {target.start():.1f} s")
    rates: dict[tuple[str, int | None], list[float]] = {}
    gaps: dict[tuple[str, int | None], float] = {}
    errors = 0
    try:
        print(f"idle: {idle_percent(target, args.idle_s):.2f} % of a core")
        for seed in range(args.rounds):
            for name in NAMES:
                for at, nice in enumerate(neighbours):
                    with spinner(nice):  # prompts of its own for each: none meets a warm cache
                        records = asyncio.run(run(target.url, name, 1000 * seed + at))
                    summary = summarise(name, records)
                    errors += summary.errors
                    rates.setdefault((name, nice), []).append(summary.tokens_per_s)
                    longest = max((gap for record in records for gap in record.gaps_s), default=0.0)
                    gaps[name, nice] = max(gaps.get((name, nice), 0.0), longest)
    finally:
        target.stop()
    print(f"{'workload':10}{'beside':18}{'tok/s':>8}{'ratio':>8}{'gap, ms':>10}")
    for (name, nice), taken in rates.items():
        rate = statistics.median(taken)
        beside = "nothing" if nice is None else f"spinner, nice {nice}"
        ratio = rate / statistics.median(rates[name, None])
        print(f"{name:10}{beside:18}{rate:8.1f}{ratio:8.2f}{gaps[name, nice] * 1e3:10.0f}")
    raise SystemExit(1 if errors else 0)


if __name__ == "__main__":
    main()
