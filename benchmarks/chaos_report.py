"""What a chaos run found, and how it is told: a table for benchmarks/README.md, faults one a line."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from radixrt.runner.threads import KEPT_BYTES

ROOM_BYTES = 96 * 2**20
"""By so much memory may differ between two halves of a calm period: caches fill. A runner may keep KEPT_BYTES more."""
SETTLED_S = 5.0
"""A process that was started again has its memory after so long."""
SERVER = "server"
RUNNER = "runner"
ENGINE = ("tokenizer", "scheduler", RUNNER)
"""Processes that an outage starts again."""

Outcome: TypeAlias = Literal["answered", "outage", "fault"]


@dataclass
class Outage:
    victim: str
    began: float
    noticed: float = 0.0
    """Until /ready said no, in seconds."""
    ended: float | None = None
    """When requests were taken again; None: not yet."""

    @property
    def all_down(self) -> bool:
        """Whether requests fail meanwhile: a compile worker is replaced, and nobody notices."""
        return self.victim in ENGINE


@dataclass
class Report:
    """What a run found; `faults` is empty when all is well."""

    counts: Counter[str] = field(default_factory=Counter)
    """Requests by kind."""
    outcomes: Counter[Outcome] = field(default_factory=Counter)
    """How they ended: as they must, in an error because of an outage, or at fault."""
    faults: list[str] = field(default_factory=list)
    outages: list[Outage] = field(default_factory=list)
    memory: list[tuple[float, dict[str, int]]] = field(default_factory=list)
    """(time, bytes by process): resident, without what they share (the KV pool, files); compile workers together."""
    seconds: float = 0.0
    ended: bool = False
    """Whether the run came to its end, so that what is left was looked for."""

    @property
    def explained(self) -> int:
        """Requests that ended in an error because of an outage."""
        return self.outcomes["outage"]

    def fault(self, text: str) -> None:
        if len(self.faults) < 50:
            self.faults.append(text)

    def progress(self) -> str:
        ends = f"{self.outcomes.total()} of {self.counts.total()} requests ended"
        return f"{ends}, killed {[outage.victim for outage in self.outages]}, {len(self.faults)} faults"


def judge_memory(report: Report) -> None:
    """The server over the whole run, the engine since its last start: halves may differ by what is allowed."""
    died = [outage.ended or outage.began for outage in report.outages if outage.all_down]
    began = max(died, default=0.0) + SETTLED_S
    warm = report.memory[len(report.memory) // 5 :]
    for name in names(report):
        values = [sizes[name] for at, sizes in warm if name in sizes and (name == SERVER or at > began)]
        half = len(values) // 2
        room = ROOM_BYTES + (KEPT_BYTES if name == RUNNER else 0)
        if half and (grown := statistics.median(values[half:]) - statistics.median(values[:half])) > room:
            report.fault(f"the memory of the {name} grew by {grown / 2**20:.0f} MiB")


def names(report: Report) -> list[str]:
    """The processes that were seen, the server first."""
    return list(dict.fromkeys(name for _, sizes in report.memory for name in sizes))


def show(report: Report) -> str:
    """The table, and the faults below it."""
    lines = ["| what | found |", "|---|---|", *(f"| {what} | {found} |" for what, found in _rows(report))]
    kinds = ", ".join(f"{name} {count}" for name, count in sorted(report.counts.items()))
    lines += ["", f"Requests of each kind: {kinds}.", ""]
    return "\n".join(lines + ([f"FAULT {fault}" for fault in report.faults] or ["no faults"]))


def _rows(report: Report) -> Iterator[tuple[str, str]]:
    total, ends = report.counts.total(), report.outcomes
    found = f"{total:,}: {ends['answered']:,} ended as they must, {ends['outage']:,} in an error of an outage"
    bad = f"{ends['fault']:,} at fault, {total - ends.total():,} without an end"
    yield f"requests, of {len(report.counts)} kinds, in {report.seconds:.0f} s", f"{found}, {bad}"
    for victim in dict.fromkeys(outage.victim for outage in report.outages):
        hits = [outage for outage in report.outages if outage.victim == victim]
        if not hits[0].all_down:
            yield f"kill -9 of a compile worker, {len(hits)} x", "replaced; nobody else noticed"
            continue
        noticed = ", ".join(f"{outage.noticed:.2f}" for outage in hits)
        again = ", ".join(f"{o.ended - o.began:.1f}" if o.ended is not None else "never" for o in hits)
        yield f"kill -9 of the {victim}: noticed after, requests taken again after", f"{noticed} s; {again} s"
    for name in names(report):
        values = [sizes[name] / 2**20 for _, sizes in report.memory if name in sizes]
        fifth = max(1, len(values) // 5)
        first, last = statistics.median(values[:fifth]), statistics.median(values[-fifth:])
        yield f"memory of the {name}, first and last fifth", f"{first:.0f}, {last:.0f} MiB"
    left = (
        "no row, slot or request held, no counter moving, no process left, exit status 0, no traceback in the log"
        if report.ended and not report.faults
        else "see the faults below"
    )
    yield "at the end", left
