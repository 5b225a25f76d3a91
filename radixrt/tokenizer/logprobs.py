"""Numbers of the scheduler -> `TokenLogprob`, with the exact bytes of each token."""

from __future__ import annotations

import math
from collections.abc import Sequence

from radixrt.checkpoint import Vocabulary
from radixrt.results import TokenLogprob, TopLogprob

FLOOR = -9999.0
"""Stands for minus infinity, which JSON cannot carry."""


def token_logprob(
    vocabulary: Vocabulary,
    token: int,
    logprob: float,
    top_ids: Sequence[int] = (),
    top_logprobs: Sequence[float] = (),
) -> TokenLogprob:
    """One token's entry; a NaN `logprob` (nothing comes before the token) becomes None."""
    return TokenLogprob(
        token_id=token,
        token=vocabulary.token_text(token),
        bytes=vocabulary.token_bytes(token),
        logprob=None if math.isnan(logprob) else max(logprob, FLOOR),
        top=tuple(
            TopLogprob(
                token_id=other,
                token=vocabulary.token_text(other),
                bytes=vocabulary.token_bytes(other),
                logprob=max(value, FLOOR),
            )
            for other, value in zip(top_ids, top_logprobs, strict=True)
            if not math.isnan(value)
        ),
    )
