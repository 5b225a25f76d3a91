"""Tokens that nobody need sample: where a constraint allows one alone, it is the row's next (jump-forward decoding).

They join the row's tokens at once, and the step that samples behind them computes them as it does a prompt: no logits,
no mask, no line of a result. A step under way that samples such a token itself computed its KV and is right already; of
its result nothing is left to take. SGLang, arXiv 2312.07104, section 4, jumps over forced text likewise, with a new
tokenization of what stands; here the tokens are those that would have been sampled, one by one.
"""

from __future__ import annotations

from collections.abc import Iterable

from radixrt.params import SamplingParams
from radixrt.scheduler.batch import Step
from radixrt.scheduler.requests import Row

MOST = 64
"""Tokens a jump: what is left of a longer run comes with the next step, and the others do not wait for it."""


def needs_no_sample(sampling: SamplingParams) -> bool:
    """What the runner knows of the row does not depend on sampling each token: its log-probability is not asked for,
    and no penalty counts it."""
    penalizes = sampling.frequency_penalty or sampling.presence_penalty or sampling.repetition_penalty != 1.0
    return sampling.logprobs is None and not penalizes


def take_certain(row: Row, most: int) -> list[int]:
    """At most `most` tokens that alone are allowed next, one after the other; the matcher has moved behind them.

    Raises what the matcher raises where it gives up.
    """
    matcher, found = row.matcher, list[int]()
    if matcher is None:
        return found
    while len(found) < min(most, MOST) and not matcher.must_stop and (token := matcher.required()) is not None:
        matcher.accept(token)
        found.append(token)
    return found


def foreword(row: Row) -> list[int]:
    """The same before the row has begun: at least one token is left to be sampled."""
    if row.matcher is None:
        return []
    found = take_certain(row, row.left - 1)
    if found and row.matcher.must_stop:
        row.matcher.rollback(1)
        found.pop()
    return found


def foretell(steps: Iterable[Step], row: Row, tokens: list[int]) -> int:
    """Of the row's samples under way how many are these tokens; their results bring nothing new from now on."""
    told = 0
    for step in steps:
        for item in step.rows:
            if told < min(row.pending, len(tokens)) and item.row is row and item.sample and item.foretold < 0:
                item.foretold = tokens[told]
                told += 1
    return told
