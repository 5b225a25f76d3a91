"""The policy simulator: its bounds against brute force, and what the default policy reaches on small traces."""

from __future__ import annotations

import random
from itertools import permutations
from pathlib import Path

import msgspec
import pytest

from benchmarks import policy_sim
from benchmarks.policy_bound import Served, belady_hits, unbounded_hits
from benchmarks.policy_sim import Simulation
from benchmarks.policy_traces import TRACES, Job, Trace, read_trace
from radixrt.scheduler.policies import PolicyOptions


def small(name: str, every: int = 3) -> Trace:
    """A third of a trace: whole conversations, at the same pace, with half the pool."""
    trace = TRACES[name](0)
    root: dict[int, int] = {}
    for job in trace.jobs:
        root[job.id] = job.id if job.after is None else root[job.after]
    roots = sorted(set(root.values()))
    kept = {number for i, number in enumerate(roots) if i % every == 0}
    jobs = [job for job in trace.jobs if root[job.id] in kept]
    return Trace(name=name, jobs=jobs, kv_tokens=max(trace.kv_tokens // 2, 3000))


@pytest.mark.parametrize("name", ["agents", "few-shot", "tree-of-thought", "chat"])
def test_the_default_policy_reaches_what_an_unbounded_cache_would(name: str) -> None:
    trace = small(name)
    outcome = Simulation(trace, PolicyOptions()).run()
    assert not outcome.failed and len(outcome.usage) == len(trace.jobs)
    assert outcome.hits >= 0.96 * unbounded_hits(outcome.served)


def test_ageing_bounds_the_wait_of_cold_requests_and_costs_no_hits() -> None:
    whole = TRACES["bursty-cold"](0)
    trace = Trace(name="one burst", jobs=[job for job in whole.jobs if job.at_s < 14], kv_tokens=whole.kv_tokens)
    bounded = Simulation(trace, PolicyOptions(max_wait_s=2.0)).run()
    unbounded = Simulation(trace, PolicyOptions(max_wait_s=1e9)).run()
    # A burst of ten is 1.6 s of work, which its last one waits for too.
    assert bounded.waited(99, "cold") < 2.0 + 2.0 < unbounded.waited(99, "cold")
    assert bounded.hits >= 0.96 * unbounded_hits(bounded.served)


def test_where_everybody_is_late_subtrees_still_do_not_alternate() -> None:
    trace = small("few-shot")
    late = Simulation(trace, PolicyOptions(max_wait_s=0.0)).run()
    fcfs = Simulation(trace, PolicyOptions(name="fcfs")).run()
    assert late.hits > 0.85 * unbounded_hits(late.served) > 1.1 * fcfs.hits


def test_a_simulation_is_the_same_each_time() -> None:
    first, second = (Simulation(small("tree-of-thought"), PolicyOptions()).run() for _ in range(2))
    assert first.usage == second.usage and first.computed == second.computed


def random_served(rng: random.Random) -> list[Served]:
    return [
        ([rng.randrange(2) for _ in range(rng.randrange(1, 5))], [rng.randrange(2) for _ in range(rng.randrange(1, 3))])
        for _ in range(5)
    ]


@pytest.mark.parametrize("seed", range(20))
def test_no_order_has_more_hits_than_the_unbounded_cache(seed: int) -> None:
    served = random_served(random.Random(seed))
    best = 0
    for order in permutations(served):
        known: set[tuple[int, ...]] = set()
        hits = 0
        for prompt, output in order:
            prefixes = [tuple(prompt[: n + 1]) for n in range(len(prompt))]
            hits += min(sum(prefix in known for prefix in prefixes), len(prompt) - 1)
            whole = [*prompt, *output]
            known |= {tuple(whole[: n + 1]) for n in range(len(whole))}
        best = max(best, hits)
    assert unbounded_hits(served) >= best


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("capacity", [7, 9, 40])
def test_belady_is_the_best_of_all_evictions(seed: int, capacity: int) -> None:
    """Against a search over every prefix-closed cache that may be kept after each request."""
    served = random_served(random.Random(seed))[:4]
    states: dict[frozenset[tuple[int, ...]], int] = {frozenset(): 0}
    for prompt, output in served:
        whole = [*prompt, *output]
        path = frozenset(tuple(whole[: n + 1]) for n in range(len(whole)))
        following: dict[frozenset[tuple[int, ...]], int] = {}
        for state, hits in states.items():
            found = sum(tuple(prompt[: n + 1]) in state for n in range(len(prompt)))
            gained = hits + min(found, len(prompt) - 1)
            for kept in _shrunk(state | path, path, capacity):
                following[kept] = max(following.get(kept, 0), gained)
        states = following
    assert belady_hits(served, capacity) == max(states.values())


def _shrunk(
    state: frozenset[tuple[int, ...]], path: frozenset[tuple[int, ...]], capacity: int
) -> set[frozenset[tuple[int, ...]]]:
    """All ways to evict leaves until `capacity` tokens are left; the running request's path stays."""
    level = {state}
    while len(next(iter(level))) > capacity:
        level = {
            one - {leaf}
            for one in level
            for leaf in one - path
            if not any(other[:-1] == leaf for other in one)
        }  # fmt: skip
    return level


def test_a_trace_from_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "mine.jsonl"
    jobs = [
        Job(id=0, tokens=[5] * 40, max_tokens=4),
        Job(id=1, tokens=[6, 7], after=0, at_s=0.5, max_tokens=4, timeout_s=30.0, salt=None),
    ]
    file.write_bytes(b"\n".join(msgspec.json.encode(job) for job in jobs))
    policy_sim.main(["--file", str(file), "--policy", "lpm"])
    line = capsys.readouterr().out.splitlines()[-1]
    assert line.startswith("| mine | lpm | 50.0% ")  # 43 of 40 + 46 tokens: all but what is new and the last output
    file.write_text('{"id": 1, "tokens": [1], "after": 7}')
    with pytest.raises(ValueError, match="line 1"):
        read_trace(file, 100)
    file.write_text('{"id": 1, "tokens": "x"}')
    with pytest.raises(ValueError, match="line 1"):
        read_trace(file, 100)
