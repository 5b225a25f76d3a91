"""Tokenizer <-> scheduler (PUSH/PULL both ways).

`request_id` is the tokenizer's number, unique for the life of the engine.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from radixrt.errors import ErrorInfo
from radixrt.messages.base import Array, Message, Namespace
from radixrt.messages.client import Loading, Ready, StartupFailed
from radixrt.params import Constraint, SamplingParams
from radixrt.results import EngineStats, FinishReason, Pin, Usage
from radixrt.segments import Segment


class Enqueue(Message, frozen=True, kw_only=True):
    """Tokenizer -> scheduler: a request over token ids. Answered by TokenBatch items or Rejected."""

    request_id: int
    ids: Array  # int32[n], n >= 1
    sampling: SamplingParams
    constraint: Constraint | None = None
    namespace: Namespace = Namespace()
    pin_s: float | None = None
    priority: int = 0
    timeout_s: float | None = None
    """Seconds from now in which it must be done."""


class RunSegments(Message, frozen=True, kw_only=True):
    """Tokenizer -> scheduler: segments that a program runs one after another, in one row. Each segment's tokens come as
    TokenDelta under its own request id; Cancel with the program's id ends the program.

    `keep`: how many of the program's tokens stand before the first of these; -1: all that there will be when the
    segments before them are done. An unknown program begins, with the first `keep` tokens of the program `like`, whose
    node it shares.
    """

    program_id: int
    keep: int
    segments: list[Segment]
    like: int | None = None
    namespace: Namespace = Namespace()
    priority: int = 0


class EnqueueSelect(Message, frozen=True, kw_only=True):
    """Tokenizer -> scheduler: score options. Answered by SelectScores or Rejected."""

    request_id: int
    prompt: Array  # int32[n], n >= 1
    options: list[list[int]]
    """Token ids of each, none of them empty."""
    base: Array  # int32[b]; what stands before the options when they are scored without the prompt; empty: they are not
    return_cache_report: bool = False
    namespace: Namespace = Namespace()
    priority: int = 0


class EnqueueEmbed(Message, frozen=True, kw_only=True):
    """Tokenizer -> scheduler: pool the hidden states of some texts. Answered by Pooled or Rejected."""

    request_id: int
    ids: Array  # int32[T]: the texts' tokens one behind the other
    lengths: Array  # int32[n], each >= 1; their sum is T
    first: int = 0
    """As in Embed."""
    namespace: Namespace = Namespace()
    priority: int = 0


class StopRow(Message, frozen=True, kw_only=True):
    """Tokenizer -> scheduler: sample `index` matched a stop string within its first `keep` tokens; it is finished."""

    request_id: int
    index: int
    keep: int


class Cancel(Message, frozen=True, kw_only=True):
    """Tokenizer -> scheduler: drop the request (client gone, or it failed in the tokenizer)."""

    request_id: int


class SchedulerQuery(Message, frozen=True, kw_only=True):
    """Tokenizer -> scheduler: `query_id` is the tokenizer's number for it."""

    query_id: int
    what: Literal["stats", "tree", "flush", "unpin", "save"]
    namespace: Namespace = Namespace()
    pin_id: str = ""


class TokenDelta(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """New tokens of one sample. `ids` never holds the end token; a finish_reason comes exactly once a sample."""

    request_id: int
    index: int
    ids: list[int] = []
    forced: bool = False
    """Of all tokens in `ids`: the constraint let no other text follow, whatever the model thinks."""
    logprobs: list[float] = []
    """One a token, where asked for; else empty."""
    top_ids: list[list[int]] = []
    top_logprobs: list[list[float]] = []
    finish_reason: FinishReason | None = None
    stop_token: int | None = None
    """The stop_token_ids entry that ended the sample; None for the model's own end token."""
    usage: Usage | None = None
    """On the last delta of the request."""


class PromptScores(Message, frozen=True, kw_only=True):
    """Scheduler -> tokenizer: log-probabilities of prompt tokens start.. (before any TokenDelta of the request)."""

    request_id: int
    start: int
    logprobs: Array  # float32[n]; for start == 0 the first value is NaN: nothing comes before that token
    top_ids: Array  # int32[n, k]
    top_logprobs: Array  # float32[n, k]


class SelectScores(Message, frozen=True, kw_only=True):
    """Scheduler -> tokenizer: log-probability of each token of each option, and the same without the prompt."""

    request_id: int
    logprobs: list[list[float]]
    unconditional: list[list[float]]
    """Empty where it was not asked for."""
    usage: Usage


class Pooled(Message, frozen=True, kw_only=True):
    """Scheduler -> tokenizer: a vector of each text of an EnqueueEmbed, in its order."""

    request_id: int
    vectors: Array  # float32[n, hidden]
    usage: Usage
    """Of all texts together."""


class TokenBatch(Message, frozen=True, kw_only=True):
    """Scheduler -> tokenizer: all new tokens of a step."""

    items: list[TokenDelta]


class Rejected(Message, frozen=True, kw_only=True):
    """Scheduler -> tokenizer: the request failed, at admission or while it ran."""

    request_id: int
    error: ErrorInfo


class TreeNode(msgspec.Struct, frozen=True, kw_only=True):
    """A node of the tree for the inspector; `head` holds its first token ids."""

    depth: int
    tokens: int
    hits: int
    locks: int
    """Running rows on it."""
    pins: int = 0
    start: int = 0
    age_s: float
    head: list[int]


class TreeView(msgspec.Struct, frozen=True, kw_only=True):
    """A namespace's tree and its pins."""

    nodes: list[TreeNode]
    tokens: int
    truncated: bool
    pins: list[Pin]
    pinned_tokens: int
    pin_quota: int


class SchedulerAnswer(Message, frozen=True, kw_only=True):
    """Scheduler -> tokenizer: answer to a SchedulerQuery; the one field that was asked for is set."""

    query_id: int
    stats: EngineStats | None = None
    tree: TreeView | None = None
    freed_tokens: int | None = None
    tier_tokens: int | None = None
    pin: Pin | None = None
    error: ErrorInfo | None = None


ToScheduler: TypeAlias = Enqueue | EnqueueSelect | EnqueueEmbed | RunSegments | StopRow | Cancel | SchedulerQuery
FromScheduler: TypeAlias = (
    TokenBatch | PromptScores | SelectScores | Pooled | Rejected | SchedulerAnswer | Loading | Ready | StartupFailed
)
