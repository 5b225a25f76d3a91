"""Guesses of what a row samples next, verified in one step; so far from one source: what its constraint forces.

A guess changes nothing but the speed: each position is sampled under its own mask with its own random number (which
depends on seed and position alone), and counts only while the guesses before it held. It is speculative decoding
(arXiv 2211.17192) with the sampled token itself as the test, so no rejection step is needed.
"""

from __future__ import annotations

import numpy as np

from radixrt.grammar import Bitmask, Matcher, TokenRefused
from radixrt.scheduler.requests import Row

FREE, ONE_LEFT = -1, -2
"""What `fill_lines` says where no token is forced, and where only one is possible."""


def drafts_for(row: Row, most: int) -> list[int]:
    """At most `most` tokens that the row's constraint forces next.

    None while a token of the row is under way (the constraint does not know it yet), nor for a row with penalties,
    whose logits depend on how many of the guesses hold.
    """
    sampling = row.request.sampling
    most = min(most, row.left - 1)
    penalized = sampling.repetition_penalty != 1.0 or sampling.frequency_penalty or sampling.presence_penalty
    if most < 1 or row.matcher is None or row.pending or penalized:
        return []
    return row.matcher.forced()[:most]


def fill_lines(matcher: Matcher, drafts: list[int], bitmask: Bitmask, first: int) -> list[int]:
    """Masks of a row and its guesses: line `first` for the next token, each further one behind one more guess. For each
    line, the token that the constraint forces there: in one spelling of the only text that may follow, or as the only
    token that is left (ONE_LEFT); FREE where there is none.

    A guess that the constraint does not take cannot be sampled either: what stands behind it never counts.
    """
    run = matcher.forced()
    matcher.fill(bitmask, first)
    taken = 0
    try:
        for i, token in enumerate(drafts):
            matcher.accept(token)
            taken += 1
            matcher.fill(bitmask, first + 1 + i)
    except TokenRefused:
        bitmask[first + 1 + taken : first + 1 + len(drafts)] = -1
    finally:
        matcher.rollback(taken)
    bits = np.bitwise_count(bitmask[first : first + 1 + len(drafts)].view(np.uint32))
    one_left = (bits.sum(axis=1, dtype=np.int64) == 1).tolist()
    forced = [run[i] if run[:i] == drafts[:i] and i < len(run) else FREE for i in range(len(one_left))]
    return [ONE_LEFT if alone else token for alone, token in zip(one_left, forced, strict=True)]
