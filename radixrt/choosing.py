"""How a select compares its options: pure functions over token ids and log-probabilities.

For option i with tokens t_1..t_k after the prompt, l_j = log p(t_j | prompt, t_1..t_j-1), in float32 from the model:

token_length_normalized              score = mean(l_1..l_k); the highest wins.
greedy_token_selection               walk token by token as greedy decoding would among the options: at each position
                                     the likeliest token stays, and with it all options that share it, until one is
                                     left. An option that has ended stands there for all tokens that no other option
                                     goes on with: log(1 - sum of the others' probabilities). So where greedy decoding
                                     writes a text that begins with the tokens of an option, that option wins, or a
                                     longer one that begins with it. The score that is reported is the mean.
unconditional_likelihood_normalized  score = mean(l_j - u_j), where u_j = log p(t_j | BOS, t_1..t_j-1): what the
                                     prompt adds, so that an option that is likely anywhere gains nothing by it.

At the start of a turn a word may come with a leading space or without one, as the chat template has it, and a choice
that is written the other way would lose by it. There each choice is scored both ways, and counts as the better one;
what is appended is the choice as it was written. So ["Yes", "No"] and [" Yes", " No"] choose alike.

The lower index wins a tie. The names are SGLang's. Two things differ from it: options that share tokens are compared
by token id, so that rounding between rows cannot part them; and u_1 is counted, where SGLang takes it as 0.
"""

from __future__ import annotations

import math
import reprlib
from collections.abc import Hashable, Iterable, Sequence
from statistics import fmean
from typing import get_args

from radixrt.errors import InvalidRequest
from radixrt.messages import Selected
from radixrt.params import MAX_OPTIONS, ChoicesMethod
from radixrt.results import Selection

Logprobs = Sequence[Sequence[float]]


def check_options(options: Sequence[str] | Sequence[Sequence[int]], method: str) -> None:
    """InvalidRequest unless there are options, all texts or all token ids, none empty and none twice, and the method is
    one."""
    if method not in get_args(ChoicesMethod):
        known = ", ".join(get_args(ChoicesMethod))
        raise InvalidRequest(f"method must be one of {known}, but is {method!r}", param="method")
    if isinstance(options, str | bytes) or not isinstance(options, Sequence):
        raise InvalidRequest("options must be a list of texts, or of lists of token ids", param="options")
    if not 1 <= len(options) <= MAX_OPTIONS:
        raise InvalidRequest(f"options must hold 1 to {MAX_OPTIONS} options, but holds {len(options)}", param="options")
    texts = sum(isinstance(option, str) for option in options)
    if texts not in (0, len(options)):
        raise InvalidRequest("options must be all texts, or all lists of token ids", param="options")
    if not all(len(option) for option in options):
        raise InvalidRequest("an option must hold at least one token", param="options")
    check_distinct([option if isinstance(option, str) else tuple(option) for option in options], "options")


def check_distinct(options: Sequence[Hashable], param: str) -> None:
    """InvalidRequest names an option that is there twice: which of the two is chosen would mean nothing."""
    seen: dict[Hashable, int] = {}
    for i, option in enumerate(options):
        first = seen.setdefault(option, i)
        if first != i:
            shown = reprlib.repr(option)
            raise InvalidRequest(
                f"{param}[{i}] is {shown}, as {param}[{first}] is: {param} must differ from one another",
                param=f"{param}[{i}]",
            )


def selection(answer: Selected, options: Sequence[str] | Sequence[Sequence[int]], method: ChoicesMethod) -> Selection:
    """What is chosen, and what it was chosen by. Of an option that was scored with and without a leading space, the
    better one of the two is shown."""
    count = len(options)
    bare = answer.unconditional or None
    winner, scores = decide(method, answer.token_ids, answer.logprobs, bare)
    kept = [max(range(i, len(answer.token_ids), count), key=lambda j: (scores[j], -j)) for i in range(count)]
    index = winner % count
    kept[index] = winner
    chosen = options[index]
    return Selection(
        index=index,
        choice=chosen if isinstance(chosen, str) else None,
        scores=tuple(scores[i] for i in kept),
        token_ids=tuple(tuple(answer.token_ids[i]) for i in kept),
        logprobs=tuple(tuple(answer.logprobs[i]) for i in kept),
        unconditional=None if bare is None else tuple(tuple(bare[i]) for i in kept),
        written=tuple(answer.written[index]),
        usage=answer.usage,
    )


def split_options(
    head: Sequence[int], joined: Sequence[Sequence[int]]
) -> tuple[tuple[int, ...], list[tuple[int, ...]]]:
    """The tokens that all options share with the text before them, and each option's own tokens after those.

    `head` is the text before, tokenized alone; `joined` the same text with each option, tokenized together. Where an
    option merges with the end of the text ("Answer: " + "Yes" may hold the token " Yes"), the shared part ends before
    the merged token, for all options alike, so that each is scored as it would be written.
    """
    shared = len(head)
    for ids in joined:
        shared = min(shared, _common(head, ids))
    return tuple(head[:shared]), [tuple(ids[shared:]) for ids in joined]


def mean_scores(logprobs: Logprobs) -> tuple[float, ...]:
    return tuple(fmean(row) for row in logprobs)


def unconditional_scores(logprobs: Logprobs, unconditional: Logprobs) -> tuple[float, ...]:
    return tuple(
        fmean(a - b for a, b in zip(row, bare, strict=True)) for row, bare in zip(logprobs, unconditional, strict=True)
    )


def best(scores: Sequence[float]) -> int:
    return max(range(len(scores)), key=lambda i: (scores[i], -i))


def greedy(options: Sequence[Sequence[int]], logprobs: Logprobs) -> int:
    """Index of the option that greedy decoding among the options arrives at."""
    remaining = list(range(len(options)))
    for position in range(max(len(ids) for ids in options)):
        ended = {i for i in remaining if position >= len(options[i])}
        going_on = {options[i][position]: logprobs[i][position] for i in remaining if i not in ended}
        value = {i: _none_of(going_on.values()) if i in ended else logprobs[i][position] for i in remaining}
        winner = max(remaining, key=lambda i: (value[i], -i))
        if winner in ended:
            remaining = [winner]
        else:
            token = options[winner][position]
            remaining = [i for i in remaining if i not in ended and options[i][position] == token]
        if len(remaining) == 1:
            break
    return remaining[0]


def decide(
    method: ChoicesMethod, options: Sequence[Sequence[int]], logprobs: Logprobs, unconditional: Logprobs | None
) -> tuple[int, tuple[float, ...]]:
    """Index of the winner, and each option's score. `unconditional` is needed by its method alone."""
    if method == "unconditional_likelihood_normalized" and unconditional is not None:
        scores = unconditional_scores(logprobs, unconditional)
        return best(scores), scores
    scores = mean_scores(logprobs)
    return (greedy(options, logprobs) if method == "greedy_token_selection" else best(scores)), scores


def spellings(before: str, choices: Sequence[str]) -> list[str] | None:
    """For a turn that begins with `before` and a choice: all texts without leading spaces, then all with one.

    None where that cannot be told apart: `before` holds more than spaces, or without its spaces a choice is nothing or
    equals another.
    """
    bare = [choice.lstrip(" ") for choice in choices]
    if before.strip(" ") or not all(bare) or len(set(bare)) != len(bare):
        return None
    return bare + [f" {text}" for text in bare]


def _none_of(logprobs: Iterable[float]) -> float:
    """Log-probability that the next token is none of some."""
    rest = 1.0 - math.fsum(map(math.exp, logprobs))
    return math.log(rest) if rest > 0 else -math.inf


def _common(a: Sequence[int], b: Sequence[int]) -> int:
    length = 0
    for x, y in zip(a, b, strict=False):
        if x != y:
            break
        length += 1
    return length
