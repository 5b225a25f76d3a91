"""The model's own log-probabilities: log-softmax of its logits in float32, before anything changes them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch

from radixrt.messages import Score
from radixrt.runner.ranking import chunked, ordered_top

FLOOR = -9999.0
"""No answer is below this: JSON knows no infinity."""
SLICE_TOKENS = 64
"""Prompt tokens whose logits exist at a time (at a vocabulary of 150,000: 38 MB)."""


def log_softmax(logits: torch.Tensor) -> torch.Tensor:
    """float32[n, V] -> float32[n, V], finite and at most 0."""
    return torch.log_softmax(logits, -1).clamp_(min=FLOOR, max=0.0)


def top(logits: torch.Tensor, logprobs: torch.Tensor, count: int) -> tuple[np.ndarray, np.ndarray]:
    """The `count` most likely tokens of each row, most likely first: ids int32 and logprobs float32, [n, count]."""
    if count == 0:
        return np.zeros((len(logits), 0), np.int32), np.zeros((len(logits), 0), np.float32)
    chunks = chunked(logits)
    ids = ordered_top(chunks, chunks.amax(-1), count)
    return ids.to(torch.int32).cpu().numpy(), logprobs.gather(1, ids).cpu().numpy()


class Wanted(NamedTuple):
    """Log-probabilities of known tokens: `hidden[at[i]]` predicts `targets[i]`. Both int64[n]."""

    at: np.ndarray
    targets: np.ndarray
    top: int = 0
    """How many of the most likely tokens to name beside each."""


def scores(
    logits_of: Callable[[torch.Tensor], torch.Tensor], hidden: torch.Tensor, wanted: Sequence[Wanted]
) -> list[Score]:
    """One answer to each of `wanted`, whose logits are computed together, a slice at a time, each once.

    hidden: [T, hidden]; `logits_of` makes float32[m, V] of some of its rows.
    """
    answers: dict[int, Score] = {}
    for top_count in sorted({item.top for item in wanted}):
        group = [i for i, item in enumerate(wanted) if item.top == top_count]
        together = _scores(
            logits_of,
            hidden,
            np.concatenate([wanted[i].at for i in group]),
            np.concatenate([wanted[i].targets for i in group]),
            top_count,
        )
        begin = 0
        for i in group:
            part = slice(begin, begin + len(wanted[i].targets))
            answers[i] = Score(
                logprobs=together.logprobs[part],
                top_ids=together.top_ids[part],
                top_logprobs=together.top_logprobs[part],
            )
            begin = part.stop
    return [answers[i] for i in range(len(wanted))]


def _scores(
    logits_of: Callable[[torch.Tensor], torch.Tensor],
    hidden: torch.Tensor,
    at: np.ndarray,
    targets: np.ndarray,
    count: int,
) -> Score:
    places, place = np.unique(at, return_inverse=True)
    chosen = np.empty(len(targets), np.float32)
    ids, values = np.empty((len(targets), count), np.int32), np.empty((len(targets), count), np.float32)
    for begin in range(0, len(places), SLICE_TOKENS):
        rows = torch.from_numpy(places[begin : begin + SLICE_TOKENS]).to(hidden.device)
        logits = logits_of(hidden[rows])
        logprobs = log_softmax(logits)
        here = np.flatnonzero((place >= begin) & (place < begin + SLICE_TOKENS))
        line = place[here] - begin
        pairs = (torch.from_numpy(line).to(logits.device), torch.from_numpy(targets[here]).to(logits.device))
        chosen[here] = logprobs[pairs].cpu().numpy()
        top_ids, top_values = top(logits, logprobs, count)
        ids[here], values[here] = top_ids[line], top_values[line]
    return Score(logprobs=chosen, top_ids=ids, top_logprobs=values)
