"""What the engine's client asks the tokenizer process for each call, and what it reads out of the answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from typing import Any, Generic, Literal, TypeAlias, TypeVar

from radixrt.backend import Tokens
from radixrt.choosing import check_options, selection
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
from radixrt.collect import Collector
from radixrt.embedding import Embeddings, as_texts, embeddings
from radixrt.errors import InvalidRequest, RadixrtError
from radixrt.messages import (
    Detokenize,
    Detokenized,
    Embed,
    Embedded,
    FlushAnswer,
    FromClient,
    Query,
    SaveAnswer,
    Select,
    Selected,
    StatsAnswer,
    Submit,
    Tokenize,
    Tokenized,
    TreeAnswer,
    UnpinAnswer,
)
from radixrt.params import EMBED_BATCH, SamplingParams, as_constraint
from radixrt.pinning import NOTHING, checked_ttl, pin_name, pinned
from radixrt.prompts import as_prompt, token_array
from radixrt.results import Delta, EngineStats, Generation, Pin, Scores

Answer = TypeVar("Answer")


@dataclass(frozen=True)
class Question(Generic[Answer]):
    """What one message answers."""

    message: Callable[[int], FromClient]
    """Of the request's number."""
    answered_by: type[Any]
    read: Callable[[Any], Answer]
    timeout: float | None = None


@dataclass(frozen=True)
class Submission(Generic[Answer]):
    """What is answered by deltas."""

    message: Callable[[int], Submit]
    samples: int
    read: Callable[[Sequence[Delta]], Answer]
    timeout: float | None


@dataclass(frozen=True)
class Questions(Generic[Answer]):
    """What several messages answer, all or nothing: the first that fails ends the others."""

    messages: Sequence[Callable[[int], FromClient]]
    answered_by: type[Any]
    read: Callable[[Sequence[Any]], Answer]
    """Of the answers, in the order of the messages."""
    timeout: float | None = None
    """For all together."""


Asked: TypeAlias = Question[Answer] | Questions[Answer] | Submission[Answer]


def question(call: Call[Answer]) -> Asked[Answer]:
    """How a call is asked. What is wrong with it is raised here."""
    return _question(call)


def _question(call: Call[Any]) -> Asked[Any]:
    match call:
        case GenerateCall():
            return generation(call, stream=False)
        case PinCall():
            return _pin(call)
        case ScoreCall():
            return Question(_score(call), Selected, _scores, call.timeout)
        case SelectCall(options=options, method=method):
            return Question(_select(call), Selected, lambda answer: selection(answer, options, method), call.timeout)
        case EmbedCall():
            return _embed(call)
        case TokenizeCall():
            prompt = as_prompt(call.prompt)
            return Question(lambda number: Tokenize(request_id=number, prompt=prompt), Tokenized, _tokens)
        case DetokenizeCall():
            return Question(_detokenize(call), Detokenized, attrgetter("text"))
        case UnpinCall():
            return Question(_query("unpin", call.cache_salt, pin_name(call.pin)), UnpinAnswer, attrgetter("pin"))
        case CacheCall():
            return Question(_query("tree", call.cache_salt), TreeAnswer, attrgetter("view"))
    raise TypeError(f"nobody knows how to ask a {type(call).__name__}")


def generation(call: GenerateCall, *, stream: bool) -> Submission[Generation]:
    params = call.sampling or SamplingParams()
    if not isinstance(params, SamplingParams):
        raise InvalidRequest(f"sampling_params must be a SamplingParams, not a {type(params).__name__}")
    constraint, timeout, prompt = as_constraint(call.constraint), seconds(call.timeout), as_prompt(call.prompt)
    return Submission(
        lambda number: Submit(
            request_id=number, prompt=prompt, sampling=params, constraint=constraint, cache_salt=call.cache_salt,
            priority=call.priority, timeout_s=timeout, stream=stream,
        ),
        params.n, lambda deltas: _collected(deltas, params.n), timeout,
    )  # fmt: skip


def _pin(call: PinCall) -> Submission[Pin]:
    ttl, timeout, prompt = checked_ttl(call.ttl), seconds(call.timeout), as_prompt(call.prompt)
    return Submission(
        lambda number: Submit(
            request_id=number, prompt=prompt, sampling=NOTHING, cache_salt=call.cache_salt, priority=call.priority,
            timeout_s=timeout, stream=False, pin_s=ttl,
        ),
        NOTHING.n, pinned, timeout,
    )  # fmt: skip


def _embed(call: EmbedCall) -> Questions[Embeddings]:
    prompts, timeout = as_texts(call.texts), seconds(call.timeout)

    def message(first: int) -> Callable[[int], FromClient]:
        some = prompts[first : first + EMBED_BATCH]
        return lambda number: Embed(
            request_id=number, prompts=some, first=first, truncate=call.truncate, cache_salt=call.cache_salt,
            priority=call.priority,
        )  # fmt: skip

    read = partial(embeddings, dimensions=call.dimensions, normalize=call.normalize)
    return Questions([message(first) for first in range(0, len(prompts), EMBED_BATCH)], Embedded, read, timeout)


def _select(call: SelectCall) -> Callable[[int], FromClient]:
    options, method = call.options, call.method
    check_options(options, method)
    message = as_prompt(call.prompt)
    texts = [option for option in options if isinstance(option, str)]
    return lambda number: Select(
        request_id=number,
        prompt=message,
        text=call.text,
        options=texts,
        option_ids=[token_array(option, "options").tolist() for option in options if not isinstance(option, str)],
        begins_turn=call.begins_turn,
        unconditional=method == "unconditional_likelihood_normalized",
        return_cache_report=call.return_cache_report,
        cache_salt=call.cache_salt,
        priority=call.priority,
    )


def _score(call: ScoreCall) -> Callable[[int], FromClient]:
    """A select of which the log-probabilities alone are wanted, over token ids."""
    ids = [token_array(option, "options").tolist() for option in call.options]
    return _select(
        SelectCall(
            call.prompt, ids, method="token_length_normalized", text="", begins_turn=False, return_cache_report=False,
            cache_salt=call.cache_salt, priority=call.priority, timeout=call.timeout,
        )
    )  # fmt: skip


def _detokenize(call: DetokenizeCall) -> Callable[[int], FromClient]:
    array = token_array(call.ids)
    return lambda number: Detokenize(request_id=number, ids=array, skip_special_tokens=call.skip_special_tokens)


def _query(
    what: Literal["stats", "tree", "flush", "save", "unpin"], cache_salt: str | None = None, pin_id: str = ""
) -> Callable[[int], FromClient]:
    return lambda number: Query(request_id=number, what=what, cache_salt=cache_salt, pin_id=pin_id)


STATS: Question[EngineStats] = Question(_query("stats"), StatsAnswer, attrgetter("stats"))
FLUSH: Question[int] = Question(_query("flush"), FlushAnswer, attrgetter("freed_tokens"))
SAVE: Question[int] = Question(_query("save"), SaveAnswer, attrgetter("tier_tokens"))


def expect(item: object, wanted: type[Answer]) -> Answer:
    if isinstance(item, RadixrtError):
        raise item
    if not isinstance(item, wanted):
        raise RadixrtError(f"expected {wanted.__name__} as the answer, got {type(item).__name__}")
    return item


def seconds(timeout: float | None) -> float | None:
    if timeout is not None and (isinstance(timeout, bool) or not isinstance(timeout, int | float)):
        raise InvalidRequest(f"timeout must be a number of seconds, but is {timeout!r}", param="timeout")
    return timeout


def _tokens(answer: Tokenized) -> Tokens:
    return Tokens(ids=tuple(answer.ids.tolist()), text=answer.text, pieces=tuple(answer.pieces))


def _scores(answer: Selected) -> Scores:
    return Scores(logprobs=[tuple(row) for row in answer.logprobs], usage=answer.usage)


def _collected(deltas: Sequence[Delta], samples: int) -> Generation:
    collector = Collector(samples)
    for delta in deltas:
        collector.add(delta)
    return collector.generation()
