"""What a constraint costs: records under a JSON schema beside free text of the same lengths, at the same server.

    python benchmarks/constraints.py --base-url http://127.0.0.1:8000 --rounds 5
    python benchmarks/constraints.py --base-url http://127.0.0.1:8000 --against http://127.0.0.1:8001 --rounds 5

The `json` workload runs first; then as many chats over other such notes, without the schema, each as long as the answer
at its place was. Rounds take turns between both kinds and, with --against, between both servers. On a busy machine CPU
time (`--pid`) says what tokens/s cannot. Needs httpx and psutil.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import sys
import time

import psutil
from measure import Record, Server, summarise
from workloads import ask_for_person, at_once, json_records, notes

AT_ONCE = 8


async def free(server: Server, rng: random.Random, lengths: list[int]) -> list[Record]:
    """Chats of given lengths, without a constraint."""
    jobs = [
        server.chat(ask_for_person(note), max_tokens=length, fixed_length=True)
        for note, length in zip(notes(rng), lengths, strict=True)
    ]
    return await at_once(AT_ONCE, jobs)


def cpu_s(pids: list[int]) -> float:
    """CPU seconds that these processes and all below them have taken."""
    tops = [psutil.Process(pid) for pid in pids]
    tree = [process for top in tops for process in (top, *top.children(recursive=True))]
    return sum(times.user + times.system for times in (process.cpu_times() for process in tree))


async def compare(options: argparse.Namespace) -> int:
    """Print tokens/s of both kinds, and the median of the ratios; 1 when a request failed."""
    urls = [options.base_url, *([options.against] if options.against else [])]
    servers = [Server(url, options.model, options.api_key, ignore_eos=True, timeout_s=300) for url in urls]
    seed = options.seed if options.seed is not None else time.time_ns() % 2**32
    print(f"seed {seed}\n{'server':<8}{'round':>6}{'json tok/s':>12}{'free tok/s':>12}{'ratio':>8}{'errors':>8}")
    speeds: dict[str, list[tuple[float, float]]] = {}
    costs: dict[str, list[tuple[float, float]]] = {}
    errors = 0
    try:
        for server in servers:
            await server.open()
        for number in range(options.rounds):
            for name, server in zip("AB", servers, strict=False):
                rng = random.Random(f"{seed}/{number}")
                pids = options.pid["AB".index(name) :][:1]
                marks = [cpu_s(pids)]
                bound = await json_records(server, rng)
                marks.append(cpu_s(pids))
                unbound = await free(server, rng, [max(record.completion_tokens, 1) for record in bound])
                marks.append(cpu_s(pids))
                costs.setdefault(name, []).append((marks[1] - marks[0], marks[2] - marks[1]))
                one, other = summarise("json", bound), summarise("free", unbound)
                errors += one.errors + other.errors
                if first := one.first_error or other.first_error:
                    print(f"  first error: {first}")
                pair = one.tokens_per_s, max(other.tokens_per_s, 1e-9)
                speeds.setdefault(name, []).append(pair)
                print(f"{name:<8}{number:>6}{pair[0]:>12.1f}{pair[1]:>12.1f}{pair[0] / pair[1]:>8.2f}", end="")
                print(f"{one.errors + other.errors:>8}", flush=True)
    finally:
        for server in servers:
            await server.close()
    for name, pairs in speeds.items():
        print(f"{name}: json/free, median of {len(pairs)}: {statistics.median(a / b for a, b in pairs):.2f}")
    for name, pairs in costs.items() if options.pid else ():
        print(f"{name}: CPU seconds free/json, median: {statistics.median(b / a for a, b in pairs):.2f}")
    if len(speeds) == 2:
        across = [a[0] / b[1] for a, b in zip(speeds["A"], speeds["B"], strict=True)]
        same = [a[0] / b[0] for a, b in zip(speeds["A"], speeds["B"], strict=True)]
        print(
            f"json at A / free at B: {statistics.median(across):.2f}; "
            f"json at A / json at B: {statistics.median(same):.2f}"
        )
    return 1 if errors else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--base-url", required=True, help="server, with or without /v1")
    parser.add_argument("--against", metavar="URL", help="a second server, measured in turn with the first")
    parser.add_argument("--model", help="model name; default: the first that /v1/models lists")
    parser.add_argument("--api-key", help="sent as a bearer token")
    parser.add_argument(
        "--pid",
        type=int,
        action="append",
        default=[],
        help="of each local server, in order: its CPU time is shown, too",
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seed", type=int, help="of the prompts; default: from the clock")
    return asyncio.run(compare(parser.parse_args()))


if __name__ == "__main__":
    sys.exit(main())
