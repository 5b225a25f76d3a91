"""From a request's fields to SamplingParams."""

from __future__ import annotations

from typing import Any

from radixrt.errors import InvalidRequest
from radixrt.params import LARGEST, MAX_LOGPROBS, SamplingParams
from radixrt.server.openai_types import ChatRequest, CommonRequest, CompletionRequest

COMPLETION_MAX_TOKENS = 16
"""OpenAI's default for /v1/completions; a chat may use the rest of the context."""

_AS_THEY_ARE = (
    "n", "temperature", "top_p", "seed", "frequency_penalty", "presence_penalty", "logit_bias", "top_k", "min_p",
    "repetition_penalty", "min_tokens", "include_stop_str_in_output", "ignore_eos", "skip_special_tokens",
    "prompt_logprobs", "return_cache_report", "allowed_token_ids",
)  # fmt: skip


def chat_sampling(request: ChatRequest) -> SamplingParams:
    """Raises InvalidRequest with the name that the client used."""
    limit, name = request.max_tokens, "max_tokens"
    if request.max_completion_tokens is not None:
        if limit is not None and limit != request.max_completion_tokens:
            raise InvalidRequest(
                f"max_tokens ({limit}) and max_completion_tokens ({request.max_completion_tokens}) name one limit, "
                "and differ: give one of them",
                param="max_tokens",
            )
        limit, name = request.max_completion_tokens, "max_completion_tokens"
    if limit is not None and not 1 <= limit <= LARGEST:
        raise InvalidRequest(f"{name} must be between 1 and {LARGEST}, but is {limit}", param=name)
    top = request.top_logprobs
    if top is not None and not 0 <= top <= MAX_LOGPROBS:
        raise InvalidRequest(f"top_logprobs must be between 0 and {MAX_LOGPROBS}, but is {top}", param="top_logprobs")
    if top and not request.logprobs:
        raise InvalidRequest("top_logprobs needs logprobs: true", param="top_logprobs")
    return _sampling(request, max_tokens=limit, logprobs=(top or 0) if request.logprobs else None)


def completion_sampling(request: CompletionRequest) -> SamplingParams:
    """Raises InvalidRequest for values out of range and for what is not offered (suffix, best_of)."""
    if request.suffix:
        raise InvalidRequest("suffix (filling in the middle) is not available; leave it out", param="suffix")
    samples = 1 if request.n is None else request.n
    if request.best_of is not None and request.best_of != samples:
        raise InvalidRequest(
            f"best_of must equal n ({samples}), but is {request.best_of}: no sample is thrown away", param="best_of"
        )
    limit = COMPLETION_MAX_TOKENS if request.max_tokens is None else request.max_tokens
    scored_prompt = {"prompt_logprobs": request.logprobs} if request.echo and request.logprobs is not None else {}
    if scored_prompt and request.prompt_logprobs is not None:
        raise InvalidRequest("echo with logprobs scores the prompt; leave prompt_logprobs out", param="prompt_logprobs")
    return _sampling(request, max_tokens=limit, logprobs=request.logprobs, **scored_prompt)


def _sampling(request: CommonRequest, **more: Any) -> SamplingParams:
    if request.stream and request.prompt_logprobs is not None:
        raise InvalidRequest("prompt_logprobs is not available with stream", param="prompt_logprobs")
    if request.stream_options is not None and not request.stream:
        raise InvalidRequest("stream_options needs stream: true", param="stream_options")
    values = {name: getattr(request, name) for name in _AS_THEY_ARE}
    values["stop"] = (request.stop,) if isinstance(request.stop, str) else tuple(request.stop or ())
    values["stop_regex"] = request.stop_regex or ()
    values["stop_token_ids"] = tuple(request.stop_token_ids or ())
    values.update(more)
    return SamplingParams(**{name: value for name, value in values.items() if value is not None})
