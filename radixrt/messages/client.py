"""Client <-> tokenizer (DEALER <-> ROUTER).

`request_id` is the client's own number, unique among its open requests; the tokenizer maps it to an internal one, so no
client can name another's request.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from radixrt.errors import ErrorInfo
from radixrt.messages.base import Array, Message, Prompt
from radixrt.params import Constraint, SamplingParams
from radixrt.results import CacheView, Delta, EngineStats, ModelInfo, Pin, Usage
from radixrt.segments import ProgramEvent, ProgramItem


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
    options: list[str] = msgspec.field(default_factory=list)
    option_ids: list[list[int]] = msgspec.field(default_factory=list)
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


class Embed(Message, frozen=True, kw_only=True):
    """Client -> tokenizer: make a vector of each text. Answered by Embedded or Failed."""

    request_id: int
    prompts: list[Prompt]
    """At most `radixrt.params.EMBED_BATCH`."""
    first: int = 0
    """Number of the first of them, as the caller counts: what errors name."""
    truncate: bool = False
    """Leave out the end of a text that is longer than the context, instead of refusing it."""
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
    items: list[ProgramItem] = msgspec.field(default_factory=list)
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
    items: list[ProgramItem] = msgspec.field(default_factory=list)
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


class Embedded(Message, frozen=True, kw_only=True):
    """Tokenizer -> client: pooled hidden states, neither cut nor normalized."""

    request_id: int
    vectors: Array  # float32[n, hidden]
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


FromClient: TypeAlias = (
    Hello | Submit | Select | Embed | OpenProgram | AppendProgram | Abort | Tokenize | Detokenize | Query
)
ToClient: TypeAlias = (
    Tokenized
    | Detokenized
    | Selected
    | Embedded
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
