"""What the engine's client asks the tokenizer process, and what it reads out of the answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from radixrt.backend import Tokens
from radixrt.choosing import check_options
from radixrt.errors import InvalidRequest, RadixrtError
from radixrt.messages import Detokenize, FromClient, Select, Selected, Tokenized
from radixrt.params import ChoicesMethod
from radixrt.prompts import PromptLike, as_prompt, token_array
from radixrt.results import Scores

Answer = TypeVar("Answer")


def expect(item: object, wanted: type[Answer]) -> Answer:
    if isinstance(item, RadixrtError):
        raise item
    if not isinstance(item, wanted):
        raise RadixrtError(f"expected {wanted.__name__} as the answer, got {type(item).__name__}")
    return item


def tokens(answer: Tokenized) -> Tokens:
    return Tokens(ids=tuple(answer.ids.tolist()), text=answer.text, pieces=tuple(answer.pieces))


def seconds(timeout: float | None) -> float | None:
    if timeout is not None and (isinstance(timeout, bool) or not isinstance(timeout, int | float)):
        raise InvalidRequest(f"timeout must be a number of seconds, but is {timeout!r}", param="timeout")
    return timeout


def select_question(
    prompt: PromptLike,
    options: Sequence[str] | Sequence[Sequence[int]],
    method: ChoicesMethod = "token_length_normalized",
    *,
    text: str = "",
    begins_turn: bool = False,
    return_cache_report: bool = False,
    cache_salt: str | None = None,
    priority: int = 0,
) -> Callable[[int], FromClient]:
    """What is wrong with it is raised here."""
    check_options(options, method)
    message = as_prompt(prompt)
    texts = [option for option in options if isinstance(option, str)]
    return lambda number: Select(
        request_id=number,
        prompt=message,
        text=text,
        options=texts,
        option_ids=[token_array(option, "options").tolist() for option in options if not isinstance(option, str)],
        begins_turn=begins_turn,
        unconditional=method == "unconditional_likelihood_normalized",
        return_cache_report=return_cache_report,
        cache_salt=cache_salt,
        priority=priority,
    )


def score_question(
    prompt: PromptLike, options: Sequence[Sequence[int]], *, cache_salt: str | None = None, priority: int = 0
) -> Callable[[int], FromClient]:
    """A select of which the log-probabilities alone are wanted, over token ids."""
    ids = [token_array(option, "options").tolist() for option in options]
    return select_question(prompt, ids, cache_salt=cache_salt, priority=priority)


def detokenize_question(ids: Sequence[int], skip: bool) -> Callable[[int], FromClient]:
    array = token_array(ids)
    return lambda number: Detokenize(request_id=number, ids=array, skip_special_tokens=skip)


def scores(answer: Selected) -> Scores:
    return Scores(logprobs=[tuple(row) for row in answer.logprobs], usage=answer.usage)
