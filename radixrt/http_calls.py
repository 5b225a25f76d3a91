"""What a client sends a radixrt server for each call, and what it reads out of the answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Generic, TypeVar
from urllib.parse import urlencode

from radixrt.backend import Tokens
from radixrt.choosing import check_options
from radixrt.client_calls import (
    CacheCall,
    Call,
    DetokenizeCall,
    EmbedCall,
    GenerateCall,
    PinCall,
    ScoreCall,
    SelectCall,
    TokenizeCall,
    UnpinCall,
)
from radixrt.http_embedding import EmbeddingAnswer, embed_body, embeddings_of
from radixrt.params import SamplingParams, as_constraint
from radixrt.pinning import checked_ttl, pin_name
from radixrt.prompts import as_prompt
from radixrt.results import CacheView, Generation, Pin, Scores, Selection
from radixrt.server.native_types import (
    Decoded,
    DecodeRequest,
    EncodeRequest,
    GenerateRequest,
    PinRequest,
    ScoreRequest,
    UnpinRequest,
)
from radixrt.server.select_types import SelectRequest

Answer = TypeVar("Answer")


def _whole(answer: Any) -> Any:
    return answer


@dataclass(frozen=True)
class HttpCall(Generic[Answer]):
    """A request to the server, GET where there is no body."""

    path: str
    body: Any
    kind: type[Any]
    """Of the answer's JSON."""
    timeout: float | None = None
    read: Callable[[Any], Answer] = _whole

    @property
    def method(self) -> str:
        return "GET" if self.body is None else "POST"


def http_call(call: Call[Answer], timeout: float | None) -> HttpCall[Answer]:
    """How a call is sent; `timeout`: seconds, for a call that says none. What is wrong with it is raised here."""
    return _http_call(call, timeout)


def _http_call(call: Call[Any], timeout: float | None) -> HttpCall[Any]:
    match call:
        case GenerateCall():
            body = generate_body(call, timeout, stream=False)
            return HttpCall("/generate", body, Generation, body.timeout_s)
        case ScoreCall():
            score = _score_body(call, timeout)
            return HttpCall("/score", score, Scores, score.timeout_s)
        case SelectCall():
            select = _select_body(call, timeout)
            return HttpCall("/v1/select", select, Selection, select.timeout_s)
        case EmbedCall():
            seconds = timeout if call.timeout is None else call.timeout
            return HttpCall("/v1/embeddings", embed_body(call), EmbeddingAnswer, seconds, embeddings_of)
        case PinCall():
            pin = _pin_body(call, timeout)
            return HttpCall("/v1/cache/pin", pin, Pin, pin.timeout_s)
        case UnpinCall():
            unpin = UnpinRequest(id=pin_name(call.pin), cache_salt=call.cache_salt)
            return HttpCall("/v1/cache/unpin", unpin, Pin, timeout)
        case CacheCall(cache_salt=salt):
            path = "/cache" if salt is None else f"/cache?{urlencode({'cache_salt': salt})}"
            return HttpCall(path, None, CacheView, timeout)
        case TokenizeCall():
            return HttpCall("/encode", EncodeRequest(prompt=as_prompt(call.prompt)), Tokens, timeout)
        case DetokenizeCall():
            decode = DecodeRequest(ids=_plain_ids(call.ids), skip_special_tokens=call.skip_special_tokens)
            return HttpCall("/decode", decode, Decoded, timeout, attrgetter("text"))
    raise TypeError(f"nobody knows how to send a {type(call).__name__}")


def generate_body(call: GenerateCall, timeout: float | None, *, stream: bool) -> GenerateRequest:
    return GenerateRequest(
        prompt=as_prompt(call.prompt),
        sampling=call.sampling or SamplingParams(),
        constraint=as_constraint(call.constraint),
        cache_salt=call.cache_salt,
        priority=call.priority,
        stream=stream,
        timeout_s=timeout if call.timeout is None else call.timeout,
    )


def _pin_body(call: PinCall, timeout: float | None) -> PinRequest:
    return PinRequest(
        prompt=as_prompt(call.prompt),
        ttl_s=checked_ttl(call.ttl),
        cache_salt=call.cache_salt,
        priority=call.priority,
        timeout_s=timeout if call.timeout is None else call.timeout,
    )


def _score_body(call: ScoreCall, timeout: float | None) -> ScoreRequest:
    return ScoreRequest(
        prompt=as_prompt(call.prompt),
        options=[_plain_ids(option) for option in call.options],
        cache_salt=call.cache_salt,
        priority=call.priority,
        timeout_s=timeout if call.timeout is None else call.timeout,
    )


def _select_body(call: SelectCall, timeout: float | None) -> SelectRequest:
    check_options(call.options, call.method)
    return SelectRequest(
        prompt=as_prompt(call.prompt),
        options=[option if isinstance(option, str) else _plain_ids(option) for option in call.options],
        method=call.method,
        text=call.text,
        begins_turn=call.begins_turn,
        return_cache_report=call.return_cache_report,
        cache_salt=call.cache_salt,
        priority=call.priority,
        timeout_s=timeout if call.timeout is None else call.timeout,
    )


def _plain_ids(ids: Sequence[int]) -> list[int]:
    return [int(token) for token in ids]
