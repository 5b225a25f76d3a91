"""The order of waiting requests, without a model: traces through the real scheduler in virtual time.

    python benchmarks/policy_sim.py
    python benchmarks/policy_sim.py --trace few-shot --policy lpm --policy fcfs --kv-tokens 3000
    python benchmarks/policy_sim.py --file trace.jsonl

A step takes STEP_S and TOKEN_S for each token it computes; sampled tokens are made up. Printed for each trace and
policy: hit rate (cached of prompt tokens), that as a share of what an unbounded cache would have and of what a bounded
one that knows the future has in order of arrival (`policy_bound.py`), seconds waited, and what planning a step took in
real time.
"""

from __future__ import annotations

import argparse
import heapq
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.policy_bound import Served, belady_hits, unbounded_hits
from benchmarks.policy_traces import TRACES, VOCABULARY, Job, Trace, read_trace
from radixrt.cache import PrefixCache
from radixrt.messages import Enqueue, Namespace, Rejected, StepPlan, StepResult, TokenBatch
from radixrt.params import SamplingParams
from radixrt.results import Usage
from radixrt.scheduler.core import Scheduler
from radixrt.scheduler.policies import PolicyOptions
from radixrt.scheduler.requests import Limits
from radixrt.scheduler.rows import RowTable

STEP_S, TOKEN_S = 0.004, 0.0005
"""SmolLM2-135M on two cores (README: decode 1 row, prefill 512)."""
POLICIES = {
    "lpm": PolicyOptions(),
    "lpm, 2 s": PolicyOptions(max_wait_s=2.0),
    "lpm, no ageing": PolicyOptions(max_wait_s=1e9),
    "fcfs": PolicyOptions(name="fcfs"),
}


class NoConstraints:
    """No job has a constraint."""

    def request(self, constraint: object) -> None:
        return None


@dataclass
class Outcome:
    """What became of a trace under a policy."""

    served: list[Served] = field(default_factory=list)
    usage: dict[int, Usage] = field(default_factory=dict)
    failed: dict[int, str] = field(default_factory=dict)
    kinds: dict[int, str] = field(default_factory=dict)
    plan_s: list[float] = field(default_factory=list)
    computed: int = 0
    retractions: int = 0

    @property
    def prompt_tokens(self) -> int:
        return sum(usage.prompt_tokens for usage in self.usage.values())

    @property
    def hits(self) -> int:
        return sum(usage.cached_tokens for usage in self.usage.values())

    def waited(self, percent: float, kind: str | None = None) -> float:
        """Percentile of the seconds from arrival to the first planned step, of one kind of jobs or of all."""
        waits = [u.queue_s for i, u in self.usage.items() if kind is None or self.kinds[i] == kind]
        return float(np.percentile(waits, percent)) if waits else 0.0


class Simulation:
    """A scheduler, a clock that steps move, and jobs that arrive when it is time."""

    def __init__(self, trace: Trace, policy: PolicyOptions, max_num_seqs: int = 16) -> None:
        self.now = 0.0
        self.outcome = Outcome()
        limits = Limits(context_length=1 << 20, vocab_size=VOCABULARY, eos_token_ids=(0,), max_num_seqs=max_num_seqs,
                        max_waiting=1 << 20, max_drafts=0)  # fmt: skip
        cache = PrefixCache(trace.kv_tokens, clock=lambda: self.now)
        self.scheduler = Scheduler(
            rows=RowTable(cache, limits, policy), limits=limits, compiler=NoConstraints(), clock=lambda: self.now
        )
        self._coming: list[tuple[float, int, Job]] = []
        self._children: dict[int, list[Job]] = {}
        self._place: dict[int, int] = {}
        for job in trace.jobs:
            if job.after is None:
                heapq.heappush(self._coming, (job.at_s, job.id, job))
            else:
                self._children.setdefault(job.after, []).append(job)

    def run(self) -> Outcome:
        """Until every job is done. Raises RuntimeError where nothing moves although jobs wait."""
        scheduler = self.scheduler
        while self._coming or scheduler.requests:
            while self._coming and self._coming[0][0] <= self.now:
                self._enqueue(heapq.heappop(self._coming)[2])
            while scheduler.can_plan:
                begun = time.perf_counter()
                if scheduler.plan() is None:
                    break
                self.outcome.plan_s.append(time.perf_counter() - begun)
            if scheduler.steps:
                plan = scheduler.steps[0].plan
                self.now += STEP_S + TOKEN_S * plan.tokens.size
                self.outcome.computed += plan.tokens.size
                scheduler.settle(_result(plan))
            elif self._coming:
                self.now = max(self.now, self._coming[0][0])
            elif scheduler.requests:
                raise RuntimeError(f"{len(scheduler.requests)} requests wait for ever")
            self._collect()
        self.outcome.retractions = scheduler.rows.retractions
        return self.outcome

    def _enqueue(self, job: Job) -> None:
        prompt = job.tokens
        if job.after is not None:
            before, output = self.outcome.served[self._place[job.after]]
            prompt = [*before, *output, *prompt]
        self._place[job.id] = len(self.outcome.served)
        self.outcome.served.append((prompt, []))
        self.outcome.kinds[job.id] = job.kind
        self.scheduler.enqueue(
            Enqueue(
                request_id=job.id,
                ids=np.array(prompt, dtype=np.int32),
                sampling=SamplingParams(max_tokens=job.max_tokens, ignore_eos=True, seed=job.id),
                namespace=Namespace(salt=job.salt),
                priority=job.priority,
                timeout_s=job.timeout_s,
            )
        )

    def _collect(self) -> None:
        for message in self.scheduler.outbox:
            if isinstance(message, TokenBatch):
                for delta in message.items:
                    self.outcome.served[self._place[delta.request_id]][1].extend(delta.ids)
                    if delta.usage is not None:
                        self._done(delta.request_id, delta.usage)
            elif isinstance(message, Rejected):
                self.outcome.failed[message.request_id] = message.error.message
        self.scheduler.outbox.clear()

    def _done(self, number: int, usage: Usage) -> None:
        self.outcome.usage[number] = usage
        for child in self._children.pop(number, ()):
            heapq.heappush(self._coming, (self.now + child.at_s, child.id, child))


def _result(plan: StepPlan) -> StepResult:
    """Made-up tokens: of a position and a row, so that no two outputs are alike."""
    ends = np.cumsum(plan.new_lens) - 1
    sampled = plan.sample.astype(bool)
    tokens = (plan.positions[ends] * 7919 + plan.rows * 104_729 + plan.step * 31) % (VOCABULARY - 1) + 1
    count = int(sampled.sum())
    none = np.zeros((count, 0))
    return StepResult(
        step=plan.step, tokens=tokens[sampled].astype(np.int32), logprobs=np.zeros(count, np.float32),
        top_ids=none.astype(np.int32), top_logprobs=none.astype(np.float32), scores=[],
        forward_s=0.0, mask_wait_s=0.0, sample_s=0.0,
    )  # fmt: skip


def line(trace: Trace, name: str, outcome: Outcome) -> str:
    """A row of the table."""
    hits, prompt = outcome.hits, outcome.prompt_tokens
    bound, belady = unbounded_hits(outcome.served), belady_hits(outcome.served, trace.kv_tokens)
    waits = " / ".join(f"{outcome.waited(percent):.2f}" for percent in (50, 99))
    cold = f"{outcome.waited(99, 'cold'):.2f}" if "cold" in outcome.kinds.values() else "-"
    return (
        f"| {trace.name} | {name} | {hits / prompt:.1%} | {hits / bound:.1%} | {hits / max(belady, 1):.1%} | {waits} "
        f"| {cold} | {outcome.retractions} | {1e3 * float(np.mean(outcome.plan_s)):.2f} |"
    )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Traces through the scheduler's policies in virtual time.")
    parser.add_argument("--trace", action="append", choices=[*TRACES], help="a generated trace; repeatable; all")
    parser.add_argument("--file", type=Path, help="a trace from a file with one JSON job a line (policy_traces.Job)")
    parser.add_argument("--policy", action="append", choices=[*POLICIES], help="repeatable; all")
    parser.add_argument("--kv-tokens", type=int, help="pool, instead of the trace's own (a file: 8192)")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    traces = [TRACES[name](options.seed) for name in options.trace or ([] if options.file else TRACES)]
    if options.file:
        traces.append(read_trace(options.file, options.kv_tokens or 8192))
    print(
        "| trace | policy | hit rate | of unbounded | of Belady | waited p50 / p99, s "
        "| cold p99, s | retracted | plan, ms |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    for trace in traces:
        sized = Trace(name=trace.name, jobs=trace.jobs, kv_tokens=options.kv_tokens or trace.kv_tokens)
        for name in options.policy or POLICIES:
            print(line(sized, name, Simulation(sized, POLICIES[name]).run()), flush=True)


if __name__ == "__main__":
    main()
