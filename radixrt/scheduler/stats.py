"""What the scheduler counts; `snapshot` is what metrics and the inspector show."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field

from radixrt.messages import StepPlan, StepResult
from radixrt.results import Usage


@dataclass
class Sum:
    """A sum of observations and their number."""

    total: float = 0.0
    count: int = 0

    def add(self, value: float) -> None:
        self.total += value
        self.count += 1

    @property
    def pair(self) -> tuple[float, int]:
        return self.total, self.count


@dataclass
class Stats:
    """Counters since start; seconds are sums."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    restored_tokens: int = 0
    generation_tokens: int = 0
    shared_read_tokens: int = 0
    """A span that n rows share is read once: its length times n - 1 is spared."""
    steps: int = 0
    plan_s: float = 0.0
    step_s: float = 0.0
    mask_s: float = 0.0
    mask_wait_s: float = 0.0
    parts: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    """Seconds of the runner's steps by part."""
    finished: Counter[str] = field(default_factory=Counter)
    queue: Sum = field(default_factory=Sum)
    first_token: Sum = field(default_factory=Sum)
    inter_token: Sum = field(default_factory=Sum)
    total: Sum = field(default_factory=Sum)

    def planned(self, seconds: float, plan: StepPlan) -> None:
        self.steps += 1
        self.plan_s += seconds
        if plan.spans.size:
            lengths, rows = plan.spans[:, 1], plan.spans[:, 3] - plan.spans[:, 2]
            self.shared_read_tokens += int(lengths @ (rows - 1))

    def settled(self, result: StepResult) -> None:
        self.step_s += result.forward_s + result.sample_s + result.draft_s
        self.mask_wait_s += result.mask_wait_s
        for name, seconds in result.parts.items():
            self.parts[name] += seconds

    def token(self, since_last_s: float | None) -> None:
        """A token was sampled; `since_last_s` is None for a row's first."""
        self.generation_tokens += 1
        if since_last_s is not None:
            self.inter_token.add(since_last_s)

    def finished_request(self, usage: Usage, outcome: str) -> None:
        """`outcome`: stop, length, embed (vectors were wanted, no text), abort (the client left) or error."""
        self.finished[outcome] += 1
        self.prompt_tokens += usage.prompt_tokens
        self.cached_tokens += usage.cached_tokens
        self.restored_tokens += usage.restored_tokens
        if outcome in ("stop", "length"):
            self.queue.add(usage.queue_s)
            self.first_token.add(usage.ttft_s)
            self.total.add(usage.total_s)
        elif outcome == "embed":
            self.queue.add(usage.queue_s)
            self.total.add(usage.total_s)
