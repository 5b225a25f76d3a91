"""Tree attention a row at a time, as its definition reads."""

from __future__ import annotations

from functools import partial

import numpy as np
import torch

from radixrt.kernels.kv_lines import from_lines
from radixrt.kernels.layout import AttentionLayout


def tree_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    layout: AttentionLayout,
    scale: float,
    sliding_window: int | None = None,
) -> torch.Tensor:
    if keys.dtype != k.dtype:  # the new tokens' own as the pool holds them too
        own = torch.from_numpy(layout.slots).to(layout.device)
        k, v = (from_lines(pool[:, own], torch.float32).transpose(0, 1) for pool in (keys, values))
    out = torch.empty_like(q)
    group = q.shape[1] // k.shape[1]
    for row in range(layout.num_rows):
        new = slice(int(layout.starts[row]), int(layout.starts[row + 1]))
        slots, hidden = layout.derive(("rows", sliding_window, row), partial(_row, layout, row, sliding_window))
        row_keys, row_values = (
            torch.cat([from_lines(pool[:, slots], own.dtype), own[new].transpose(0, 1)], dim=1).repeat_interleave(
                group, dim=0
            )
            for pool, own in ((keys, k), (values, v))
        )
        scores = (q[new].transpose(0, 1).float() @ row_keys.float().transpose(1, 2)) * scale  # [H, n, context + n]
        weights = scores.masked_fill(hidden, float("-inf")).softmax(-1)
        out[new] = (weights @ row_values.float()).transpose(0, 1).to(q.dtype)
    return out


def _row(layout: AttentionLayout, row: int, window: int | None) -> tuple[torch.Tensor, torch.Tensor]:
    """(slots of the row's context, bool[n, context + n] that is true where a new token must not look)."""
    context = layout.context(row)
    positions = layout.positions[layout.starts[row] : layout.starts[row + 1]]
    # Everything before the new tokens is in path order and ends where they begin.
    seen = np.concatenate([np.arange(positions[0] - len(context), positions[0]), positions])
    hidden = np.concatenate([np.zeros((len(positions), len(context)), dtype=bool), ~layout.sees(row)], axis=1)
    if window is not None:
        hidden |= seen[None, :] <= positions[:, None] - window
    return torch.from_numpy(context).to(layout.device), torch.from_numpy(hidden).to(layout.device)
