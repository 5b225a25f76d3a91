"""Hidden states into one vector a row."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

LAST, SUM = 1, 2
"""What `StepPlan.pool` says."""


def pool_rows(hidden: torch.Tensor, ends: np.ndarray, pool: np.ndarray) -> torch.Tensor:
    """hidden [T, hidden]; ends int64[R]: the index behind each row's tokens; pool uint8[R] as in StepPlan. float32[P,
    hidden] of the rows where it is not 0, in order."""
    starts = np.concatenate([[0], ends[:-1]])
    out = [
        (hidden[ends[row] - 1] if pool[row] == LAST else hidden[starts[row] : ends[row]].float().sum(0)).float()
        for row in np.flatnonzero(pool).tolist()
    ]
    return torch.stack(out)


def pool_texts(hidden: torch.Tensor, lengths: Sequence[int], pooling: str) -> torch.Tensor:
    """hidden [T, hidden] of texts one behind the other -> float32[R, hidden]; `pooling`: mean, cls or last."""
    ends = np.cumsum(lengths)
    if pooling == "mean":
        parts = (hidden[end - length : end] for end, length in zip(ends.tolist(), lengths, strict=True))
        return torch.stack([part.float().mean(0) for part in parts])
    at = ends - 1 if pooling == "last" else ends - np.asarray(lengths)
    return hidden[torch.from_numpy(at).to(hidden.device)].float()
