"""`radixrt bench` over an engine that counts what it is asked."""

from __future__ import annotations

import io
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from radixrt import SamplingParams
from radixrt.cli.bench import SIZES, Run, measure, parts_table, table


@dataclass
class Counting:
    prompts: list[str] = field(default_factory=list)

    def generate(self, prompt: str, params: SamplingParams) -> Any:
        self.prompts.append(prompt)
        usage = SimpleNamespace(completion_tokens=params.max_tokens, prompt_tokens=10, cached_tokens=4, ttft_s=0.25)
        return SimpleNamespace(usage=usage)

    def stats(self) -> Any:
        count = len(self.prompts)
        return SimpleNamespace(steps=10 * count, step_parts={"products": 0.1 * count, "sample": 0.01 * count})


@pytest.mark.parametrize("run", list(Run))
def test_a_run(run: Run) -> None:
    engine: Any = Counting()
    outcome = measure(engine, run, 7, seed=3)
    requests, _, words, shared = SIZES[run]
    asked = engine.prompts[1:]
    assert len(asked) == requests == len(set(asked)) and outcome.tokens == 7 * requests
    assert all(len(prompt.split()) == words + shared for prompt in asked)
    assert len({" ".join(prompt.split()[:shared]) for prompt in asked}) == 1
    assert outcome.steps == 10 * requests and outcome.parts["products"] == pytest.approx(0.1 * requests)
    assert measure(Counting(), run, 7, seed=3).prompt_tokens == 10 * requests  # type: ignore[arg-type]


def test_tables() -> None:
    engine: Any = Counting()
    outcomes = [measure(engine, run, 7, seed=0) for run in (Run.single, Run.batch)]
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(table(outcomes))
    console.print(parts_table(outcomes))
    text = console.export_text()
    assert "single" in text and "batch" in text and "products" in text and "10.00 (" in text
