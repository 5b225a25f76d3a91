"""Programs inside the engine beside the same work by HTTP chat requests to the same engine, interleaved in one run.

    python benchmarks/programs.py [--model smollm2-135m] [--rounds 5]

Each workload is run as a program (`radixrt.lang`) and as requests of an HTTP client, which sends the whole conversation
each time, as chat clients do. Both write the same number of tokens (`ignore_eos`), but for json, whose schema ends it.
The figure is the ratio of the medians of their wall times: below 1 the program is faster.
"""

from __future__ import annotations

import argparse
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import httpx
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    pairs = {"six gens": (six, "six"), "agents": (agents, "agents"), "tree of thought": (tree, "tree"),
             "few-shot select": (labels, "labels"), "json": (records, "records")}  # fmt: skip
    with radixrt.Engine(options.model, served_model_name="model") as engine, _served(engine, create_app) as url:
        chat = Chat(url)
        print(f"{'workload':16} {'program s':>10} {'http s':>8} {'ratio':>6}")
        for name, (program, other) in pairs.items():
            times: tuple[list[float], list[float]] = ([], [])
            for _ in range(options.rounds):
                for i, run in enumerate((lambda p=program: p.run(backend=engine), getattr(chat, other))):
                    engine.flush()
                    begun = time.perf_counter()
                    run()
                    times[i].append(time.perf_counter() - begun)
            here, there = (statistics.median(column) for column in times)
            print(f"{name:16} {here:10.3f} {there:8.3f} {here / there:6.2f}", flush=True)


if __name__ == "__main__":
    main()
