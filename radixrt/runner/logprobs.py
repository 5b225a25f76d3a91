"""The model's own log-probabilities: log-softmax of its logits in float32, before anything changes them."""

from __future__ import annotations

from collections.abc import Callable

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


def score(
    logits_of: Callable[[torch.Tensor], torch.Tensor], hidden: torch.Tensor, targets: np.ndarray, count: int
) -> Score:
    """Log-probabilities of known tokens, a slice at a time.

    hidden: [n, hidden], where `hidden[i]` predicts `targets[i]` (int32[n]); `logits_of` makes float32[m, V] of some of
    its rows; `count`: how many most likely tokens to name beside each.
    """
    chosen, ids, values = [], [], []
    for at in range(0, len(targets), SLICE_TOKENS):
        logits = logits_of(hidden[at : at + SLICE_TOKENS])
        logprobs = log_softmax(logits)
        wanted = torch.from_numpy(targets[at : at + SLICE_TOKENS].astype(np.int64)).to(logits.device)
        chosen.append(logprobs.gather(1, wanted[:, None])[:, 0].cpu().numpy())
        top_ids, top_values = top(logits, logprobs, count)
        ids.append(top_ids)
        values.append(top_values)
    return Score(logprobs=np.concatenate(chosen), top_ids=np.concatenate(ids), top_logprobs=np.concatenate(values))
