"""What a caller gets back: plain typed values, the same from Engine and Client."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

Bytes: TypeAlias = bytes  # inside a class with a field called bytes, the bare name means the field
FinishReason = Literal["stop", "length", "abort"]


class TopLogprob(msgspec.Struct, frozen=True):
    """One of the most likely tokens at a position."""

    token_id: int
    token: str
    bytes: Bytes
    logprob: float


class TokenLogprob(msgspec.Struct, frozen=True):
    """A token, its exact bytes (`token` shows U+FFFD where they are not whole characters) and its log-probability.

    `logprob` is None only for the first token of a prompt. `top` is ordered, most likely first.
    """

    token_id: int
    token: str
    bytes: Bytes
    logprob: float | None
    top: tuple[TopLogprob, ...] = ()


class ConstraintReport(msgspec.Struct, frozen=True):
    """What became of a request's constraint."""

    backend: str
    """The library that enforced it."""
    ignored: tuple[str, ...] = ()
    """JSON pointers to the keywords that were not enforced; only where `lax` allowed that."""
    added: tuple[str, ...] = ()
    """JSON pointers to the keywords that are enforced by being said in other words."""
    passed: tuple[str, ...] = ()
    """What other back ends answered that were asked before: `name: why not`."""


class CacheBranch(msgspec.Struct, frozen=True):
    """How a continuation that the tree holds begins."""

    token_ids: tuple[int, ...]
    text: str = ""


class CacheReport(msgspec.Struct, frozen=True, kw_only=True):
    """What the prefix tree had of a prompt when the request began, and why not more."""

    cached: int
    """Prompt tokens found."""
    computed: int
    """Prompt tokens that had to be computed; the last one always has to be."""
    missed_at: int | None = None
    """Position of the first token that was not found; None: everything was that could be."""
    reason: Literal["diverged", "evicted", "never_seen"] | None = None
    """evicted: it was there once; diverged: only other continuations are; never_seen: nothing ever followed there, as
    far as is remembered."""
    diverged_from: tuple[CacheBranch, ...] = ()
    """What the tree held there instead, of the request's own namespace: some continuations, a few tokens of each."""


class Pin(msgspec.Struct, frozen=True, kw_only=True):
    """A prefix that stays in the tree for a time (`Engine.pin`)."""

    id: str
    tokens: int
    expires_in_s: float


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """Token counts and times of one request, all samples together; the prompt counts once."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    """Prompt tokens that came from the tree, computed earlier or by another request at the same time."""
    restored_tokens: int = 0
    """Of these, tokens that a tier (host memory, disk) brought back for this request."""
    completion_tokens: int = 0
    grammar_s: float = 0.0
    """From arrival at the scheduler until the constraint was compiled; part of `queue_s`."""
    draft_tokens: int = 0
    """Tokens that were guessed and verified beside the sampled ones."""
    accepted_draft_tokens: int = 0
    """Of these, tokens that were sampled indeed: so many steps were spared."""
    queue_s: float = 0.0
    """From arrival at the scheduler to the first planned step."""
    ttft_s: float = 0.0
    """From arrival at the scheduler to the first generated token."""
    total_s: float = 0.0
    constraint: ConstraintReport | None = None
    """Where the request had one."""
    cache: CacheReport | None = None
    """Where `SamplingParams.return_cache_report` asked for it."""
    pin: Pin | None = None
    """What the request pinned (`Engine.pin` alone does)."""

    @property
    def total_tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens

    def __add__(self, other: Usage) -> Usage:
        once = ("constraint", "cache", "pin")  # of one request each: the first there is
        sums = {f: getattr(self, f) + getattr(other, f) for f in self.__struct_fields__ if f not in once}
        return Usage(**sums, **{f: getattr(self, f) or getattr(other, f) for f in once})


class Delta(msgspec.Struct, frozen=True, kw_only=True):
    """A piece of one sample, as it streams. Joined `text` over all deltas of an index is the sample's text.

    `usage` is there on the last delta of the request, and only there; `prompt_logprobs` on the first delta of index 0.
    """

    index: int = 0
    text: str = ""
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    """The stop string or stop token id that ended the sample, None for the model's own end token."""
    usage: Usage | None = None
    prompt_logprobs: tuple[TokenLogprob, ...] | None = None
    forced: tuple[tuple[int, int], ...] = ()
    """Of this sample's text so far, in order: characters [start, end) of tokens, new with this delta, that the
    constraint forced: no other text was possible."""


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """One finished sample. `token_ids` are the generated ids, without the end token."""

    index: int
    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    stop_reason: str | int | None = None
    logprobs: tuple[TokenLogprob, ...] | None = None
    forced: tuple[tuple[int, int], ...] = ()
    """Characters [start, end) of the text that the constraint forced, in order, none of them adjoining. Told of tokens
    that are the tokenizer's own spelling of the only possible text, or the only possible token."""


class Generation(msgspec.Struct, frozen=True, kw_only=True):
    """A finished request: one choice a sample, ordered by index."""

    choices: tuple[Choice, ...]
    usage: Usage
    prompt_logprobs: tuple[TokenLogprob, ...] | None = None

    @property
    def text(self) -> str:
        """Text of the first choice."""
        return self.choices[0].text

    @property
    def token_ids(self) -> tuple[int, ...]:
        return self.choices[0].token_ids

    @property
    def finish_reason(self) -> FinishReason:
        return self.choices[0].finish_reason


class Scores(msgspec.Struct, frozen=True, kw_only=True):
    """What `Backend.score` found out about some options."""

    logprobs: list[tuple[float, ...]]
    """One a token of each option."""
    usage: Usage
    """Prompt tokens are those of the prompt and of all options; cached are those of the prompt that were there."""


class Selection(msgspec.Struct, frozen=True, kw_only=True):
    """What `Backend.select` chose. Tuples have an entry an option, in the order in which they were given."""

    index: int
    """Of the option that was chosen."""
    choice: str | None = None
    """Its text; None where the options were token ids."""
    scores: tuple[float, ...]
    token_ids: tuple[tuple[int, ...], ...]
    """Each option's own tokens, behind those that all share with the prompt."""
    logprobs: tuple[tuple[float, ...], ...]
    """One a token of each option."""
    unconditional: tuple[tuple[float, ...], ...] | None = None
    """The same without the prompt; only for unconditional_likelihood_normalized."""
    written: tuple[int, ...]
    """What the prompt's ids go on with; of a prompt that is text: the ids of all of it, the choice included."""
    usage: Usage
    """Prompt tokens are those of the prompt and of all options; cached are those of the prompt that were there."""


class EmbeddingInfo(msgspec.Struct, frozen=True, kw_only=True):
    """How the model makes a vector of a text."""

    size: int
    """Length of a vector."""
    pooling: str
    """mean, cls or last: of a text's hidden states the mean, the first or the last one."""
    sizes: tuple[int, ...] | None = None
    """Lengths that a vector may be cut to; (): any; None: none, for the model was not trained for it."""


class ModelInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What is being served."""

    name: str
    context_length: int
    kv_tokens: int
    """Slots of the KV pool; prompt and completion of one request must fit into them."""
    vocab_size: int
    dtype: str
    """Number type of activations."""
    kv_dtype: str = ""
    """Number type of cached keys and values."""
    device: str
    threads: int
    description: str = ""
    """What computes, and in which number types, in words: `avx2, 4-bit weights as the file, float16 KV, 2 threads`."""
    slow: str = ""
    """Why the fast path is not used, and what to do about it; empty where it is."""
    eos_token_ids: tuple[int, ...]
    has_chat_template: bool
    tool_dialect: str | None = None
    """How the model writes calls (a name in `radixrt.dialects`); None: in no way that is known, or there is no chat."""
    tool_controls: tuple[str, ...] = ()
    """The dialect's words that are control tokens of the vocabulary."""
    thinking: tuple[str, str] | None = None
    """What the model writes before and behind its thoughts, where it shows any."""
    generates: bool = True
    """False: it makes embeddings and nothing else."""
    embedding: EmbeddingInfo | None = None
    """None: it makes no embeddings."""


def computing(info: ModelInfo) -> str:
    """What computes a served model, in one line; a server of an earlier version says less."""
    return info.description or f"{info.dtype} on {info.device}, {info.threads} threads"


class CacheNode(msgspec.Struct, frozen=True, kw_only=True):
    """One node of the prefix tree as the inspector shows it, in depth-first order."""

    depth: int
    tokens: int
    hits: int
    """Requests that found it."""
    locks: int
    """Running rows on it."""
    pins: int = 0
    """Pins on it."""
    start: int = 0
    """Position of its first token."""
    age_s: float
    """Since it was last used."""
    text: str
    """Beginning of the node's text, decoded."""


class TierStats(msgspec.Struct, frozen=True, kw_only=True):
    """The tier behind the KV pool; counts are of tokens since start where nothing else is said."""

    kind: str
    """disk, host or disk+host."""
    tokens: int
    """What it holds now."""
    used_bytes: int
    capacity_bytes: int
    stored: int = 0
    refused: int = 0
    """Could not be stored: the disk is full or too slow."""
    restored: int = 0
    prefetches: int = 0
    """Number of prefetches begun."""
    prefetch_hits: int = 0
    """Of these, those that brought all they were asked for."""
    given_up: int = 0
    """Requests that stopped waiting for a prefetch because computing had become the faster way."""
    errors: int = 0
    """Failed calls, broken chunks included."""


class CacheView(msgspec.Struct, frozen=True, kw_only=True):
    """One namespace's part of the prefix tree, depth first."""

    nodes: list[CacheNode]
    tokens: int = 0
    """In all its nodes, also those that are not listed."""
    truncated: bool = False
    """There are more nodes than are listed."""
    pins: list[Pin] = []
    pinned_tokens: int = 0
    """Pinned by the tenant, in all its namespaces."""
    pin_quota: int = 0
    tier: TierStats | None = None
    """What lies behind the tree, of all namespaces together: only an operator of a server sees it."""


class EngineStats(msgspec.Struct, frozen=True, kw_only=True):
    """Counters and gauges of the scheduler, cumulative since start; seconds are sums."""

    running: int = 0
    waiting: int = 0
    kv_tokens: int = 0
    kv_used: int = 0
    """Slots that running rows hold or lock."""
    kv_cached: int = 0
    """Slots in the tree that nobody locks: evictable."""
    preemptions: int = 0
    evicted_tokens: int = 0
    evictions: int = 0
    """Nodes, or tails of nodes, that these were."""
    eviction_policy: str = "lru"
    cache_nodes: int = 0
    pinned_tokens: int = 0
    pins: int = 0
    pins_broken: int = 0
    """Pins that gave way before their time so that a request could go on."""
    hit_tokens: dict[str, int] = {}
    """Cached prompt tokens by where they were: tree, in_flight (being computed by a step under way), or a tier."""
    lock_s: tuple[float, int] = (0.0, 0)
    """Seconds that rows held their paths; sum and count."""
    shared_read_tokens: int = 0
    """Reads of cached tokens that steps spared by reading a shared span once for all its rows."""
    checks: int = 0
    """Proofs of the cache's invariants; one that fails ends the process."""
    check_s: float = 0.0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    restored_tokens: int = 0
    """Of the cached ones, those that a tier brought back for the request."""
    generation_tokens: int = 0
    embedded_texts: int = 0
    draft_tokens: int = 0
    """Tokens that were guessed and verified in one step with their predecessor."""
    accepted_draft_tokens: int = 0
    drafts_by_source: dict[str, tuple[int, int]] = {}
    """(verified, held) of each source of guesses: forced, tree, model."""
    draft_index_tokens: int = 0
    """Tokens that the suffix index of the tree's guesses holds."""
    steps: int = 0
    plan_s: float = 0.0
    step_s: float = 0.0
    mask_s: float = 0.0
    mask_wait_s: float = 0.0
    step_parts: dict[str, float] = {}
    """Seconds of the runner's steps by part: wait, plan, embed, products, attention, pointwise, head, sample, send, ..;
    `wait` holds the time without any work, too."""
    grammar_compiles: int = 0
    grammar_backends: dict[str, int] = {}
    """Constraints compiled, by the back end that took them."""
    grammar_refusals: int = 0
    """Constraints refused: by no back end enforced, malformed, or above a limit."""
    grammar_workers_lost: int = 0
    """Compile workers killed or crashed over a constraint."""
    grammar_cache_hits: int = 0
    grammar_compile_s: float = 0.0
    tier: TierStats | None = None
    """None where no tier is configured."""
    finished: dict[str, int] = {}
    """Requests by finish reason: stop, length, embed, abort, error."""
    queue_s: tuple[float, int] = (0.0, 0)
    """Sum and count; the same for the next three."""
    ttft_s: tuple[float, int] = (0.0, 0)
    inter_token_s: tuple[float, int] = (0.0, 0)
    total_s: tuple[float, int] = (0.0, 0)
