"""A model's shape at a context's length, radixrt beside other servers: prefill, decode of one stream and of several.

    python benchmarks/shapes.py llama-8b.gguf --context 1024 --context 8192 --cpu avx2 \\
      --peer "llama.cpp=llama-server -m llama-8b.gguf --port {port} -t 2 -np 8 -c 73728"

Any GGUF file will do, random weights included: radixrt guesses nothing here (`--draft-sources forced`). Each stream has
a prompt of its own, so that nothing is shared: the peer needs as many slots, and context for all of them together.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from compare import NO_GUESSES, made_with, median, row, start_all
from measure import Record, Server
from memory import resident
from servers import Target, alone, radixrt
from workloads import prose

WORDS_A_TOKEN = 0.85
"""For the SmolLM2 tokenizer, so that prompt and answer stay below the context; rates count the server's own tokens."""


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("model", help="a GGUF file")
    parser.add_argument(
        "--context", type=int, action="append", help="tokens of a prompt, about; repeatable; default: 1024"
    )
    parser.add_argument("--streams", type=int, action="append", help="at once; repeatable; default: 1 and 8")
    parser.add_argument("--tokens", type=int, default=48, help="of an answer")
    parser.add_argument("--rounds", type=int, default=1, help="each at every server in turn; the median counts")
    parser.add_argument("--cpu", metavar="RUNG", help="cap radixrt's instruction sets (RADIXRT_CPU)")
    parser.add_argument("--option", action="append", default=[], help="of `radixrt serve`, repeatable")
    parser.add_argument("--peer", action="append", default=[], metavar="NAME=URL|COMMAND", help="repeatable")
    parser.add_argument("--timeout-s", type=float, default=3600.0, help="longest wait for one chunk")
    parser.add_argument("--json", metavar="FILE", type=Path, help="write every round's numbers there")
    return parser.parse_args(arguments)


def together(records: Sequence[Record]) -> float:
    """Tokens a second of all streams, from when the last one has begun to when the first one ends.

    A chunk counts as its stream's average number of tokens. NaN where they never run all at once.
    """
    arrivals = [list(_arrivals(record)) for record in records]
    begin, end = max(times[0] for times in arrivals), min(times[-1] for times in arrivals)
    if end <= begin:
        return float("nan")
    tokens = 0.0
    for record, times in zip(records, arrivals, strict=True):
        tokens += sum(begin < at <= end for at in times) * record.completion_tokens / len(times)
    return tokens / (end - begin)


def _arrivals(record: Record) -> Sequence[float]:
    if record.error is not None or record.ttft_s is None:
        raise SystemExit(f"a request failed: {record.error or 'no text came'}")
    times = [record.started + record.ttft_s]
    for gap in record.gaps_s:
        times.append(times[-1] + gap)
    return times


async def measure(server: Server, context: int, streams: int, tokens: int, rng: random.Random) -> tuple[float, float]:
    """Tokens/s of prefill, one prompt after the other, then of decode over these prompts, all streams at once."""
    prompts = [prose(rng, int(context * WORDS_A_TOKEN)) for _ in range(streams)]
    cold = [await server.complete(prompt, max_tokens=1) for prompt in prompts]
    prefill = sum(record.prompt_tokens for record in cold) / sum(
        _arrivals(record)[0] - record.started for record in cold
    )
    warm = await asyncio.gather(*(server.complete(prompt, max_tokens=tokens) for prompt in prompts))
    return prefill, together(warm)


async def run(options: argparse.Namespace, targets: Sequence[Target]) -> dict[str, Any]:
    seed = time.time_ns() % 2**32
    servers = [Server(target.url, None, None, ignore_eos=True, timeout_s=options.timeout_s) for target in targets]
    report: dict[str, Any] = {}
    try:
        for server in servers:
            await server.open()
        for context in options.context or [1024]:
            for streams in options.streams or [1, 8]:
                found: list[list[tuple[float, float]]] = [[] for _ in targets]
                for number in range(options.rounds):
                    for rounds, server, target in zip(found, servers, targets, strict=True):
                        rng = random.Random(f"{seed}/{context}/{streams}/{number}")
                        with alone(target, targets):
                            await server.complete("Hello", max_tokens=2)  # not counted: it has just been woken
                            rounds.append(await measure(server, context, streams, options.tokens, rng))
                report[f"{context}, {streams}"] = {t.name: rounds for t, rounds in zip(targets, found, strict=True)}
                for index, label in enumerate(("prefill", f"decode x{streams}")):
                    values = [median([each[index] for each in rounds]) for rounds in found]
                    print(f"{context:>8} {row(label, 'tokens/s', values, less_is_better=False)}", flush=True)
    finally:
        for server in servers:
            await server.close()
    return report


def peaks_mib(targets: Sequence[Target]) -> list[float]:
    """Of each server the peaks of its processes' resident memory, added up, mapped files included."""
    return [
        sum(sizes["VmHWM"] for sizes in resident(target).values()) if target.process else float("nan")
        for target in targets
    ]


def main() -> int:
    options = parse()
    ours = radixrt(options.model, *options.option, NO_GUESSES, cpu=options.cpu)
    targets = [ours, *(Target.of(spec) for spec in options.peer)]
    try:
        start_all(targets, twice=False)
        figures = made_with(targets)
        print("\n".join(f"{name}: {value}" for name, value in figures.items()))
        print(f"{'context':>8} {'':<26}" + "".join(f"{target.name:>14}" for target in targets) + f"{'ratio':>10}")
        loaded = peaks_mib(targets)
        print(f"{'':>8} {row('at load', 'MiB', loaded, less_is_better=True)}", flush=True)
        report = asyncio.run(run(options, targets))
        after = peaks_mib(targets)
        print(f"{'':>8} {row('at the end', 'MiB', after, less_is_better=True)}", flush=True)
    finally:
        for target in targets:
            target.stop()
    if options.json:
        options.json.write_text(
            json.dumps({"made with": figures, "rounds": report, "peaks, MiB": {"at load": loaded, "at the end": after}})
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
