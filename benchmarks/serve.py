"""Measure any OpenAI-compatible server: tokens/s, time to first token, inter-token time, cached tokens.

    python benchmarks/serve.py --base-url http://127.0.0.1:8000
    python benchmarks/serve.py --base-url http://127.0.0.1:8000 --against http://127.0.0.1:8001 --rounds 3

Needs httpx alone. The README beside this file says how to read the table.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import random
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from measure import Server, Summary, median_summary, summarise
from workloads import WORKLOADS

COLUMNS = (
    f"{'workload':<10}{'tok/s':>8}{'ttft p50':>10}{'p99':>9}{'itl p50':>10}{'p99':>9}"
    f"{'prompt':>9}{'cached':>9}{'out':>7}{'errors':>8}{'wall s':>8}"
)


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    listing = "\n".join(f"  {name:<8}{run.__doc__}" for name, run in WORKLOADS.items())
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").split("\n")[0],
        epilog="workloads:\n" + listing,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--base-url", required=True, help="server, with or without /v1")
    parser.add_argument("--model", help="model name; default: the first that /v1/models lists")
    parser.add_argument("--api-key", help="sent as a bearer token, to both servers")
    parser.add_argument("--against", metavar="URL", help="a second server, measured in turn with the first: A B A B")
    parser.add_argument("--against-model", metavar="MODEL", help="model name at the second server")
    parser.add_argument("--workload", action="append", choices=["all", *WORKLOADS], help="repeatable; default: all")
    parser.add_argument(
        "--rounds", type=int, default=1, help="runs of each workload, each with new prompts; the median counts"
    )
    parser.add_argument("--seed", type=int, help="of the prompts; default: from the clock, so that every cache is cold")
    parser.add_argument(
        "--no-ignore-eos",
        action="store_true",
        help="do not send ignore_eos (for servers that refuse it); answers may then end early",
    )
    parser.add_argument("--timeout-s", type=float, default=300.0, help="longest wait for one chunk")
    parser.add_argument("--json", metavar="FILE", type=Path, help="write every round's numbers there")
    options = parser.parse_args(arguments)
    if options.rounds < 1:
        parser.error("--rounds must be at least 1")
    return options


async def measure(options: argparse.Namespace) -> int:
    """Run what was asked for; the exit code is 1 when any request failed."""
    seed = options.seed if options.seed is not None else time.time_ns() % 2**32
    names = list(WORKLOADS) if not options.workload or "all" in options.workload else options.workload
    targets = [(options.base_url, options.model)]
    if options.against:
        targets.append((options.against, options.against_model))
    servers = [
        Server(url, model, options.api_key, ignore_eos=not options.no_ignore_eos, timeout_s=options.timeout_s)
        for url, model in targets
    ]
    results: dict[str, list[list[Summary]]] = {}
    try:
        for label, server in zip("AB", servers, strict=False):
            await server.open()
            print(f"{label}: {server.url}, model {server.model}")
        print(f"seed {seed}, {options.rounds} round(s)\n\n{COLUMNS}")
        for name in names:
            rounds: list[list[Summary]] = [[] for _ in servers]
            for number in range(options.rounds):
                for summaries, server in zip(rounds, servers, strict=True):
                    # A generator of its own for each run: both servers see the same prompts, no round sees old ones.
                    rng = random.Random(f"{seed}/{name}/{number}")
                    summaries.append(summarise(name, await WORKLOADS[name](server, rng)))
            results[name] = rounds
            medians = [median_summary(summaries) for summaries in rounds]
            for label, summary in zip("AB", medians, strict=False):
                print(line(summary, label if len(servers) > 1 else ""), flush=True)
            if len(medians) == 2:
                print(ratios(*medians), flush=True)
    finally:
        for server in servers:
            await server.close()
    if options.json:
        options.json.write_text(report(seed, servers, results))
    return 1 if any(s.errors for rounds in results.values() for r in rounds for s in r) else 0


def line(summary: Summary, label: str = "") -> str:
    """A table row, and below it the first error where there was one."""
    s = summary
    text = (
        f"{(s.workload + ' ' + label).strip():<10}{s.tokens_per_s:>8.1f}{ms(s.ttft_p50_s):>10}{ms(s.ttft_p99_s):>9}"
        f"{ms(s.gap_p50_s):>10}{ms(s.gap_p99_s):>9}{s.prompt_tokens:>9}{s.cached_tokens:>9}"
        f"{s.completion_tokens:>7}{s.errors:>8}{s.wall_s:>8.1f}"
    )
    return text + (f"\n  first error: {s.first_error}" if s.first_error else "")


def ms(seconds: float) -> str:
    return "-" if math.isnan(seconds) else f"{seconds * 1000:.0f} ms"


def ratios(a: Summary, b: Summary) -> str:
    """How A compares with B; above 1 A is better in each."""

    def over(first: float, second: float) -> str:
        return f"{first / second:.2f}" if second and not math.isnan(first / second) else "-"

    return (
        f"  A/B tokens/s {over(a.tokens_per_s, b.tokens_per_s)}; B/A ttft p50 {over(b.ttft_p50_s, a.ttft_p50_s)},"
        f" itl p50 {over(b.gap_p50_s, a.gap_p50_s)}, wall {over(b.wall_s, a.wall_s)}"
    )


def report(seed: int, servers: Sequence[Server], results: dict[str, list[list[Summary]]]) -> str:
    """Every round of every workload as JSON; a number that does not exist is null."""
    return json.dumps(
        {
            "seed": seed,
            "servers": [
                {
                    "url": server.url,
                    "model": server.model,
                    "workloads": {
                        name: [
                            {k: None if isinstance(v, float) and math.isnan(v) else v for k, v in s.row().items()}
                            for s in rounds[index]
                        ]
                        for name, rounds in results.items()
                    },
                }
                for index, server in enumerate(servers)
            ],
        },
        indent=1,
    )


if __name__ == "__main__":
    sys.exit(asyncio.run(measure(parse())))
