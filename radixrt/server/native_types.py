"""Bodies of the native protocol, which `radixrt.Client` speaks. Answers are the types of `radixrt.results` as JSON.

Token ids are plain lists, bytes are base64; a prompt is text, a list of token ids, or a prompt message with its `type`
(for example {"type": "ChatPrompt", "messages": [...]}).
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, TypeAlias

import msgspec
import numpy as np

from radixrt.messages import ChatPrompt, TextPrompt, TokensPrompt
from radixrt.params import Constraint, SamplingParams
from radixrt.results import ModelInfo, TierStats

TokenId: TypeAlias = Annotated[int, msgspec.Meta(ge=0, lt=2**31)]
"""Whether it is in the vocabulary the engine says."""

Priority: TypeAlias = Annotated[int, msgspec.Meta(ge=-(2**53), le=2**53)]
"""Lower goes first; what every JSON library writes exactly."""


class Body(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """Base of the native bodies."""


class GenerateRequest(Body, kw_only=True, frozen=True):
    """POST /generate. Answered by a Generation, or with `stream` by events that each hold a Delta, then [DONE]."""

    ELSEWHERE: ClassVar[dict[str, str]] = {
        "messages": "a conversation is a prompt of the type ChatPrompt here, or goes to /v1/chat/completions",
        "input": "use prompt",
    }

    prompt: str | list[TokenId] | TextPrompt | TokensPrompt | ChatPrompt
    sampling: SamplingParams = SamplingParams()
    constraint: Constraint | None = None
    cache_salt: str | None = None
    priority: Priority = 0
    stream: bool = False
    timeout_s: float | None = None
    """The request is cancelled, and answered by Aborted, when it has taken so long."""


class ScoreRequest(Body, kw_only=True, frozen=True):
    """POST /score. Answered by `radixrt.results.Scores`."""

    prompt: str | list[TokenId] | TextPrompt | TokensPrompt | ChatPrompt
    options: list[list[TokenId]]
    """Token ids of each option, to be scored as the continuation of the prompt."""
    cache_salt: str | None = None
    priority: Priority = 0
    timeout_s: float | None = None
    """As in a GenerateRequest; for all options together."""


class PinRequest(Body, kw_only=True, frozen=True):
    """POST /v1/cache/pin: compute a prompt and keep it cached. Answered by `radixrt.results.Pin`."""

    prompt: str | list[TokenId] | TextPrompt | TokensPrompt | ChatPrompt
    ttl_s: float
    """Seconds."""
    cache_salt: str | None = None
    priority: Priority = 0
    timeout_s: float | None = None


class UnpinRequest(Body, kw_only=True, frozen=True):
    """POST /v1/cache/unpin. Answered by the Pin that was, or 404."""

    id: str
    cache_salt: str | None = None


class EncodeRequest(Body, kw_only=True, frozen=True):
    """POST /encode. Answered by `radixrt.backend.Tokens`: ids, rendered text, exact bytes of each token."""

    prompt: str | list[TokenId] | TextPrompt | TokensPrompt | ChatPrompt


class DecodeRequest(Body, kw_only=True, frozen=True):
    """POST /decode. Answered by Decoded."""

    ids: list[TokenId]
    skip_special_tokens: bool = False


class Decoded(Body, kw_only=True, frozen=True):
    text: str


class ServerInfo(Body, kw_only=True, frozen=True):
    """GET /server_info."""

    version: str
    served_model_name: str
    model: ModelInfo
    tier: TierStats | None = None
    """Where KV goes that the pool has no room for; null: nowhere, or the key may not operate the server (this counts
    what everybody has cached)."""


def to_json(value: Any) -> bytes:
    """JSON of a native body; arrays become lists."""
    return msgspec.json.encode(value, enc_hook=_plain)


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.tolist()
    raise NotImplementedError(f"{type(value).__name__} has no JSON form")
