"""A runner without a model, for whole-scheduler tests.

Its KV memory holds what was written: (position, token). A row's next token is a function of the tokens that the plan
lets it read, so a slot that is wrong anywhere (freed too early, shared wrongly, evicted, written twice) changes the
output; and every read must cover the positions 0..p exactly once.
"""

from __future__ import annotations

import hashlib
from array import array
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from radixrt.cache import PrefixCache
from radixrt.errors import RadixrtError
from radixrt.grammar import TokenRefused
from radixrt.messages import (
    Enqueue,
    EnqueueEmbed,
    EnqueueSelect,
    Namespace,
    Pooled,
    RowOpen,
    Score,
    SelectScores,
    StepMasks,
    StepPlan,
    StepResult,
    TierState,
)
from radixrt.params import Constraint, SamplingParams
from radixrt.scheduler.core import Scheduler
from radixrt.scheduler.policies import PolicyOptions
from radixrt.scheduler.requests import Limits
from radixrt.scheduler.rows import RowTable

VOCAB = 64
EOS = 0
WORDS = VOCAB // 32


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def next_token(context: tuple[int, ...], seed: int, allowed: list[int] | None = None) -> int:
    """The fake model: a token that depends on the whole context, on the row's seed and on nothing else.

    Four times of five the last token alone decides, so that it repeats itself and guesses can hold.
    """
    if int.from_bytes(hashlib.blake2b(repr(context).encode(), digest_size=2).digest(), "little") % 5:
        context, seed = context[-1:], 0
    digest = hashlib.blake2b(repr((context, seed)).encode(), digest_size=8).digest()
    number = int.from_bytes(digest, "little")
    choices = list(range(VOCAB)) if allowed is None else sorted(allowed)
    return choices[number % len(choices)]


def logprob(context: tuple[int, ...], token: int) -> float:
    return -1.0 - (hash((context, token)) % 1000) / 1000.0


def hidden(context: tuple[int, ...]) -> np.ndarray:
    """float32[2]: the fake model's hidden state behind a context; whole numbers, so that sums are exact."""
    digest = hashlib.blake2b(repr(context).encode(), digest_size=4).digest()
    return np.array([int.from_bytes(digest[:2], "little"), int.from_bytes(digest[2:], "little")], np.float32)


class EvenGrammar:
    """Allows even tokens only; may stop after `length` tokens and must stop after twice as many."""

    backend = "even"
    ignored: tuple[str, ...] = ()
    added: tuple[str, ...] = ()
    passed: tuple[str, ...] = ()
    grown_bytes = 0

    def __init__(self, length: int) -> None:
        self.length = length

    def matcher(self, end_ids: Sequence[int] = (), *, any_spelling: bool = False) -> EvenMatcher:
        return EvenMatcher(self.length, end_ids=(EOS, *end_ids))


class EvenMatcher:
    def __init__(self, length: int, seen: int = 0, end_ids: Sequence[int] = (EOS,)) -> None:
        self.length = length
        self.seen = seen
        self.end_ids = end_ids

    @property
    def may_stop(self) -> bool:
        return self.seen >= self.length

    @property
    def must_stop(self) -> bool:
        return self.seen >= 2 * self.length

    def allowed(self) -> list[int]:
        if self.seen % 5 in (1, 2, 3) and not self.may_stop:
            return [self._only(self.seen)]
        return [t for t in range(2, VOCAB, 2) if t not in self.end_ids] + (list(self.end_ids) if self.may_stop else [])

    def fill(self, bitmask: np.ndarray, row: int) -> None:
        bitmask[row] = 0
        for token in self.allowed():
            bitmask.view(np.uint32)[row, token // 32] |= np.uint32(1 << (token % 32))

    def accept(self, token: int, *, guessed: bool = False) -> None:
        if token not in self.allowed() or token in self.end_ids:
            raise TokenRefused(f"token {token} is not allowed")
        self.seen += 1

    def rollback(self, count: int) -> None:
        self.seen -= count

    def fork(self) -> EvenMatcher:
        return EvenMatcher(self.length, self.seen, self.end_ids)

    @staticmethod
    def _only(seen: int) -> int:
        return 2 + 2 * (seen % 20)

    def required(self) -> int | None:
        """Now and then it knows without a look at the mask."""
        allowed = self.allowed()
        return allowed[0] if len(allowed) == 1 and self.seen % 10 < 5 else None

    def forced(self) -> list[int]:
        """A hint: right as far as it goes in a forced run, and now and then wrong or more than the grammar takes."""
        run = []
        while (self.seen + len(run)) % 5 in (1, 2, 3) and self.seen + len(run) < self.length:
            run.append(self._only(self.seen + len(run)))
        return [*run, 8, 33] if self.seen % 2 else run


class FakeCompiler:
    """Answers at once, or only after `release` for constraints whose value starts with "slow"."""

    def __init__(self) -> None:
        self.released: set[str] = set()

    def request(self, constraint: Constraint) -> EvenGrammar | RadixrtError | None:
        if constraint.value.startswith("slow") and constraint.value not in self.released:
            return None
        if constraint.value.startswith("bad"):
            return RadixrtError("this constraint is bad")
        return EvenGrammar(int(constraint.value.split()[-1]))


@dataclass
class FakeRunner:
    """Executes plans in order against a memory of (position, token) by slot."""

    memory: dict[int, tuple[int, int]] = field(default_factory=dict)
    rows: dict[int, RowOpen] = field(default_factory=dict)
    last: dict[int, int] = field(default_factory=dict)
    plans: deque[StepPlan] = field(default_factory=deque)
    masks: dict[int, StepMasks] = field(default_factory=dict)
    computed: int = 0
    widest_span: int = 0
    branches: int = 0
    slips: int = 5
    """The draft model errs in one token of so many."""

    def propose(self, after: tuple[int, ...], seed: int, count: int) -> list[int]:
        """The draft model: what the model says without a mask, wrong now and then, and at times less than asked."""
        guesses: list[int] = []
        while len(guesses) < count and len(after) % 7:
            token = next_token(after, seed)
            guesses.append(token if hash((after, seed)) % self.slips else (token + 1) % VOCAB)
            after = (*after, token)
        return guesses

    def can_run(self) -> bool:
        return bool(self.plans) and (not self.plans[0].masked.size or self.plans[0].step in self.masks)

    def run(self) -> StepResult:
        plan = self.plans.popleft()
        masks = self.masks.pop(plan.step, None)
        self._open_and_close(plan)
        starts = np.concatenate([[0], np.cumsum(plan.new_lens)])
        private = np.concatenate([[0], np.cumsum(plan.private_lens)])
        assert starts[-1] == plan.tokens.size == plan.positions.size == plan.slots.size
        assert len(set(plan.slots.tolist())) == plan.slots.size, "a slot is written twice in one step"
        branches = {} if plan.branches is None else {one: (main, fork) for one, main, fork in plan.branches.tolist()}
        named = plan.rows[plan.rows >= 0]
        assert len(set(named.tolist())) == named.size - len(branches)
        assert all(plan.rows[one] == plan.rows[main] and main not in branches for one, (main, _) in branches.items())
        assert not plan.sample[plan.rows < 0].any()
        for i, row in enumerate(plan.rows.tolist()):
            for at in range(starts[i], starts[i + 1]):
                token = int(plan.tokens[at])
                self.memory[int(plan.slots[at])] = (
                    int(plan.positions[at]),
                    token if token >= 0 else self._last(row),
                )
        self.computed += plan.tokens.size
        tokens, scores, pooled, lost = [], [], list[np.ndarray](), set[int]()
        answers: dict[int, dict[tuple[int, ...], int]] = {}
        begins: dict[int, tuple[int, ...]] = {}
        self.branches += len(branches)
        specs = {spec.row_index: spec for spec in plan.scores}
        masked, lines = {}, 0
        for index in plan.masked.tolist():
            masked[index] = lines
            lines += 1 + int(plan.drafts[index])
        assert masks is None or len(masks.bitmask) == lines
        for i, row in enumerate(plan.rows.tolist()):
            read = [int(s) for s in plan.private_slots[private[i] : private[i + 1]]]
            for offset, length, first, end in plan.spans.tolist():
                if first <= i < end:
                    read.extend(plan.span_slots[offset : offset + length].tolist())
                    self.widest_span = max(self.widest_span, end - first)
            context = self._context(read, int(plan.positions[starts[i]]))
            new = [self.memory[int(s)][1] for s in plan.slots[starts[i] : starts[i + 1]]]
            assert [self.memory[int(s)][0] for s in plan.slots[starts[i] : starts[i + 1]]] == list(
                range(len(context), len(context) + len(new))
            )
            if plan.pool is not None and plan.pool[i]:
                states = [hidden((*context, *new[: k + 1])) for k in range(len(new))]
                pooled.append(states[-1] if plan.pool[i] == 1 else np.sum(states, axis=0))
            if i in specs:
                spec = specs[i]
                values = []
                for k, target in enumerate(spec.targets.tolist()):
                    at = k if spec.at is None else int(spec.at[k])
                    before = (*context, *new[: spec.first + at + 1])
                    assert spec.first + at < len(new)
                    values.append(logprob(before, target))
                nothing = np.zeros((len(values), spec.top), np.int32)
                scores.append(
                    Score(
                        logprobs=np.array(values, np.float32),
                        top_ids=nothing,
                        top_logprobs=nothing.astype(np.float32),
                    )
                )
            for guesses in range(int(plan.drafts[i]), -1, -1) if plan.sample[i] else ():
                allowed = None
                if i in masked:
                    words = masks.bitmask[masked[i] + int(plan.drafts[i]) - guesses].view(np.uint32)
                    allowed = [t for t in range(VOCAB) if words[t // 32] >> (t % 32) & 1]
                token = next_token((*context, *new[: len(new) - guesses]), self.rows[row].seed, allowed)
                tokens.append(token)
                self.last[row] = token
                before = (*context, *new[: len(new) - guesses])
                answers.setdefault(row, {})[before] = token
                if i not in branches:
                    begins.setdefault(row, before)
            if plan.drafts[i] or i in branches:
                lost.add(row)
        for row in lost:
            self.last[row] = -1  # several lines: nothing may be planned on it before its token is known
        count = len(tokens)
        asking = [] if plan.propose is None else [i for i, n in enumerate(plan.propose.tolist()) if n]
        proposals = np.full((len(asking), int(plan.propose.max()) if asking else 0), -1, np.int32)
        for line, i in zip(proposals, asking, strict=True):
            row = int(plan.rows[i])
            after = begins[row]
            while after in answers[row]:
                after = (*after, answers[row][after])
            guesses = self.propose(after, self.rows[row].seed, int(plan.propose[i]))
            line[: len(guesses)] = guesses
        return StepResult(
            step=plan.step,
            proposals=proposals if asking else None,
            draft_passes=len(asking),
            tokens=np.array(tokens, dtype=np.int32),
            logprobs=np.zeros(count, np.float32),
            top_ids=np.zeros((count, 0), np.int32),
            top_logprobs=np.zeros((count, 0), np.float32),
            scores=scores,
            pooled=np.array(pooled, np.float32) if pooled else None,
            forward_s=0.0,
            mask_wait_s=0.0,
            sample_s=0.0,
        )

    def _last(self, row: int) -> int:
        token = self.last.get(row, 0)
        assert token >= 0, "planned on a token that is one of several"
        return token

    def fail(self) -> int:
        """The next step raises, its slots hold nothing valid; its number."""
        plan = self.plans.popleft()
        self._open_and_close(plan)
        self.memory.update({int(slot): (int(p), 0) for slot, p in zip(plan.slots, plan.positions, strict=True)})
        self.last.update(dict.fromkeys(plan.rows.tolist(), 0))  # lost: what is planned on it is as good as nothing
        return plan.step

    def _open_and_close(self, plan: StepPlan) -> None:
        for row in plan.closes:
            del self.rows[row]
            self.last.pop(row, None)
        for spec in plan.opens:
            assert spec.row not in self.rows, "a row id is open twice"
            self.rows[spec.row] = spec

    def _context(self, slots: list[int], length: int) -> tuple[int, ...]:
        pairs = sorted(self.memory[slot] for slot in slots)
        assert [position for position, _ in pairs] == list(range(length)), "a row reads exactly the positions before it"
        return tuple(token for _, token in pairs)


def make_scheduler(
    kv_tokens: int, clock: Clock | None = None, tier: TierState | None = None, **overrides: object
) -> Scheduler:
    names = {"policy": "name", "max_wait_s": "max_wait_s", "fair": "fair", "namespace_weights": "namespace_weights"}
    policy = PolicyOptions(**{name: overrides.pop(key) for key, name in names.items() if key in overrides})  # type: ignore[arg-type]
    prefix_cache = bool(overrides.pop("prefix_cache", True))
    limits = Limits(
        **{  # type: ignore[arg-type]
            "context_length": 10_000,
            "vocab_size": VOCAB,
            "eos_token_ids": (EOS,),
            "max_num_seqs": 16,
            "max_num_batched_tokens": 64,
            **overrides,
        }
    )
    clock = clock or Clock()
    return Scheduler(
        rows=RowTable(PrefixCache(kv_tokens, clock=clock), limits, policy),
        limits=limits,
        compiler=FakeCompiler(),
        clock=clock,
        prefix_cache=prefix_cache,
        check=True,
        tier=tier,
    )


class Rig:
    """A scheduler, a fake runner and what the client has been told."""

    def __init__(self, kv_tokens: int, tier: TierState | None = None, **overrides: object) -> None:
        self.clock = Clock()
        self.scheduler = make_scheduler(kv_tokens, self.clock, tier, **overrides)
        self.runner = FakeRunner()
        self.texts: dict[tuple[int, int], list[int]] = {}
        self.forced: dict[tuple[int, int], list[bool]] = {}
        self.reasons: dict[tuple[int, int], str] = {}
        self.usage: dict[int, object] = {}
        self.errors: dict[int, str] = {}
        self.scores: dict[int, np.ndarray] = {}
        self.selected: dict[int, SelectScores] = {}
        self.pooled: dict[int, Pooled] = {}
        self._numbers = 0

    def select(self, prompt: list[int], options: list[list[int]], base: tuple[int, ...] = (), priority: int = 0) -> int:
        self._numbers += 1
        self.scheduler.enqueue(
            EnqueueSelect(
                request_id=self._numbers,
                prompt=np.array(prompt, dtype=np.int32),
                options=options,
                base=np.array(base, dtype=np.int32),
                priority=priority,
            )
        )
        self.collect()
        return self._numbers

    def embed(self, texts: list[list[int]], namespace: Namespace | None = None, priority: int = 0) -> int:
        self._numbers += 1
        self.scheduler.enqueue(
            EnqueueEmbed(
                request_id=self._numbers,
                ids=np.array([token for text in texts for token in text], dtype=np.int32),
                lengths=np.array([len(text) for text in texts], dtype=np.int32),
                namespace=namespace or Namespace(),
                priority=priority,
            )
        )
        self.collect()
        return self._numbers

    def submit(
        self,
        prompt: list[int],
        constraint: str | None = None,
        priority: int = 0,
        namespace: Namespace | None = None,
        timeout_s: float | None = None,
        pin_s: float | None = None,
        **sampling: object,
    ) -> int:
        self._numbers += 1
        self.scheduler.enqueue(
            Enqueue(
                request_id=self._numbers,
                ids=np.array(prompt, dtype=np.int32),
                sampling=SamplingParams(**sampling),  # type: ignore[arg-type]
                constraint=None if constraint is None else Constraint(kind="regex", value=constraint),
                priority=priority,
                namespace=namespace or Namespace(),
                timeout_s=timeout_s,
                pin_s=pin_s,
            )
        )
        self.collect()
        return self._numbers

    def advance(self) -> bool:
        """Masks and plans go to the runner as in the process's loop; whether anything was sent."""
        sent = False
        while True:
            masks = self.scheduler.masks()
            if masks is not None:
                self.runner.masks[masks.step] = masks
            plan = self.scheduler.plan() if self.scheduler.can_plan else None
            self.sent_first()
            if plan is None:
                break
            self.runner.plans.append(plan)
            sent = True
        self.scheduler.flush()
        self.collect()
        return sent

    def sent_first(self) -> None:
        """What goes to the runner before a plan."""

    def step(self) -> bool:
        """One result; False when there is nothing to run."""
        self.advance()
        if not self.runner.can_run():
            return False
        self.scheduler.settle(self.runner.run())
        self.clock.now += 0.01
        self.advance()
        return True

    def run(self, steps: int = 100_000) -> None:
        for _ in range(steps):
            if not self.step():
                return
        raise AssertionError("the scheduler does not come to an end")

    def collect(self) -> None:
        for message in self.scheduler.outbox:
            kind = type(message).__name__
            if kind == "Rejected":
                self.errors[message.request_id] = message.error.message
            elif kind == "SelectScores":
                assert message.request_id not in self.selected
                self.selected[message.request_id] = message
            elif kind == "Pooled":
                assert message.request_id not in self.pooled
                self.pooled[message.request_id] = message
            elif kind == "PromptScores":
                assert message.request_id not in self.scores
                self.scores[message.request_id] = message.logprobs
            else:
                for delta in message.items:
                    key = (delta.request_id, delta.index)
                    assert key not in self.reasons, "a token came after the end"
                    self.texts.setdefault(key, []).extend(delta.ids)
                    self.forced.setdefault(key, []).extend([delta.forced] * len(delta.ids))
                    if delta.finish_reason:
                        self.reasons[key] = delta.finish_reason
                    if delta.usage is not None:
                        self.usage[delta.request_id] = delta.usage
        self.scheduler.outbox.clear()


def expected(prompt: list[int], max_tokens: int, seed: int, constraint: str | None = None) -> tuple[list[int], str]:
    """What a fresh engine gives this request: the fake model run on its own, without cache or batch."""
    tokens = array("i", prompt)
    matcher = EvenMatcher(int(constraint.split()[-1])) if constraint is not None else None
    out: list[int] = []
    while len(out) < max_tokens:
        token = next_token(tuple(tokens), seed, matcher.allowed() if matcher else None)
        if token == EOS:
            return out, "stop"
        if matcher:
            matcher.accept(token)
        out.append(token)
        tokens.append(token)
        if matcher and matcher.must_stop:
            return out, "stop"
    return out, "length"
