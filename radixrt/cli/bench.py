"""`radixrt bench`: short synthetic runs on a model, and where the time of their steps goes."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import StrEnum, auto
from typing import TYPE_CHECKING, Annotated

import typer

from radixrt.cli.options import EngineOptions, with_engine_options
from radixrt.cli.progress import Stages

if TYPE_CHECKING:
    from rich.table import Table

    from radixrt import Engine

COLUMNS = ("run", "requests", "tokens/s", "ms a step", "rows a step", "first token, ms", "prompt", "cached")
_TEXT = (
    "the river and a small boat under old trees near our town where people work every day with light hands some stone "
    "walls stand by open fields while children read long books about distant lands"
)
WORDS = _TEXT.split()


class Run(StrEnum):
    single = auto()
    batch = auto()
    shared = auto()


SIZES = {Run.single: (2, 1, 40, 0), Run.batch: (32, 32, 80, 0), Run.shared: (32, 16, 20, 1200)}
"""Requests, at once, words of each prompt, words that all share in front of them."""


@dataclass(frozen=True)
class Outcome:
    """One run's figures."""

    run: Run
    requests: int
    tokens: int
    wall_s: float
    ttft_s: float
    prompt_tokens: int
    cached_tokens: int
    steps: int
    parts: dict[str, float]

    @property
    def row(self) -> tuple[str, ...]:
        steps = max(1, self.steps)
        return (
            self.run.value,
            f"{self.requests}",
            f"{self.tokens / self.wall_s:,.1f}",
            f"{self.wall_s / steps * 1000:.1f}",
            f"{self.tokens / steps:.1f}",
            f"{self.ttft_s * 1000:.0f}",
            f"{self.prompt_tokens:,}",
            f"{self.cached_tokens:,}",
        )


@with_engine_options
def bench(
    *,
    model: Annotated[str, typer.Argument(metavar="MODEL", help="Model to run.")] = "smollm2-135m",
    run: Annotated[list[Run] | None, typer.Option("--run", help="Which runs; repeatable. Default: all.")] = None,
    tokens: Annotated[int, typer.Option("--tokens", min=1, metavar="N", help="Tokens of each answer.")] = 64,
    seed: Annotated[int, typer.Option("--seed", metavar="N", help="Of the prompts.")] = 0,
    profile: Annotated[bool, typer.Option("--profile", help="Show where a step's time goes, by part.")] = False,
    engine_options: EngineOptions,
) -> None:
    """Measure a model on this machine: one stream, many at once, many over one prompt.

    Greedy, with prompts of common words that no cache holds yet. To compare
    servers, see benchmarks/ in the source.

    [dim]Example:[/dim]  radixrt bench smollm2-135m --profile
    """
    from rich.console import Console

    from radixrt import Engine

    with Stages() as stages, Engine(model, **engine_options, on_progress=stages) as engine:
        stages.close()
        outcomes = [measure(engine, each, tokens, seed) for each in run or list(Run)]
    console = Console()
    console.print(table(outcomes))
    if profile:
        console.print(parts_table(outcomes))


def measure(engine: Engine, run: Run, tokens: int, seed: int) -> Outcome:
    """One run on an engine that is idle."""
    from radixrt import SamplingParams

    requests, at_once, words, shared = SIZES[run]
    rng = random.Random(f"{seed}/{run.value}")
    stem = " ".join(rng.choices(WORDS, k=shared))
    prompts = [" ".join([stem, *rng.choices(WORDS, k=words)]) for _ in range(requests)]
    params = SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True)
    engine.generate("warm", SamplingParams(max_tokens=1))
    before, began = engine.stats(), time.perf_counter()
    with ThreadPoolExecutor(at_once) as pool:
        usages = [answer.usage for answer in pool.map(lambda prompt: engine.generate(prompt, params), prompts)]
    wall_s, after = time.perf_counter() - began, engine.stats()
    return Outcome(
        run=run,
        requests=requests,
        tokens=sum(usage.completion_tokens for usage in usages),
        wall_s=wall_s,
        ttft_s=sorted(usage.ttft_s for usage in usages)[(requests - 1) // 2],
        prompt_tokens=sum(usage.prompt_tokens for usage in usages),
        cached_tokens=sum(usage.cached_tokens for usage in usages),
        steps=after.steps - before.steps,
        parts={name: seconds - before.step_parts.get(name, 0.0) for name, seconds in after.step_parts.items()},
    )


def table(outcomes: Sequence[Outcome]) -> Table:
    from rich.table import Table

    made = Table(*COLUMNS)
    for outcome in outcomes:
        made.add_row(*outcome.row)
    return made


def parts_table(outcomes: Sequence[Outcome]) -> Table:
    """Milliseconds of a mean step by part, and its share of the run."""
    from rich.table import Table

    made = Table("part, ms a step", *(outcome.run.value for outcome in outcomes))
    for name in dict.fromkeys(name for outcome in outcomes for name in outcome.parts):
        cells = []
        for outcome in outcomes:
            seconds = outcome.parts.get(name, 0.0)
            cells.append(f"{seconds / max(1, outcome.steps) * 1000:.2f} ({seconds / outcome.wall_s:.0%})")
        made.add_row(name, *cells)
    return made
