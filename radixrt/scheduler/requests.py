"""A request and its rows: what is known, what is planned, what is owned, and which moves are allowed.

A row is one sample of a request. Its states:

    WAITING --admit--> RUNNING --finish--> FINISHED
       ^                  |
       └──── retract ─────┘            (WAITING --finish--> FINISHED: aborted, or stopped by a stop string)
"""

from __future__ import annotations

import random
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum

from radixrt.cache import Ids, Miss, Node
from radixrt.grammar import Grammar, Matcher
from radixrt.messages import Namespace, Score
from radixrt.params import Constraint, SamplingParams
from radixrt.results import ConstraintReport, Pin, Usage
from radixrt.scheduler.among import Among


class State(Enum):
    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


_MOVES = {
    (State.WAITING, State.RUNNING),
    (State.RUNNING, State.WAITING),
    (State.RUNNING, State.FINISHED),
    (State.WAITING, State.FINISHED),
}


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Sizes that bound a step and the queue."""

    context_length: int
    vocab_size: int
    eos_token_ids: tuple[int, ...]
    max_num_seqs: int = 64
    max_num_batched_tokens: int = 512
    max_waiting: int = 1024
    lookahead: int = 1
    """Steps planned ahead of the one whose tokens are not known yet (design section 2)."""
    max_drafts: int = 8
    """Guessed tokens that a row may carry in one step; 0: none."""
    draft_sources: tuple[str, ...] = ("forced", "tree")
    """Where guesses come from, in order of preference."""
    max_draft_rows: int | None = None
    """Steps of more rows carry no guesses but forced ones; None: as the measured cost of a step says."""
    share_from: int = 256
    """Token reads that a shared span of a step must spare."""
    growth: int = 16
    """Slots a decoding row takes at once, so that its tokens lie in runs."""


@dataclass(frozen=True)
class Alone:
    """The namespace of a request that shares nothing with others (the prefix cache is off)."""

    request_id: int


@dataclass(eq=False)
class Request:
    """One Enqueue and the rows that answer it."""

    id: int
    prompt: Ids
    sampling: SamplingParams
    constraint: Constraint | None
    namespace: Namespace | Alone
    priority: int
    arrived: float
    """Clock reading, seconds."""
    max_tokens: int
    """Most tokens a sample, the context and the pool taken into account."""
    share: str | None = None
    """Whom its work counts for under fairness: the tenant, or the salt of a request without one."""
    deadline: float | None = None
    """Clock reading by which it must be done; None: whenever."""
    grammar: Grammar | None = None
    grammar_s: float = 0.0
    """From arrival until the constraint was compiled."""
    rows: list[Row] = field(default_factory=list)
    pin_s: float | None = None
    """Its prompt is to be pinned for so long."""
    pin: Pin | None = None
    cached_tokens: int = 0
    restored_tokens: int = 0
    """Brought back from a tier for this request."""
    miss: Miss | None = None
    """Why not more of the prompt was cached; only where that is asked for."""
    draft_tokens: int = 0
    """Guesses that were verified for its rows, and those of them that held."""
    accepted_draft_tokens: int = 0
    started: float | None = None
    first_token: float | None = None
    score_from: int = 0
    """The next prompt token whose successor's log-probability is to be planned; behind the prompt when none is."""
    scored: list[Score] = field(default_factory=list)
    """Prompt log-probabilities that have arrived, chunk by chunk."""
    pool: int = 0
    """It is a text to be embedded: what is wanted of its tokens, as in `StepPlan.pool`."""
    program: object | None = None
    """The `segments.Program` that this is a segment of."""

    def __post_init__(self) -> None:
        wanted = self.sampling.prompt_logprobs is not None
        self.score_from = max(self.sampling.prompt_logprobs_start - 1, 0) if wanted else len(self.prompt)
        seed = self.sampling.seed if self.sampling.seed is not None else random.getrandbits(63)
        self.rows = [Row(self, index, sample_seed(seed, index)) for index in range(self.sampling.n)]
        if self.sampling.allowed_token_ids is not None:
            among = Among(frozenset(self.sampling.allowed_token_ids))
            for row in self.rows:
                row.matcher = among.fork()

    @property
    def finished(self) -> bool:
        return all(row.state is State.FINISHED for row in self.rows)

    def usage(self, now: float) -> Usage:
        started = self.started if self.started is not None else now
        first = self.first_token if self.first_token is not None else now
        return Usage(
            prompt_tokens=len(self.prompt),
            cached_tokens=self.cached_tokens,
            restored_tokens=min(self.restored_tokens, self.cached_tokens),
            completion_tokens=sum(row.kept for row in self.rows),
            grammar_s=self.grammar_s,
            draft_tokens=self.draft_tokens,
            accepted_draft_tokens=self.accepted_draft_tokens,
            queue_s=started - self.arrived,
            ttft_s=first - self.arrived,
            total_s=now - self.arrived,
            constraint=report(self.grammar) if self.grammar else None,
            pin=self.pin,
        )


@dataclass(eq=False)
class Row:
    """One sample. Its tokens, by what is known of their KV:

        [0 ............. in_tree) [in_tree ........ planned) [planned ....... total)
         path of `node`, locked    `own` slots of this row    not planned yet

    `total` counts the prompt, the output and the tokens that steps under way will sample (`pending`): a token's step
    may be planned before its id is known.
    """

    request: Request
    index: int
    seed: int
    state: State = State.WAITING
    id: int = -1
    """The runner's number for it while it runs."""
    tokens: Ids = field(default_factory=lambda: array("i"))
    """Prompt and output, as far as known."""
    pending: int = 0
    drafting: bool = False
    """Guesses are under way: nothing is planned ahead, since it is not known how many hold. Their slots are the row's
    `own`, those of the chain first."""
    node: Node | None = None
    in_tree: int = 0
    planned: int = 0
    own: list[int] = field(default_factory=list)
    reserve: list[int] = field(default_factory=list)
    """Slots taken ahead so that the row's next tokens lie in one run; in reverse order (pop gives the next)."""
    matcher: Matcher | None = None
    kept: int = 0
    """Output tokens that count: all of them, or those up to a stop string's match."""
    admitted: int = 0
    """Order of admission; the youngest row is retracted first."""
    foreword: list[int] = field(default_factory=list)
    """Output that was certain before anything was sampled, and has not been told yet."""
    locked_at: float = 0.0
    last_token_at: float = 0.0

    def __post_init__(self) -> None:
        self.tokens = self.request.prompt[:]

    @property
    def total(self) -> int:
        return len(self.tokens) + self.pending

    @property
    def last_slot(self) -> int | None:
        """Slot of the last planned token, behind which the next one lies best."""
        if self.own:
            return self.own[-1]
        return self.node.slots[-1] if self.node is not None and self.node.slots else None

    @property
    def output(self) -> int:
        """Output tokens known."""
        return len(self.tokens) - len(self.request.prompt)

    @property
    def left(self) -> int:
        """Tokens that may still be sampled, beyond those under way."""
        return self.request.max_tokens - self.output - self.pending

    @property
    def goal(self) -> int:
        """How many tokens must be computed: the last one only where its logits, hidden state or slot is wanted."""
        whole = self.left > 0 or self.request.pin_s is not None or self.request.pool
        return self.total if whole else self.total - 1

    @property
    def ready(self) -> bool:
        """There are tokens to plan."""
        return self.state is State.RUNNING and self.planned < self.goal and not self.drafting

    @property
    def room(self) -> int:
        """Slots that the row may still need beyond those it has."""
        return len(self.request.prompt) + self.request.max_tokens - self.planned

    @property
    def prefilling(self) -> bool:
        """Known tokens beyond the next one are not planned yet: others that share them wait for this row."""
        return self.state is State.RUNNING and len(self.tokens) - self.planned > 1

    @property
    def match_limit(self) -> int:
        """How much of the tokens may come from the tree: one must be computed, and so must those whose scores count."""
        limit = 0 if self.request.pool == 2 else len(self.tokens) - 1
        return min(limit, self.request.score_from) if self.index == 0 else limit

    def move(self, state: State) -> None:
        if (self.state, state) not in _MOVES:
            raise RuntimeError(f"a row cannot go from {self.state.value} to {state.value}")
        self.state = state

    def slots_held(self) -> Iterator[int]:
        """Slots whose owner is this row."""
        yield from self.own
        yield from self.reserve


def report(grammar: Grammar) -> ConstraintReport:
    """What the answer says of the constraint."""
    return ConstraintReport(grammar.backend, grammar.ignored, grammar.added, grammar.passed)


def sample_seed(seed: int, index: int) -> int:
    """Seed of one sample, int64: sample 0 has the request's, the others a mix of seed and index (splitmix64)."""
    mixed = seed & 0xFFFF_FFFF_FFFF_FFFF
    if index:
        mixed = (mixed + 0x9E37_79B9_7F4A_7C15 * index) & 0xFFFF_FFFF_FFFF_FFFF
        mixed = ((mixed ^ (mixed >> 30)) * 0xBF58_476D_1CE4_E5B9) & 0xFFFF_FFFF_FFFF_FFFF
        mixed = ((mixed ^ (mixed >> 27)) * 0x94D0_49BB_1331_11EB) & 0xFFFF_FFFF_FFFF_FFFF
        mixed ^= mixed >> 31
    return mixed - (1 << 64) if mixed >= 1 << 63 else mixed
