"""Every message between processes. Nothing else crosses, and every message is typed (msgspec, tagged; no pickle).

The road of a request, one hop each way a step:

    client --Submit--> tokenizer --Enqueue--> scheduler --StepPlan, StepMasks--> runner
    client <--Deltas-- tokenizer <--TokenBatch-- scheduler <--StepResult-------- runner

Arrays are numpy arrays on both sides; `transport` sends them as raw frames beside the header, without a copy. The
receiver owns what it received and treats it as read-only. Array fields give shape and dtype in their comment.
R: rows of a step, T: new tokens of a step, V: vocabulary.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import msgspec
import numpy as np

from radixrt.errors import ErrorInfo
from radixrt.params import Constraint, SamplingParams
from radixrt.results import CacheView, Delta, EngineStats, FinishReason, ModelInfo, Pin, Usage
from radixrt.segments import ProgramEvent, ProgramItem, Segment

Array: TypeAlias = np.ndarray  # msgspec needs the bare class; shapes and dtypes are in the comments


class Message(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Base of all messages: immutable, tagged with its class name."""


# --- what a request starts from -------------------------------------------------------------------------------------


class TextPrompt(Message, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Text to be tokenized as it stands; never parsed for special tokens."""

    text: str
    add_special_tokens: bool = True
    """Put the model's BOS token in front where the model has one."""


class TokensPrompt(Message, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Token ids, used as they are."""

    ids: Array  # int32[n]


class ChatMessage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """One turn of a conversation; `content` is text (parts are joined before they get here)."""

    role: str
    content: str = ""
    name: str | None = None
    tool_calls: list[dict[str, Any]] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    """What the model thought before it said `content`; templates of thinking models show it or not."""


class ChatPrompt(Message, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Messages, rendered by the model's own chat template in the tokenizer process.

    With `after` the result is only what follows the first `after` messages, whose last one is still open (its end
    marker not yet written) when `after_open`. So a program appends turns to the token ids it already has; where the
    template's text for the longer conversation does not begin with that for the shorter one, the request is refused
    with code `not_incremental`.
    """

    messages: list[ChatMessage]
    tools: list[dict[str, Any]] | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    """Leave the last message open, so that generation continues its text."""
    template_kwargs: dict[str, Any] = {}
    opening: str = ""
    """What the answer begins with: put behind the generation prompt as it stands, control tokens included."""
    after: int = 0
    after_open: bool = False


Prompt: TypeAlias = TextPrompt | TokensPrompt | ChatPrompt

# --- client <-> tokenizer (DEALER <-> ROUTER) -----------------------------------------------------------------------
# `request_id` is the client's own number, unique among its open requests; the tokenizer maps it to an internal one,
# so no client can name another's request.


class Namespace(msgspec.Struct, frozen=True):
    """Who may share cached prefixes with whom; compared field by field, never as a joined string."""

    model: str = ""
    adapter: str | None = None
    tenant: str | None = None
    """Who asks, as the server knows it from the API key; None: nobody in particular."""
    salt: str | None = None
    """Chosen by the client."""

    @property
    def owner(self) -> Namespace:
        """Whose quotas count: the namespace without the salt, of which a client may have any number."""
        return Namespace(self.model, self.adapter, self.tenant)


class Hello(Message, frozen=True, kw_only=True):
    """Client -> tokenizer, first: answered by Loading while the engine starts and by Ready or StartupFailed."""


class Submit(Message, frozen=True, kw_only=True):
    """Client -> tokenizer: generate. Answered by Deltas until every sample has a finish_reason, or by Failed."""

    request_id: int
    prompt: Prompt
    sampling: SamplingParams
    constraint: Constraint | None = None
    cache_salt: str | None = None
    """Requests share cached prefixes only with requests of the same salt."""
    tenant: str | None = None
    """Set by the server from the API key, never by a client."""
    pin_s: float | None = None
    """Keep the prompt in the tree for so many seconds; only with max_tokens 0. The usage then tells of the pin."""
    priority: int = 0
    """Lower goes first among waiting requests."""
    timeout_s: float | None = None
    """Fail with code `timeout` what is not done by then; half of it waited, the request goes before others."""
    stream: bool = True
    """False: no Delta before a sample is finished (fewer messages; the text is the same)."""


class Select(Message, frozen=True, kw_only=True):
    """Client -> tokenizer: score options as what the prompt goes on with. Answered by Selected or Failed.

    Texts are tokenized together with the text before them (`text`, behind the prompt, or a TextPrompt's own), so that
    one that merges with its end is scored merged.
    """

    request_id: int
    prompt: Prompt
    """Ids may be none: then `text` is the beginning, as a TextPrompt's is."""
    text: str = ""
    options: list[str] = []
    option_ids: list[list[int]] = []
    """Instead of `options`."""
    begins_turn: bool = False
    """Nothing but `text` stands in the turn, as after a generation prompt: each option is scored with and without a
    leading space, where that makes sense."""
    unconditional: bool = False
    """Score the options without the prompt, too."""
    return_cache_report: bool = False
    """As in SamplingParams."""
    cache_salt: str | None = None
    tenant: str | None = None
    """As in Submit."""
    priority: int = 0


class Abort(Message, frozen=True, kw_only=True):
    """Client -> tokenizer: nobody waits for this request any more. Nothing is answered; an unknown id is ignored."""

    request_id: int


class OpenProgram(Message, frozen=True, kw_only=True):
    """Client -> tokenizer: run a program. Answered by ProgramNews, or by Failed, which ends it; Abort ends it too.

    It stays open for AppendProgram until `closed`; once closed it ends with its last item. With `parent`, another open
    program of the client, it begins when that one reaches a `Branch` that names it.
    """

    request_id: int
    items: list[ProgramItem] = []
    closed: bool = False
    parent: int | None = None
    cache_salt: str | None = None
    tenant: str | None = None
    """As in Submit."""
    priority: int = 0
    stream: bool = True


class AppendProgram(Message, frozen=True, kw_only=True):
    """Client -> tokenizer: more of an open program, while what it has may still run. One that ended ignores it."""

    request_id: int
    items: list[ProgramItem] = []
    closed: bool = False


class Tokenize(Message, frozen=True, kw_only=True):
    """Client -> tokenizer: the ids a prompt becomes. Answered by Tokenized or Failed."""

    request_id: int
    prompt: Prompt


class Detokenize(Message, frozen=True, kw_only=True):
    """Client -> tokenizer: the text of token ids. Answered by Detokenized or Failed."""

    request_id: int
    ids: Array  # int32[n]
    skip_special_tokens: bool = False


class Query(Message, frozen=True, kw_only=True):
    """Client -> tokenizer -> scheduler: look at the engine; `flush` drops what nobody locks from the tree, and
    the tier; `save` copies what the tree holds to the tier and is answered when that is safe.

    tree, unpin: in the namespace of `tenant` and `cache_salt`. flush: of the tree all that is the tenant's; without a
    tenant everything, the tier too.
    """

    request_id: int
    what: Literal["stats", "tree", "flush", "unpin", "save"]
    tenant: str | None = None
    cache_salt: str | None = None
    pin_id: str = ""
    """For unpin."""


class Tokenized(Message, frozen=True, kw_only=True):
    request_id: int
    ids: Array  # int32[n]
    text: str
    """The rendered prompt (for a chat, the template's text)."""
    pieces: list[bytes]
    """Exact bytes of each token; joined they are the prompt's text, special tokens included."""


class Detokenized(Message, frozen=True, kw_only=True):
    request_id: int
    text: str


class Selected(Message, frozen=True, kw_only=True):
    """Tokenizer -> client: what an option's tokens are, and their log-probabilities.

    Lists have an entry an option; twice as many where each was scored with and without a leading space: first all
    without, then all with one.
    """

    request_id: int
    token_ids: list[list[int]]
    logprobs: list[list[float]]
    unconditional: list[list[float]]
    written: list[list[int]]
    """For each option as it was given: the ids that the prompt's go on with where it is chosen, `text` included."""
    usage: Usage


class Deltas(Message, frozen=True, kw_only=True):
    """Tokenizer -> client: what one step brought to this client's requests: (request_id, delta) pairs."""

    items: list[tuple[int, Delta]]


class ProgramNews(Message, frozen=True, kw_only=True):
    """Tokenizer -> client: what one step brought to a program."""

    request_id: int
    events: list[ProgramEvent]


class Failed(Message, frozen=True, kw_only=True):
    """Tokenizer -> client: this request ended in an error; nothing more will come for it."""

    request_id: int
    error: ErrorInfo


class StatsAnswer(Message, frozen=True, kw_only=True):
    request_id: int
    stats: EngineStats


class TreeAnswer(Message, frozen=True, kw_only=True):
    request_id: int
    view: CacheView


class UnpinAnswer(Message, frozen=True, kw_only=True):
    request_id: int
    pin: Pin


class FlushAnswer(Message, frozen=True, kw_only=True):
    request_id: int
    freed_tokens: int


class SaveAnswer(Message, frozen=True, kw_only=True):
    request_id: int
    tier_tokens: int
    """What the tier holds now; 0 where there is none."""


class Loading(Message, frozen=True, kw_only=True):
    """Runner -> scheduler -> tokenizer -> client: start-up progress."""

    stage: str
    fraction: float


class Ready(Message, frozen=True, kw_only=True):
    """Tokenizer -> client: the engine serves."""

    info: ModelInfo


class StartupFailed(Message, frozen=True, kw_only=True):
    """Any process -> ... -> client: the engine cannot start; the process that says so exits."""

    error: ErrorInfo


FromClient: TypeAlias = Hello | Submit | Select | OpenProgram | AppendProgram | Abort | Tokenize | Detokenize | Query
ToClient: TypeAlias = (
    Tokenized
    | Detokenized
    | Selected
    | Deltas
    | ProgramNews
    | Failed
    | StatsAnswer
    | TreeAnswer
    | UnpinAnswer
    | FlushAnswer
    | SaveAnswer
    | Loading
    | Ready
    | StartupFailed
)

# --- tokenizer <-> scheduler (PUSH/PULL both ways) ------------------------------------------------------------------
# `request_id` is the tokenizer's number, unique for the life of the engine.


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
    """Of the one token in `ids`: the constraint let no other text follow, whatever the model thinks."""
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


ToScheduler: TypeAlias = Enqueue | EnqueueSelect | RunSegments | StopRow | Cancel | SchedulerQuery
FromScheduler: TypeAlias = (
    TokenBatch | PromptScores | SelectScores | Rejected | SchedulerAnswer | Loading | Ready | StartupFailed
)

# --- scheduler <-> runner (DEALER <-> ROUTER) -----------------------------------------------------------------------


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
    device: str
    threads: int
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
    proposals: Array | None = None
    """int32[P, k]: the draft model's guesses for the rows with `propose` set, in their order; -1 fills a line up."""
    draft_s: float = 0.0
    """Time of the draft model's `draft_passes` steps."""
    draft_passes: int = 0
    forward_s: float
    mask_wait_s: float
    sample_s: float
    parts: dict[str, float] = {}
    """Seconds by part of the step: `radixrt.runner.parts` names them."""


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


ToRunner: TypeAlias = Connect | StepPlan | StepMasks | TierWork
FromRunner: TypeAlias = Loading | RunnerReady | StartupFailed | StepResult | StepFailed | TierDone
