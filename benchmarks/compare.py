"""radixrt beside other servers: same client, same prompts, in turns, one table with ratios to the better peer.

    python benchmarks/compare.py --peer vllm=http://127.0.0.1:8011
    python benchmarks/compare.py --peer "llama.cpp=llama-server -m model.gguf --port {port} -t 2 -np 16 -c 32768"
    python benchmarks/compare.py --cpu avx2 --peer "llama.cpp=avx2/llama-server -m model.gguf --port {port} -t 2"

A peer is a URL, or a command that is started here and ended again; such stand still (SIGSTOP) while another is
measured. The README beside this file says how to install some.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import machine
from measure import Record, Server, Summary, percentile, summarise
from servers import Target, alone, radixrt
from workloads import SHARED_WORDS, WORKLOADS, prose

BY_TOKENS = ("single", "batch", "shared", "agents")
BY_ANSWERS = ("json", "choice")
"""Compared by right answers a second: forced tokens are counted differently by each server."""
CACHED = "cached ttft"
UNGUESSED = "unguessed"
"""single, with a radixrt that guesses nothing; the peers as they are."""
NO_GUESSES = "--draft-sources=forced"
NAMES = ("single", UNGUESSED, *BY_TOKENS[1:], *BY_ANSWERS, CACHED)
HEAD = ("workload", "unit")


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").split("\n")[0], formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="smollm2-135m", help="for radixrt: a short name or a path")
    parser.add_argument("--radixrt", metavar="URL", help="a radixrt that runs already; default: started here")
    parser.add_argument(
        "--option", action="append", default=[], help="of `radixrt serve`, repeatable: --option=--weights=int8"
    )
    parser.add_argument(
        "--cpu",
        metavar="RUNG",
        help="cap radixrt's instruction sets (RADIXRT_CPU), e.g. avx2; the peer's build is yours",
    )
    parser.add_argument("--peer", action="append", default=[], metavar="NAME=URL|COMMAND", help="repeatable")
    parser.add_argument("--workload", action="append", choices=NAMES, help="repeatable; default: all")
    parser.add_argument("--rounds", type=int, default=3, help="each at every server in turn; the median counts")
    parser.add_argument("--seed", type=int, help="of the prompts; default: from the clock")
    parser.add_argument("--no-starts", action="store_true", help="do not measure starting twice")
    parser.add_argument("--timeout-s", type=float, default=300.0, help="longest wait for one chunk")
    parser.add_argument("--json", metavar="FILE", type=Path, help="write every round's numbers there")
    options = parser.parse_args(arguments)
    if options.rounds < 1:
        parser.error("--rounds must be at least 1")
    return options


async def cached_prompt(server: Server, rng: random.Random) -> list[Record]:
    """A prompt of about 1,400 tokens once, then 8 times with another question behind it, one after the other."""
    prompt = prose(rng, SHARED_WORDS)
    await server.complete(prompt, max_tokens=2)
    return [await server.complete(f"{prompt}\n\nQuestion {i}:", max_tokens=2) for i in range(8)]


async def measure(name: str, server: Server, rng: random.Random) -> tuple[Summary, float, str]:
    """A round of a workload: its summary, the number that is compared, and why that is not one ("": it is)."""
    try:
        workload = cached_prompt if name == CACHED else WORKLOADS["single" if name == UNGUESSED else name]
        records = await workload(server, rng)
    except SystemExit as refused:  # a constraint that the server does not know
        return summarise(name, [Record(started=0.0, ended=1.0, error=str(refused))]), math.nan, str(refused)
    summary = summarise(name, records)
    if summary.errors:
        return summary, math.nan, f"{summary.errors} of {summary.requests} failed: {summary.first_error}"
    if name == CACHED:
        return summary, percentile([r.ttft_s or math.nan for r in records], 50) * 1000, ""
    return summary, summary.requests / summary.wall_s if name in BY_ANSWERS else summary.tokens_per_s, ""


def median(values: Sequence[float]) -> float:
    """NaN as soon as one is: a server that fails once has no figure."""
    return math.nan if any(math.isnan(value) for value in values) else statistics.median(values)


def ratio(values: Sequence[float], less_is_better: bool) -> float:
    """How many times better the first is than the best of the others; NaN where there is none."""
    peers = [value for value in values[1:] if not math.isnan(value)]
    if not peers or math.isnan(values[0]):
        return math.nan
    return min(peers) / values[0] if less_is_better else values[0] / max(peers)


def row(name: str, unit: str, values: Sequence[float], less_is_better: bool) -> str:
    cells = "".join(f"{'-' if math.isnan(value) else format(value, ',.1f'):>14}" for value in values)
    times = ratio(values, less_is_better)
    return f"{name:<14}{unit:<12}{cells}{'-' if math.isnan(times) else format(times, '.2f'):>10}"


async def run(options: argparse.Namespace, targets: list[Target], unguessed: Target | None) -> dict[str, Any]:
    """`targets`: radixrt, then its peers; `unguessed`: the radixrt that takes its place in that workload."""
    seed = options.seed if options.seed is not None else time.time_ns() % 2**32
    everybody = [*targets, *([unguessed] if unguessed else [])]
    timeout_s = options.timeout_s
    servers = {each.name: Server(each.url, None, None, ignore_eos=True, timeout_s=timeout_s) for each in everybody}
    report: dict[str, Any] = {"seed": seed, "rounds": options.rounds, "workloads": {}}
    try:
        for server in servers.values():
            await server.open()
        for name in wanted(options):
            columns = [unguessed, *targets[1:]] if unguessed and name == UNGUESSED else targets
            found: list[list[tuple[Summary, float, str]]] = [[] for _ in columns]
            for number in range(options.rounds):
                for rounds, target in zip(found, columns, strict=True):
                    server = servers[target.name]
                    with alone(target, everybody):
                        await server.complete("Hello", max_tokens=2)  # not counted: it has just been woken
                        rounds.append(await measure(name, server, random.Random(f"{seed}/{name}/{number}")))
            values = [median([value for _, value, _ in rounds]) for rounds in found]
            unit = "ms" if name == CACHED else "answers/s" if name in BY_ANSWERS else "tokens/s"
            print(row(name, unit, values, name == CACHED), flush=True)
            for target, rounds in zip(targets, found, strict=True):
                why = next((why for _, _, why in rounds if why), None)
                if why:
                    print(f"  {target.name}: {why[:200]}")
            report["workloads"][name] = {
                target.name: [
                    summary.row() | {"compared": None if math.isnan(value) else value} for summary, value, _ in rounds
                ]
                for target, rounds in zip(targets, found, strict=True)
            }
    finally:
        for server in servers.values():
            await server.close()
    return report


def wanted(options: argparse.Namespace) -> list[str]:
    """The workloads; a radixrt that was found running cannot be told to guess nothing."""
    return [name for name in options.workload or NAMES if name != UNGUESSED or not options.radixrt]


def made_with(targets: Sequence[Target]) -> dict[str, str]:
    """What the figures come from: the CPU; of a radixrt what it computes with, of another server its command or URL."""
    return {"CPU": machine.name()} | {target.name: computes(target) for target in targets}


def computes(target: Target) -> str:
    """Of a radixrt: instruction set, form of the weights, number type of the KV cache; then the command, or the URL."""
    try:
        answer = httpx.get(f"{target.url}/server_info", timeout=10)
        model = answer.json()["model"] if answer.status_code == 200 else {}
    except (httpx.HTTPError, ValueError, KeyError):
        model = {}
    parts = [model.get("description") or f"{model.get('dtype')} on {model.get('device')}"] if model else []
    return "; ".join([*parts, " ".join([*_assignments(target), *target.command]) or target.url])


def _assignments(target: Target) -> list[str]:
    return [f"{name}={value}" for name, value in target.environment.items() if name != "RADIXRT_HOME"]


def start_all(targets: Sequence[Target], twice: bool) -> dict[str, list[float]]:
    """Start what has a command, one after the other; with `twice`, end each once in between."""
    starts: dict[str, list[float]] = {}
    for target in targets:
        if not target.command:
            continue
        starts[target.name] = [target.start()]
        if twice:
            target.stop()
            starts[target.name].append(target.start())
    return starts


def main() -> int:
    options = parse()
    peers = [Target.of(spec) for spec in options.peer]
    with tempfile.TemporaryDirectory(prefix="radixrt-compare-") as home:
        if options.radixrt:
            ours = Target.of(f"radixrt={options.radixrt}")
        else:
            from radixrt.checkpoint import resolve

            # With a cache directory of its own the first start compiles kernels and packs weights, the second does not.
            model = str(resolve(options.model))
            ours = radixrt(model, *options.option, home=Path(home), cpu=options.cpu)
        targets = [ours, *peers]
        unguessed = None
        if UNGUESSED in wanted(options):
            name = "radixrt, no guesses"
            unguessed = radixrt(model, *options.option, NO_GUESSES, home=Path(home), name=name, cpu=options.cpu)
        try:
            starts = start_all(targets, twice=not options.no_starts)
            if unguessed:
                unguessed.start()
            figures = made_with(targets)
            print("\n".join(f"{name}: {value}" for name, value in figures.items()))
            names = "".join(f"{target.name:>14}" for target in targets)
            print(f"{HEAD[0]:<14}{HEAD[1]:<12}{names}{'ratio':>10}", flush=True)
            for number, label in enumerate(("first start", "second start")):
                values = [dict(enumerate(starts.get(target.name, []))).get(number, math.nan) for target in targets]
                if not all(map(math.isnan, values)):
                    print(row(label, "s", values, less_is_better=True), flush=True)
            report = asyncio.run(run(options, targets, unguessed)) | {"starts": starts, "made with": figures}
        finally:
            for target in (*targets, *([unguessed] if unguessed else [])):
                target.stop()
    if options.json:
        options.json.write_text(json.dumps(report))
    ours_failed = any(r["errors"] for rounds in report["workloads"].values() for r in next(iter(rounds.values())))
    return 1 if ours_failed else 0


if __name__ == "__main__":
    sys.exit(main())
