"""Mixture of experts: tokens sorted by expert, one grouped product over them, no wait for the device.

Experts' rows are padded to whole tiles, so that a tile belongs to one expert (Switch Transformers, arXiv 2101.03961,
section 2.1, names the layer; MegaBlocks, arXiv 2211.15841, section 5, the grouping). How many tiles there can be
follows from shapes alone; those that are not used end at once, so a captured graph serves every routing.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from radixrt.kernels.triton import tuning
from radixrt.kernels.triton.common import blocks, by_rows, dot, narrow, tile
from radixrt.kernels.triton.fp8 import as_bits
from radixrt.kernels.triton.gate import silu_mul
from radixrt.kernels.triton.packed import Fp8Weight
from radixrt.kernels.triton.products import FP8, product_configs, widened

_DENSE = tl.constexpr(-1)


@dataclass(frozen=True)
class Routing:
    """Who computes what. A pair is a token and one of its k experts, numbered token * k + place.

    order: int64[tiles * height] pair of each line, T * k where it is padding; expert: int32[tiles], -1 where unused.
    """

    order: torch.Tensor
    expert: torch.Tensor
    height: int
    per_token: int


def route(logits: torch.Tensor, k: int, *, normalize: bool = True) -> tuple[torch.Tensor, torch.Tensor]:
    """Router logits [T, E] -> (experts int64[T, k], weights float32[T, k]): softmax, then the k largest, which sum to 1
    with `normalize` (Mixtral, Qwen3-MoE's norm_topk_prob)."""
    weights, experts = torch.softmax(logits.float(), -1).topk(k, dim=-1)
    return experts, weights / weights.sum(-1, keepdim=True) if normalize else weights


def group(experts: torch.Tensor, count: int) -> Routing:
    """Pairs sorted by expert, for experts int[T, k] out of `count`: sorts and sums on the device."""
    tokens, per_token = experts.shape
    pairs = tokens * per_token
    flat, device = experts.reshape(-1).long(), experts.device
    height = min(64, tile(blocks(max(pairs, 1), count), 16))
    tiles = min(pairs, blocks(pairs, height) + count)
    sorted_experts, order = flat.sort(stable=True)
    sizes = torch.zeros(count, dtype=torch.int64, device=device).scatter_add_(0, flat, torch.ones_like(flat))
    padded = (sizes + height - 1) // height * height
    ends = padded.cumsum(0)
    begins = ends - padded
    line = torch.arange(pairs, device=device) - (sizes.cumsum(0) - sizes)[sorted_experts] + begins[sorted_experts]
    lines = torch.full((tiles * height,), pairs, dtype=torch.int64, device=device).scatter_(0, line, order)
    starts = torch.arange(tiles, device=device) * height
    expert = torch.searchsorted(ends, starts, right=True)
    expert = torch.where(expert < count, expert, -1).to(torch.int32)
    return Routing(lines, expert, height, per_token)


@triton.jit
def _grouped(
    x, w, scale, order, experts, weights, out, pairs, stride_x, expert_w, expert_scale, scale_n, scale_rows,
    scale_columns, divisor,
    N: tl.constexpr, K: tl.constexpr, KIND: tl.constexpr, WEIGHTED: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """A program: a tile of one expert's pairs by BLOCK_N of its outputs; pair p reads row p // divisor of x."""
    tile_id = tl.program_id(1)
    expert = tl.load(experts + tile_id)
    if expert < 0:
        return
    pair = tl.load(order + tile_id.to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M))
    in_m = pair < pairs
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    in_n = n < N
    row = n.to(tl.int64)
    line = x + (pair // divisor)[:, None] * stride_x
    mine = w + expert.to(tl.int64) * expert_w
    own_scale = scale + expert.to(tl.int64) * expert_scale
    acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for start in range(0, K, BLOCK_K):
        k = start + tl.arange(0, BLOCK_K)
        in_k = k < K
        tile_x = tl.load(line + k[None, :], mask=in_m[:, None] & in_k[None, :], other=0.0)
        if KIND == _DENSE:
            tile_w = tl.load(mine + row[:, None] * K + k[None, :], mask=in_n[:, None] & in_k[None, :], other=0.0)
        else:
            wide = widened(mine, own_scale, own_scale, n, k, row, in_n, N, K, scale_n, scale_rows, scale_columns, KIND)
            tile_w = narrow(wide, x.dtype.element_ty)
        acc = dot(tile_x, tl.trans(tile_w), acc)
    if WEIGHTED:
        acc *= tl.load(weights + pair, mask=in_m, other=0.0)[:, None]
    tl.store(
        out + pair[:, None] * N + n[None, :], narrow(acc, out.dtype.element_ty), mask=in_m[:, None] & in_n[None, :]
    )


@triton.jit
def _sum_pairs(parts, out, k, N: tl.constexpr, BLOCK: tl.constexpr):
    """A program: BLOCK columns of one token; its k pairs are added in order."""
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = column < N
    acc = tl.zeros([BLOCK], tl.float32)
    for i in range(k):
        acc += tl.load(parts + (token * k + i) * N + column, mask=mask, other=0.0).to(tl.float32)
    tl.store(out + token * N + column, narrow(acc, out.dtype.element_ty), mask=mask)


@dataclass(frozen=True)
class Fp8Experts:
    """The weights of E experts in e4m3: q float8_e4m3fn [E, N, K], scale float32 [E, ..] as in `Fp8Weight`."""

    q: torch.Tensor
    scale: torch.Tensor
    rows: int
    columns: int

    @classmethod
    def stack(cls, weights: list[Fp8Weight]) -> Fp8Experts:
        q = torch.stack([weight.q.view(torch.uint8) for weight in weights]).view(torch.float8_e4m3fn)
        return cls(q, torch.stack([weight.scale for weight in weights]), weights[0].rows, weights[0].columns)


def grouped_product(
    x: torch.Tensor,
    experts: torch.Tensor | Fp8Experts,
    routing: Routing,
    *,
    by_pair: bool = False,
    weights: torch.Tensor | None = None,
    dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """Every pair's row of x times its expert's matrix: x [T, K], or [T * k, K] with `by_pair`; -> [T * k, N].

    experts: [E, N, K] of x's dtype, or e4m3. weights float32[T, k]: each pair's output is multiplied by its own.
    `dtype` of the result: x's by default. Tiles of 16 to 64 pairs by 64 outputs (32 in float32), sums in float32.
    """
    x = by_rows(x)
    matrix = experts.q if isinstance(experts, Fp8Experts) else experts
    _, outputs, inputs = matrix.shape
    if x.shape[1] != inputs or not matrix.is_contiguous():
        raise ValueError(f"x has {x.shape[1]} columns, the experts {inputs}, and their weights must be contiguous")
    pairs = len(x) if by_pair else len(x) * routing.per_token
    out = torch.empty(pairs, outputs, dtype=dtype or x.dtype, device=x.device)
    if not pairs:
        return out
    kind, scale, scale_rows, scale_columns = -1, x, 1, 1
    if isinstance(experts, Fp8Experts):
        kind, scale, scale_rows, scale_columns = FP8, experts.scale, experts.rows, experts.columns

    def launch(config: tuning.Config) -> None:
        _grouped[(blocks(outputs, config.size("outputs")), len(routing.expert))](
            x, as_bits(matrix), scale, routing.order, routing.expert, x if weights is None else weights, out, pairs,
            x.stride(0), matrix.stride(0), scale.stride(0), scale.stride(1),
            scale_rows, scale_columns, 1 if by_pair else routing.per_token,
            N=outputs, K=inputs, KIND=kind, WEIGHTED=weights is not None,
            BLOCK_M=routing.height, BLOCK_N=config.size("outputs"), BLOCK_K=config.size("inputs"),
            num_warps=config.num_warps, num_stages=config.num_stages,
        )  # fmt: skip

    shapes = f"{kind} {routing.height} {outputs}x{inputs} {x.dtype}"
    tuning.run("grouped", shapes, product_configs(x.dtype), launch)
    return out


def moe_mlp(
    x: torch.Tensor,
    router: torch.Tensor,
    gate_up: torch.Tensor | Fp8Experts,
    down: torch.Tensor | Fp8Experts,
    k: int,
    *,
    normalize: bool = True,
) -> torch.Tensor:
    """A gated MLP of E experts, k a token: x, router logits [T, E], gate_up [E, 2 * I, K], down [E, K, I] -> [T, K].

    Pairs' outputs are kept in float32 until they are added.
    """
    experts, weights = route(router, k, normalize=normalize)
    routing = group(experts, router.shape[1])
    inner = silu_mul(grouped_product(x, gate_up, routing))
    parts = grouped_product(inner, down, routing, by_pair=True, weights=weights, dtype=torch.float32)
    out = torch.empty(len(x), parts.shape[1], dtype=x.dtype, device=x.device)
    if out.numel():
        block = min(1024, tile(out.shape[1]))
        _sum_pairs[(len(x), blocks(out.shape[1], block))](parts, out, k, N=out.shape[1], BLOCK=block)
    return out
