"""The demo's three jobs: what each runs, and what it shows of the outcome."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from pydantic import ValidationError

from radixrt.demo import inputs
from radixrt.demo.programs import LABELS, Intake, desk, intake, triage
from radixrt.demo.screen import Screen
from radixrt.demo.tally import Tally
from radixrt.results import computing

if TYPE_CHECKING:
    from radixrt.engine import Engine
    from radixrt.lang import ProgramState

SHOWN_TURNS = 1
"""Turns printed of each agent; all of them run."""


def run_demo(engine: Engine, screen: Screen | None = None) -> None:
    """Run the jobs one after another on a ready engine, and print what came out of them and what it cost."""
    screen = screen or Screen()
    info = engine.info
    screen.line(f"{info.name}: {computing(info)}; {info.kv_tokens:,} KV tokens", "bold")
    screen.line("A model as small as the demo's is often wrong; what to look at are the numbers below its words.")
    agents, notes, tickets, policy = inputs.agents(), inputs.notes(), inputs.tickets(), inputs.policy()

    def show_agents(states: Sequence[ProgramState]) -> None:
        for agent, state in zip(agents, states, strict=True):
            for turn in range(SHOWN_TURNS):
                screen.turn("customer", agent.turns[turn], "cyan")
                screen.turn(agent.agent, state[f"answer{turn}"])

    def show_records(states: Sequence[ProgramState]) -> None:
        texts = [state.get("record", str) for state in states]
        for note, text in zip(notes, texts, strict=True):
            screen.turn("note", note, "cyan")
            screen.line(f"  {'record:':<10} {text}")
        screen.line(f"  {sum(map(validates, texts))} of {len(texts)} records validate against the schema")

    def show_tickets(states: Sequence[ProgramState]) -> None:
        labels = [state["label"] for state in states]
        for ticket, label in zip(tickets, labels, strict=True):
            screen.turn(label, ticket.text)
        agreed = sum(ticket.label == label for ticket, label in zip(tickets, labels, strict=True))
        screen.line(
            f"  {agreed} of {len(labels)} labels are those that a person gave (chance: {len(labels) // len(LABELS)})"
        )

    measure(
        engine, screen,
        f"1. {len(agents)} agents answer over one policy, {len(agents[0].turns)} turns each (the first is shown)",
        lambda: desk.run_batch([{"policy": policy, "turns": agent.turns} for agent in agents], backend=engine),
        show_agents,
    )  # fmt: skip
    measure(
        engine, screen,
        f"2. {len(notes)} notes become records under a JSON schema",
        lambda: intake.run_batch([{"note": note} for note in notes], backend=engine),
        show_records,
    )  # fmt: skip
    measure(
        engine, screen,
        f"3. {len(tickets)} tickets are sorted with select",
        lambda: triage.run_batch([{"ticket": ticket.text} for ticket in tickets], backend=engine),
        show_tickets,
    )  # fmt: skip
    screen.heading("The prefix tree: what each node adds to the text above it, and how often it was found")
    screen.tree(engine.tree())


def measure(
    engine: Engine,
    screen: Screen,
    title: str,
    run: Callable[[], Sequence[ProgramState]],
    show: Callable[[Sequence[ProgramState]], None],
) -> None:
    """Run one job, show what it brought, and then what it cost by the engine's own counters."""
    screen.heading(title)
    before, started = engine.stats(), time.perf_counter()

    def now() -> str:
        generated = engine.stats().generation_tokens - before.generation_tokens
        return f"{generated:,} tokens generated in {time.perf_counter() - started:.0f} s"

    with screen.waiting("running", now):
        states = run()
    seconds = time.perf_counter() - started
    tally = Tally.between(before, engine.stats(), seconds)
    show(states)
    screen.tally(tally)


def validates(text: str) -> bool:
    """Whether a record's text is JSON that satisfies the schema."""
    try:
        Intake.model_validate_json(text)
    except ValidationError:
        return False
    return True
