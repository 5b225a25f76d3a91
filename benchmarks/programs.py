"""Programs inside the engine beside the same work by HTTP chat requests to the same engine, interleaved in one run.

    python benchmarks/programs.py [--model smollm2-135m] [--rounds 5]

Each workload is run as a program (`radixrt.lang`) and as requests of an HTTP client, which sends the whole conversation
each time, as chat clients do. Both write the same number of tokens (`ignore_eos`), but for json, whose schema ends it.
The two take turns in changing order, over an empty cache. Ratios are medians over the rounds, of a round's two values:
below 1 the program takes less. Beside wall time there are the counts that do not depend on who else uses the machine:
steps of the model, prompt tokens computed, and CPU seconds of all processes.
"""

from __future__ import annotations

import argparse
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import psutil
import uvicorn

import radixrt
from radixrt.lang import ProgramState, assistant, function, gen, select, system, user
from radixrt.server.app import create_app

POLICY = "You work for a harbour. " + "Boats under nine metres moor at the inner pier; others wait outside. " * 30
SCHEMA = {
    "type": "object",
    "properties": {"boat": {"type": "string", "maxLength": 12}, "metres": {"type": "integer"}},
    "required": ["boat", "metres"],
    "additionalProperties": False,
}
EXAMPLES = "".join(f"Ticket: Berth {i} is {what}.\nLabel: {label}\n" for i, (what, label) in enumerate(
    [("broken", "repair"), ("too dear", "price"), ("taken", "place")] * 6
))  # fmt: skip
LABELS = ["repair", "price", "place"]
FREE: dict[str, Any] = {"temperature": 0, "ignore_eos": True}


@function
def six(s: ProgramState) -> None:
    for i in range(6):
        s += user(f"Name boat {i}.") + assistant(gen(f"g{i}", max_tokens=8, **FREE))


@function
def agents(s: ProgramState) -> None:
    s += system(POLICY)
    forks = s.fork(8)
    for i, fork in enumerate(forks):
        for turn in range(2):
            fork += user(f"Agent {i}, turn {turn}: what next?") + assistant(gen(f"a{turn}", max_tokens=12, **FREE))
    forks.join()


@function
def tree(s: ProgramState) -> None:
    s += system(POLICY) + user("How do we make room?")
    for level in range(2):
        forks = s.fork(3)
        for i, fork in enumerate(forks):
            fork += assistant(f"Idea {level}{i}:" + gen("idea", max_tokens=10, **FREE))
        forks.join()
        s += assistant(forks["idea"][0]) + user("Go on.")


@function
def labels(s: ProgramState) -> None:
    s += EXAMPLES + "Ticket: The crane fell over.\nLabel: " + select("label", LABELS)


@function
def records(s: ProgramState) -> None:
    s += system("You write records.")
    forks = s.fork(6)
    for i, fork in enumerate(forks):
        fork += user(f"The Anna{i} is {7 + i} metres long.")
        fork += assistant(gen("record", json_schema=SCHEMA, max_tokens=40, temperature=0))
    forks.join()


class Chat:
    """A client over HTTP."""

    def __init__(self, url: str) -> None:
        self._http = httpx.Client(base_url=url, timeout=120)

    def ask(self, messages: list[dict[str, str]], **fields: Any) -> str:
        body = {"model": "model", "messages": messages, "temperature": 0, **fields}
        answer = self._http.post("/v1/chat/completions", json=body)
        answer.raise_for_status()
        return str(answer.json()["choices"][0]["message"]["content"])

    def six(self) -> None:
        said: list[dict[str, str]] = []
        for i in range(6):
            said.append({"role": "user", "content": f"Name boat {i}."})
            text = self.ask(said, max_tokens=8, ignore_eos=True)
            said.append({"role": "assistant", "content": text})

    def agents(self) -> None:
        def agent(i: int) -> None:
            said = [{"role": "system", "content": POLICY}]
            for turn in range(2):
                said.append({"role": "user", "content": f"Agent {i}, turn {turn}: what next?"})
                said.append({"role": "assistant", "content": self.ask(said, max_tokens=12, ignore_eos=True)})

        _at_once(agent, 8)

    def tree(self) -> None:
        said = [{"role": "system", "content": POLICY}, {"role": "user", "content": "How do we make room?"}]
        for level in range(2):

            def idea(i: int, level: int = level, said: list[dict[str, str]] = said) -> str:
                opened = [*said, {"role": "assistant", "content": f"Idea {level}{i}:"}]
                fields = {"continue_final_message": True, "add_generation_prompt": False}
                return self.ask(opened, max_tokens=10, ignore_eos=True, **fields)

            ideas = _at_once(idea, 3)
            said += [{"role": "assistant", "content": ideas[0]}, {"role": "user", "content": "Go on."}]

    def labels(self) -> None:
        prompt = EXAMPLES + "Ticket: The crane fell over.\nLabel: "
        body = {"model": "model", "prompt": prompt, "temperature": 0, "max_tokens": 6}
        body["structured_outputs"] = {"choice": LABELS}
        self._http.post("/v1/completions", json=body).raise_for_status()

    def records(self) -> None:
        def record(i: int) -> None:
            said = [{"role": "system", "content": "You write records."}]
            said.append({"role": "user", "content": f"The Anna{i} is {7 + i} metres long."})
            form = {"type": "json_schema", "json_schema": {"name": "record", "strict": True, "schema": SCHEMA}}
            self.ask(said, max_tokens=40, response_format=form)

        _at_once(record, 6)


def _at_once(work: Callable[[int], Any], count: int) -> list[Any]:
    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(work, range(count)))


@contextmanager
def _served(engine: radixrt.Engine, make: Callable[..., Any]) -> Iterator[str]:
    """The engine over HTTP, on a free port of this machine."""
    server = uvicorn.Server(uvicorn.Config(make(engine), port=0, log_level="warning"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join()


@dataclass(frozen=True)
class Cost:
    """Of one run."""

    wall_s: float
    cpu_s: float
    """Of this process and the engine's."""
    steps: int
    computed: int
    """Prompt tokens that were not cached."""


def _cpu_s(processes: list[psutil.Process]) -> float:
    """CPU seconds of processes so far."""
    return sum(spent.user + spent.system for spent in (process.cpu_times() for process in processes))


def measure(engine: radixrt.Engine, family: list[psutil.Process], run: Callable[[], object]) -> Cost:
    engine.flush()
    before, cpu, begun = engine.stats(), _cpu_s(family), time.perf_counter()
    run()
    wall = time.perf_counter() - begun
    cpu, after = _cpu_s(family) - cpu, engine.stats()
    prompt, cached = (getattr(after, n) - getattr(before, n) for n in ("prompt_tokens", "cached_tokens"))
    return Cost(wall, cpu, after.steps - before.steps, prompt - cached)


def main() -> None:
    pairs = {"six gens": (six, "six"), "agents": (agents, "agents"), "tree of thought": (tree, "tree"),
             "few-shot select": (labels, "labels"), "json": (records, "records")}  # fmt: skip
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--only", action="append", choices=list(pairs), help="a workload; may be given more than once")
    options = parser.parse_args()
    with radixrt.Engine(options.model, served_model_name="model") as engine, _served(engine, create_app) as url:
        chat, me = Chat(url), psutil.Process()
        family = [me, *me.children(recursive=True)]
        heads = ("program s", "http s", "ratio", "cpu ratio", "steps", "computed")
        print(f"{'workload':16}" + "".join(f"{head:>12}" for head in heads))
        for name, (program, other) in pairs.items():
            if options.only and name not in options.only:
                continue
            runs = (lambda p=program: p.run(backend=engine), getattr(chat, other))
            rounds: list[tuple[Cost, Cost]] = []
            for number in range(options.rounds + 1):
                costs = {i: measure(engine, family, runs[i]) for i in ((0, 1) if number % 2 else (1, 0))}
                rounds.append((costs[0], costs[1]))
            here, there = zip(*rounds[1:], strict=True)  # the first round warms up
            middle = statistics.median
            row = (
                f"{middle(c.wall_s for c in here):.3f}",
                f"{middle(c.wall_s for c in there):.3f}",
                f"{middle(a.wall_s / b.wall_s for a, b in rounds[1:]):.2f}",
                f"{middle(a.cpu_s / b.cpu_s if b.cpu_s else 1.0 for a, b in rounds[1:]):.2f}",
                f"{middle(c.steps for c in here):g}/{middle(c.steps for c in there):g}",
                f"{middle(c.computed for c in here):g}/{middle(c.computed for c in there):g}",
            )
            print(f"{name:16}" + "".join(f"{field:>12}" for field in row), flush=True)


if __name__ == "__main__":
    main()
