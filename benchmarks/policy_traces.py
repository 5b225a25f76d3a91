"""Traces for `policy_sim.py`: who asks what and when, made from a seed or read from a file."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import msgspec


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """One request of a trace; a line of a trace file is one as JSON."""

    id: int
    tokens: list[int]
    """Token ids of the prompt (1 .. VOCABULARY - 1); with `after`, what follows that job's prompt and output."""
    at_s: float = 0.0
    """When it arrives; with `after`, how long after that job's end."""
    after: int | None = None
    max_tokens: int = 16
    priority: int = 0
    timeout_s: float | None = None
    salt: str | None = None
    kind: str = ""
    """Jobs of one kind have a line of their own in what is printed about waiting."""


class Trace(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    jobs: list[Job]
    kv_tokens: int


VOCABULARY = 32_000


class _Writer:
    """Makes jobs one after another."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.jobs: list[Job] = []

    def text(self, length: int) -> list[int]:
        return [self.rng.randrange(1, VOCABULARY) for _ in range(length)]

    def job(self, tokens: list[int], **fields: object) -> int:
        self.jobs.append(msgspec.convert({"id": len(self.jobs), "tokens": tokens, **fields}, Job))
        return len(self.jobs) - 1


def agents(seed: int) -> Trace:
    """12 agents over one prompt of 1,000 tokens, 6 turns each, with tools that take a while."""
    writer = _Writer(seed)
    system = writer.text(1000)
    for _ in range(12):
        last = writer.job([*system, *writer.text(80)], at_s=writer.rng.uniform(0, 2), max_tokens=48)
        for _ in range(5):
            pause = writer.rng.uniform(0.2, 2)
            last = writer.job(writer.text(60), at_s=pause, after=last, max_tokens=48)
    return Trace(name="agents", jobs=writer.jobs, kv_tokens=10_000)


def few_shot(seed: int) -> Trace:
    """8 tasks with 900 tokens of examples each, 240 short questions, all at once: the pool holds three of the tasks."""
    writer = _Writer(seed)
    tasks = [writer.text(900) for _ in range(8)]
    for _ in range(240):
        writer.job([*writer.rng.choice(tasks), *writer.text(50)], at_s=writer.rng.uniform(0, 1), max_tokens=16)
    return Trace(name="few-shot", jobs=writer.jobs, kv_tokens=4_000)


def tree_of_thought(seed: int) -> Trace:
    """8 problems of 700 tokens, 3 thoughts a step, 3 steps deep: a thought continues what was thought before it."""
    writer = _Writer(seed)
    for _ in range(8):
        frontier = [writer.job(writer.text(700), at_s=writer.rng.uniform(0, 1), max_tokens=48)]
        for _ in range(3):
            frontier = [
                writer.job(writer.text(20), after=parent, max_tokens=48) for parent in frontier for _ in range(3)
            ]
    return Trace(name="tree-of-thought", jobs=writer.jobs, kv_tokens=6_000)


def chat(seed: int) -> Trace:
    """48 conversations of 4 turns under 3 system prompts, with pauses in which a person reads."""
    writer = _Writer(seed)
    systems = [writer.text(600) for _ in range(3)]
    for _ in range(48):
        start = [*writer.rng.choice(systems), *writer.text(40)]
        last = writer.job(start, at_s=writer.rng.uniform(0, 10), max_tokens=64)
        for _ in range(3):
            last = writer.job(writer.text(40), at_s=writer.rng.uniform(1, 6), after=last, max_tokens=64)
    return Trace(name="chat", jobs=writer.jobs, kv_tokens=16_000)


def bursty_cold(seed: int) -> Trace:
    """Warm requests over one prompt of 1,000 tokens, a little more than can be done, and bursts of cold ones."""
    writer = _Writer(seed)
    warm = writer.text(1000)
    for i in range(900):
        writer.job([*warm, *writer.text(40)], at_s=i / 30, max_tokens=16, kind="warm")
    for burst in (5.0, 15.0):
        for _ in range(10):
            writer.job(writer.text(300), at_s=burst, max_tokens=16, kind="cold")
    return Trace(name="bursty-cold", jobs=writer.jobs, kv_tokens=8_000)


TRACES: dict[str, Callable[[int], Trace]] = {
    "agents": agents,
    "few-shot": few_shot,
    "tree-of-thought": tree_of_thought,
    "chat": chat,
    "bursty-cold": bursty_cold,
}


def read_trace(path: Path, kv_tokens: int) -> Trace:
    """A file with one Job a line. Raises ValueError, naming the line, for what is none."""
    jobs = []
    seen: set[int] = set()
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if not line.strip():
            continue
        try:
            job = msgspec.json.decode(line, type=Job)
        except msgspec.DecodeError as error:
            raise ValueError(f"{path.name}, line {number}: {error}") from error
        if job.id in seen or (job.after is not None and job.after not in seen):
            raise ValueError(f"{path.name}, line {number}: ids must be unique, and `after` must name an earlier line")
        if not job.tokens or not 0 < min(job.tokens) <= max(job.tokens) < VOCABULARY:
            raise ValueError(f"{path.name}, line {number}: tokens must hold ids between 1 and {VOCABULARY - 1}")
        seen.add(job.id)
        jobs.append(job)
    if not jobs:
        raise ValueError(f"{path.name} holds no job")
    return Trace(name=path.stem, jobs=jobs, kv_tokens=kv_tokens)
