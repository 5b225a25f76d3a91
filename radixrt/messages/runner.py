"""Scheduler <-> runner (DEALER <-> ROUTER)."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from radixrt.messages.base import Array, Message
from radixrt.messages.client import Loading, StartupFailed


class Connect(Message, frozen=True, kw_only=True):
    """Scheduler -> runner, first: answered by Loading and then RunnerReady or StartupFailed."""


class TierState(msgspec.Struct, frozen=True, kw_only=True):
    """What the runner's tier is and holds when the engine starts."""

    kind: str
    """disk, host or disk+host."""
    keys: Array  # uint8[n, 24], see radixrt.tiers.keys
    chunk_bytes: int
    capacity_bytes: int
    used_bytes: int


class RunnerReady(Message, frozen=True, kw_only=True):
    """Runner -> scheduler: the model is loaded and the pool allocated."""

    kv_tokens: int
    context_length: int
    vocab_size: int
    """Width of the logits, which may be above the tokenizer's vocabulary."""
    dtype: str
    """Of activations."""
    kv_dtype: str = ""
    """Of the pool; empty where there is none."""
    device: str
    threads: int
    description: str = ""
    """What computes, and in which number types, in words: one line."""
    slow: str = ""
    """Why the fast path is not used, and what to do about it; empty where it is."""
    embedding_size: int = 0
    """Length of a pooled hidden state."""
    tier: TierState | None = None
    """Where KV goes that the pool has no room for; None: nowhere."""


class RowOpen(msgspec.Struct, frozen=True, kw_only=True):
    """A row that the runner must know from this step on. The row's id is free again after its close.

    After a retraction the same sample is opened again, with the tokens it already has in `output_ids`.
    """

    row: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int = 0
    """Of this sample: its random number at position p is a function of (seed, p) alone."""
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repetition_penalty: float = 1.0
    bias_ids: list[int] = []
    bias: list[float] = []
    suppress_ids: list[int] = []
    """Never sampled (end tokens under ignore_eos do not belong here: they may be sampled)."""
    min_length: int = 0
    """The tokens of `end_ids` are impossible while the sample's position is below this (prompt + min_tokens)."""
    end_ids: list[int] = []
    logprobs: int = -1
    """-1: none; k >= 0: the chosen token's, and the k most likely."""
    prompt_ids: Array | None = None  # int32[n]; only where repetition_penalty needs them
    output_ids: Array | None = None  # int32[n]; only where a penalty needs them


class ScoreSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Log-probabilities wanted for known tokens: new token `first + i` of the row predicts `targets[i]`, or with `at`
    new token `first + at[i]` does (so that one token may predict several)."""

    row_index: int
    """Index into the step's rows, not a row id."""
    first: int
    """Offset into the row's new tokens."""
    targets: Array  # int32[n]
    top: int = 0
    at: Array | None = None  # int32[n]


class StepPlan(Message, frozen=True, kw_only=True):
    """Scheduler -> runner: one ragged step over rows in depth-first order of the prefix tree.

    What a new token of row r reads: first every shared span whose row range holds r, then the row's private slots,
    then the row's own new tokens up to and including itself (causal). Spans and private slots are in path order, and
    keys already hold their rotary positions, so the order among them does not matter. A slot that is written in this
    step may be read in this step by other rows (in-flight sharing): all of a layer's writes come before its reads.
    """

    step: int
    opens: list[RowOpen]
    closes: list[int]
    """Row ids to forget, before `opens` is applied."""
    rows: Array  # int32[R] row ids; -1: a row without one, which samples nothing and need not be opened
    new_lens: Array  # int32[R] >= 1
    tokens: Array  # int32[T]; -1: the token that the row sampled last (it may still be under way when this is sent)
    positions: Array  # int32[T]
    slots: Array  # int32[T] KV slot each new token is written to
    private_lens: Array  # int32[R]
    private_slots: Array  # int32[sum(private_lens)]
    spans: Array  # int32[S, 4]: offset into span_slots, length, first row index, end row index
    span_slots: Array  # int32[sum of lengths]
    sample: Array  # uint8[R]: 1 where the row's last new token's logits are sampled
    drafts: Array  # int32[R] how many of a sampled row's last new tokens are guesses (see StepResult)
    masked: Array  # int32[M] indexes (of rows in this step) whose token masks follow in StepMasks; may be empty
    scores: list[ScoreSpec]
    branches: Array | None = None
    """int32[B, 3], (entry of `rows`, entry it branches off, fork): other guesses than the row's chain.

    A branch names its row a second time and has the guesses from `fork` on as its new tokens, all of them sampled from
    (`drafts` is one less). It counts where what is sampled behind the chain's first `fork` guesses is its first token.
    """
    pool: Array | None = None
    """uint8[R], what is wanted of a row's new tokens: 0: nothing; 1: the last one's hidden state, behind the final
    norm; 2: the sum of all their hidden states. None: nothing anywhere."""
    propose: Array | None = None
    """int32[R]: how many tokens the draft model shall guess behind what a sampled row samples; None: none anywhere."""


class StepMasks(Message, frozen=True, kw_only=True):
    """Scheduler -> runner: token masks for the rows in `StepPlan.masked`, sent once the last step's tokens are known.

    It follows every StepPlan with a non-empty `masked`, and may arrive after that step's forward has begun.
    """

    step: int
    bitmask: Array  # int32[sum of 1 + drafts over masked rows, ceil(V / 32)]; bit 1 (little-endian): allowed


class Score(msgspec.Struct, frozen=True, kw_only=True):
    """Answer to a ScoreSpec, in the same order."""

    logprobs: Array  # float32[n]
    top_ids: Array  # int32[n, top]
    top_logprobs: Array  # float32[n, top]


class StepResult(Message, frozen=True, kw_only=True):
    """Runner -> scheduler, one for each StepPlan, in order.

    K: 1 + drafts lines for each row with `sample` set, in the step's row order. Line i of a row is what it samples
    after its i-th last-known-or-guessed token, with that position's own random number: line 0 always counts, and line
    i + 1 counts exactly when line i sampled the guess that line i + 1 stands on. So guesses change the speed and
    nothing else.
    """

    step: int
    tokens: Array  # int32[K]; -1: nothing could be sampled (every token masked): that row has failed
    logprobs: Array  # float32[K]; meaningful for rows opened with logprobs >= 0
    top_ids: Array  # int32[K, k], k: the largest `logprobs` among the step's rows
    top_logprobs: Array  # float32[K, k]
    scores: list[Score]
    pooled: Array | None = None
    """float32[P, hidden]: for the rows with `pool` set, in their order; None where there are none."""
    proposals: Array | None = None
    """int32[P, k]: the draft model's guesses for the rows with `propose` set, in their order; -1 fills a line up."""
    draft_s: float = 0.0
    """Time of the draft model's `draft_passes` steps."""
    draft_passes: int = 0
    forward_s: float
    mask_wait_s: float
    sample_s: float
    parts: dict[str, float] = msgspec.field(default_factory=dict)
    """Seconds by part of the step: `radixrt.runner.parts` names them."""


class EncodePlan(Message, frozen=True, kw_only=True):
    """Scheduler -> runner of an encoder: some whole texts, read at once. Answered by EncodeResult or StepFailed."""

    step: int
    tokens: Array  # int32[T]: the texts one behind the other
    lengths: Array  # int32[R], each >= 1; their sum is T
    pooling: str
    """mean, cls or last (`radixrt.checkpoint.Pooling`)."""


class EncodeResult(Message, frozen=True, kw_only=True):
    """Runner -> scheduler, one for each EncodePlan, in order."""

    step: int
    vectors: Array  # float32[R, hidden]
    forward_s: float


class TierWork(Message, frozen=True, kw_only=True):
    """Scheduler -> runner: chunks to copy out of the pool and into it, in order with the StepPlans.

    Copied out before any later plan runs, so the slots may be given away by the time this is sent. Copied in when
    the tier has read them and between two steps; their slots belong to nobody else until TierDone. First the saves,
    then the loads, which are a run of one path: where one cannot be had, those behind it are of no use. C: tokens of
    a chunk.
    """

    number: int
    settled: int
    """The last step whose result was known when this was made: where a later one has failed, nothing is saved."""
    save_keys: Array  # uint8[n, 24]
    save_slots: Array  # int32[n, C]
    load_keys: Array  # uint8[m, 24]
    load_slots: Array  # int32[m, C]
    used_keys: Array  # uint8[k, 24] found in the pool, so used though not read; the last one last
    drop_keys: Array  # uint8[d, 24] to be forgotten, after the saves of this and all earlier orders
    sync: bool = False
    """Answer only when all that was saved survives a loss of power."""


class TierDone(Message, frozen=True, kw_only=True):
    """Runner -> scheduler: one for each TierWork, in any order."""

    number: int
    loaded: int = 0
    """The first `loaded` chunks to load are in their slots; the others' slots hold nothing valid."""
    load_s: float = 0.0
    """From the order's turn to the last copy."""
    stored: Array  # uint8[n, 24] keys that were saved, or that others added
    dropped: Array  # uint8[n, 24] keys that the tier has no more
    refused: int = 0
    """Chunks that could not be saved."""
    errors: int = 0
    used_bytes: int = 0


class StepFailed(Message, frozen=True, kw_only=True):
    """Runner -> scheduler: the step raised; none of its rows got a token and its slots hold nothing valid."""

    step: int
    message: str


ToRunner: TypeAlias = Connect | StepPlan | StepMasks | TierWork | EncodePlan
FromRunner: TypeAlias = Loading | RunnerReady | StartupFailed | StepResult | StepFailed | TierDone | EncodeResult
