"""Sampling on the device: two launches over the logits, no wait for anything.

Not in `ops.Kernels`: the runner samples through `radixrt.runner.sampler` on a CPU.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from radixrt.kernels.triton.common import blocks, by_rows, tile
from radixrt.kernels.triton.cuts import draw, top_tokens
from radixrt.kernels.triton.logits import scan

GREEDY_BELOW = 1e-5
"""Temperatures under this are greedy, as in `radixrt.runner.sampler`."""
_BLOCK = 4096
"""Logits a program of the first pass reads; fewer where the vocabulary is small."""


@dataclass(frozen=True)
class Rules:
    """How each of K rows draws; tensors on the logits' device, which may be the static ones of a CUDA graph.

    Attributes:
        temperature: float32[K].
        top_k: int32[K]; 0 or less: all.
        top_p: float64[K].
        min_p: float32[K].
        uniforms: float64[K] in [0, 1): the token is the first by id at which the running sum of what is kept exceeds
            this much of its total: `radixrt.runner.sampler`'s tokens, but for sums that round otherwise.
        seeds, positions: int64[K]; where given, tokens are drawn by the Gumbel-max trick instead (arXiv 1411.0030,
            section 2), with noise that follows from (seed, position, token): the same distribution, other tokens, and
            only one pass for rows without cuts.
        bias_starts, bias_ids, bias: int32[K + 1], int32[n], float32[n]: row r adds bias[i] to the logit of bias_ids[i]
            for i from bias_starts[r] to bias_starts[r + 1].
        bitmask: int32[M, words], bit t % 32 of word t // 32 allows token t; tokens beyond it are not allowed.
        mask_row: int32[K] line of bitmask, -1: everything is allowed.
    """

    temperature: torch.Tensor
    top_k: torch.Tensor
    top_p: torch.Tensor
    min_p: torch.Tensor
    uniforms: torch.Tensor | None = None
    seeds: torch.Tensor | None = None
    positions: torch.Tensor | None = None
    bias_starts: torch.Tensor | None = None
    bias_ids: torch.Tensor | None = None
    bias: torch.Tensor | None = None
    bitmask: torch.Tensor | None = None
    mask_row: torch.Tensor | None = None


@dataclass(frozen=True)
class Sampled:
    """tokens int64[K], -1 where a row has none to choose from (all forbidden, or a NaN or +inf among its logits).

    Log-probabilities are the model's own, before bias, mask and temperature: `logprobs` float32[K] of the tokens,
    `lse` float32[K] the log-sum-exp of the logits; `top_ids` int32[K, n] and `top_logprobs` float32[K, n] of the most
    likely, lower ids first among equals. Numbers are held within -9999..0.
    """

    tokens: torch.Tensor
    logprobs: torch.Tensor
    lse: torch.Tensor
    top_ids: torch.Tensor
    top_logprobs: torch.Tensor


def sample(logits: torch.Tensor, rules: Rules, *, vocabulary: int | None = None, top: int = 0) -> Sampled:
    """A token for each row of logits [K, V] (float32, float16 or bfloat16), which stay as they are.

    Order, as in the runner: bias, mask, temperature, top_k, top_p, min_p, draw. Ids from `vocabulary` on are not drawn.
    Launches: K x V / 4096 programs that reduce their block; K programs that cut and draw; K more for `top` > 0.
    ValueError where neither uniforms nor seeds and positions are given.
    """
    gumbel = rules.seeds is not None and rules.positions is not None
    if not gumbel and rules.uniforms is None:
        raise ValueError("sampling needs uniforms, or seeds and positions")
    logits = by_rows(logits)
    rows, width = logits.shape
    device = logits.device
    block = min(_BLOCK, tile(width))
    count = blocks(width, block)

    def numbers(dtype: torch.dtype) -> torch.Tensor:
        return torch.empty(rows, count, dtype=dtype, device=device)

    raw_max, raw_sum, most, mass, noisy = (numbers(torch.float32) for _ in range(5))
    noisy_id, bad = numbers(torch.int32), numbers(torch.int32)
    tokens = torch.empty(rows, dtype=torch.int64, device=device)
    logprobs, lse = (torch.empty(rows, dtype=torch.float32, device=device) for _ in range(2))
    top_ids = torch.empty(rows, top, dtype=torch.int32, device=device)
    top_logprobs = torch.empty(rows, top, dtype=torch.float32, device=device)
    result = Sampled(tokens, logprobs, lse, top_ids, top_logprobs)
    if not rows:
        return result
    nobody = torch.zeros(rows + 1, dtype=torch.int32, device=device) if rules.bias_starts is None else rules.bias_starts
    unused = rules.temperature
    seeds = unused if rules.seeds is None else rules.seeds
    positions = unused if rules.positions is None else rules.positions
    shared = (
        logits, logits.stride(0), nobody, unused if rules.bias_ids is None else rules.bias_ids,
        unused if rules.bias is None else rules.bias, unused if rules.bitmask is None else rules.bitmask,
        unused if rules.mask_row is None else rules.mask_row,
        0 if rules.bitmask is None else rules.bitmask.shape[1], rules.temperature,
    )  # fmt: skip
    masked = rules.bitmask is not None
    limit = width if vocabulary is None else min(width, vocabulary)
    scan[(count, rows)](
        *shared, seeds, positions, raw_max, raw_sum, most, mass, noisy, noisy_id, bad, width, limit, count,
        MASK=masked, GUMBEL=gumbel, BLOCK=block, num_warps=8,
    )  # fmt: skip
    draw[(rows,)](
        *shared, rules.top_k, rules.top_p, rules.min_p, unused if rules.uniforms is None else rules.uniforms,
        seeds, positions, raw_max, raw_sum, most, mass, noisy, noisy_id, bad, tokens, logprobs, lse,
        width, limit, count, GREEDY_BELOW,
        MASK=masked, GUMBEL=gumbel, BLOCK=block, COUNTS=tile(count, 2), num_warps=8,
    )  # fmt: skip
    if top:
        top_tokens[(rows,)](
            logits, logits.stride(0), raw_max, lse, top_ids, top_logprobs, width, count,
            n=top, BLOCK=block, COUNTS=tile(count, 2), num_warps=4,
        )  # fmt: skip
    return result
