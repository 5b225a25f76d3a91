"""What may enter the queue: a request that can never run is refused here, before it costs anybody anything."""

from __future__ import annotations

from array import array
from typing import Protocol

import numpy as np

from radixrt.errors import ContextLengthExceeded, InvalidRequest, RadixrtError
from radixrt.grammar import Grammar
from radixrt.messages import Enqueue, EnqueueSelect
from radixrt.params import Constraint
from radixrt.scheduler.requests import Alone, Limits, Request


class Compiler(Protocol):
    """What the scheduler needs of the grammar room: an answer at once, or None while it is being compiled."""

    def request(self, constraint: Constraint) -> Grammar | RadixrtError | None: ...


def to_request(message: Enqueue, limits: Limits, capacity: int, now: float, *, prefix_cache: bool = True) -> Request:
    """The request of an Enqueue, or a RadixrtError that says why it can never run.

    `capacity`: slots of the pool; `now`: clock reading, seconds.
    """
    sampling = message.sampling
    if message.constraint is not None and sampling.ignore_eos:
        raise InvalidRequest("ignore_eos cannot be used with a constraint, which ends by itself", param="ignore_eos")
    if message.constraint is not None and sampling.min_tokens:
        raise InvalidRequest("min_tokens cannot be used with a constraint, which ends by itself", param="min_tokens")
    _check_allowed(message, limits)
    ids = message.ids
    if not ids.size:
        raise InvalidRequest("the prompt is empty: give at least one token", param="prompt")
    if ids.max() >= limits.vocab_size or ids.min() < 0:
        raise InvalidRequest(f"token ids must be between 0 and {limits.vocab_size - 1}", param="prompt")
    prompt = array("i", ids.astype(np.int32).tobytes())
    room = min(limits.context_length, capacity) - len(prompt)
    wanted = sampling.max_tokens if sampling.max_tokens is not None else max(room, 1)
    if wanted > room:
        limit, what = limits.context_length, "the model's context"
        if capacity < limit:
            limit, what = capacity, "the KV pool (--kv-tokens)"
        raise ContextLengthExceeded(
            f"{len(prompt)} prompt tokens and {wanted} tokens to generate need {len(prompt) + wanted} tokens, but "
            f"{what} holds {limit}: shorten the prompt or lower max_tokens",
            param="max_tokens" if room > 0 else "prompt",
        )
    if sampling.min_tokens > wanted:
        raise InvalidRequest(f"min_tokens is {sampling.min_tokens}, but only {wanted} fit", param="min_tokens")
    if sampling.prompt_logprobs_start >= len(prompt) and sampling.prompt_logprobs is not None:
        raise InvalidRequest("prompt_logprobs_start is behind the prompt's end", param="prompt_logprobs_start")
    return Request(
        id=message.request_id,
        prompt=prompt,
        sampling=sampling,
        constraint=message.constraint,
        namespace=message.namespace if prefix_cache else Alone(message.request_id),
        priority=message.priority,
        pin_s=message.pin_s,
        arrived=now,
        max_tokens=wanted,
        share=message.namespace.tenant or message.namespace.salt,
        deadline=None if message.timeout_s is None else now + message.timeout_s,
    )


def _check_allowed(message: Enqueue, limits: Limits) -> None:
    """InvalidRequest where `allowed_token_ids` leaves nothing to generate, or stands beside another rule of that."""
    name, sampling = "allowed_token_ids", message.sampling
    if sampling.allowed_token_ids is None:
        return
    if message.constraint is not None:
        raise InvalidRequest(f"{name} cannot be used with a constraint, or tools that may be called", param=name)
    if max(sampling.allowed_token_ids) >= limits.vocab_size:
        raise InvalidRequest(f"{name} must be between 0 and {limits.vocab_size - 1}", param=name)
    if sampling.min_tokens and {*limits.eos_token_ids, *sampling.stop_token_ids}.issuperset(sampling.allowed_token_ids):
        raise InvalidRequest(
            f"{name} holds nothing but end tokens, which min_tokens forbids: leave one of the two out", param=name
        )


def check_select(message: EnqueueSelect, limits: Limits, capacity: int) -> None:
    """Raise a RadixrtError that says why a select can never run; `capacity`: slots of the pool."""
    if not message.prompt.size:
        raise InvalidRequest("the prompt is empty: give at least one token", param="prompt")
    if not message.options or not all(message.options):
        raise InvalidRequest("options must hold at least one option, each of at least one token", param="options")
    heads = [token for head in (message.prompt, message.base) if head.size for token in (head.min(), head.max())]
    for param, low, high in (
        ("prompt", min(heads), max(heads)),
        ("options", min(map(min, message.options)), max(map(max, message.options))),
    ):
        if low < 0 or high >= limits.vocab_size:
            raise InvalidRequest(f"token ids must be between 0 and {limits.vocab_size - 1}", param=param)
    head, longest = max(message.prompt.size, message.base.size), max(map(len, message.options))
    room = min(limits.context_length, capacity)
    if head + longest > room:
        what = "the model's context" if limits.context_length <= capacity else "the KV pool (--kv-tokens)"
        raise ContextLengthExceeded(
            f"{head} prompt tokens and the {longest} of the longest option need {head + longest} tokens, but {what} "
            f"holds {room}: shorten the prompt",
            param="prompt",
        )
