"""Products with weights of fewer bits: read packed, widened in registers, multiplied by the tensor cores.

Decoding reads every weight once for a handful of rows, so the time is that of the bytes: K is split among programs
until all multiprocessors read; a second kernel adds the splits' float32 sums, always in the same order.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from radixrt.kernels.triton import tuning
from radixrt.kernels.triton.common import blocks, by_rows, dot, multiprocessors, narrow, tile
from radixrt.kernels.triton.fp8 import UNIT, as_bits, decode
from radixrt.kernels.triton.packed import Fp8Weight, IntWeight

INT8, INT4, FP8 = 0, 1, 2
_INT8, _INT4 = tl.constexpr(0), tl.constexpr(1)
_GROUP = tl.constexpr(32)


@triton.jit
def widened(q, scale, shift, n, k, row, in_n, N, K, scale_n, scale_rows, scale_columns, KIND: tl.constexpr):
    """float32 [BLOCK_N, BLOCK_K] of the weight at rows `row`, columns `k`, zeros outside; int4 has its own loop."""
    inside = in_n[:, None] & (k < K)[None, :]
    bits = tl.load(q + row[:, None] * K + k[None, :], mask=inside, other=0)
    if KIND == _INT8:
        group = row[:, None] * scale_n + (k // _GROUP)[None, :]
        factor = tl.load(scale + group, mask=inside, other=0.0).to(tl.float32)
        return bits.to(tl.float32) * factor + tl.load(shift + group, mask=inside, other=0.0).to(tl.float32)
    block = (n // scale_rows)[:, None] * scale_n + (k // scale_columns)[None, :]
    return decode(bits).to(tl.float32) * (UNIT * tl.load(scale + block, mask=inside, other=0.0))


@triton.jit
def _product(
    x, q, scale, shift, bias, out, M, stride_x, scale_n, scale_rows, scale_columns, per_split,
    N: tl.constexpr, K: tl.constexpr, KIND: tl.constexpr, BIAS: tl.constexpr, SPLIT: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """A program: BLOCK_M rows by BLOCK_N outputs over `per_split` inputs; partial sums go to out [splits, M, N]."""
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    m = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)
    split = tl.program_id(2)
    in_n = n < N
    in_m = m < M
    row = n.to(tl.int64)
    line = x + m.to(tl.int64)[:, None] * stride_x
    acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for start in range(split * per_split, tl.minimum(K, (split + 1) * per_split), BLOCK_K):
        if KIND == _INT4:
            # Byte i of the tile: inputs low[i] and low[i] + 16.
            i = tl.arange(0, BLOCK_K // 2)
            low = start + (i // 16) * 32 + i % 16
            in_k = low < K
            inside = in_n[:, None] & in_k[None, :]
            byte = tl.load(q + row[:, None] * (K // 2) + (start // 2 + i)[None, :], mask=inside, other=0)
            group = row[:, None] * scale_n + (low // _GROUP)[None, :]
            factor = tl.load(scale + group, mask=inside, other=0.0).to(tl.float32)
            offset = tl.load(shift + group, mask=inside, other=0.0).to(tl.float32)
            x_low = tl.load(line + low[None, :], mask=in_m[:, None] & in_k[None, :], other=0.0)
            x_high = tl.load(line + 16 + low[None, :], mask=in_m[:, None] & in_k[None, :], other=0.0)
            w_low = (byte & 15).to(tl.float32) * factor + offset
            w_high = (byte >> 4).to(tl.float32) * factor + offset
            acc = dot(x_low, tl.trans(narrow(w_low, x.dtype.element_ty)), acc)
            acc = dot(x_high, tl.trans(narrow(w_high, x.dtype.element_ty)), acc)
        else:
            k = start + tl.arange(0, BLOCK_K)
            tile_x = tl.load(line + k[None, :], mask=in_m[:, None] & (k < K)[None, :], other=0.0)
            w = widened(q, scale, shift, n, k, row, in_n, N, K, scale_n, scale_rows, scale_columns, KIND)
            acc = dot(tile_x, tl.trans(narrow(w, x.dtype.element_ty)), acc)
    place = m.to(tl.int64)[:, None] * N + n[None, :]
    mask = in_m[:, None] & in_n[None, :]
    if SPLIT:
        tl.store(out + split.to(tl.int64) * M * N + place, acc, mask=mask)
    else:
        if BIAS:
            acc += tl.load(bias + n, mask=in_n, other=0.0).to(tl.float32)[None, :]
        tl.store(out + place, narrow(acc, out.dtype.element_ty), mask=mask)


@triton.jit
def _add_splits(parts, bias, out, size, N, splits, BIAS: tl.constexpr, BLOCK: tl.constexpr):
    """A program: BLOCK elements of parts [splits, M * N], added in order."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = at < size
    acc = tl.zeros([BLOCK], tl.float32)
    part = parts + at
    for _ in range(splits):
        acc += tl.load(part, mask=mask, other=0.0)
        part += size
    if BIAS:
        acc += tl.load(bias + at % N, mask=mask, other=0.0).to(tl.float32)
    tl.store(out + at, narrow(acc, out.dtype.element_ty), mask=mask)


def packed_product(x: torch.Tensor, weight: IntWeight | Fp8Weight, bias: torch.Tensor | None = None) -> torch.Tensor:
    """x [M, K] (float32, float16, bfloat16) @ weight [N, K]^T + bias [N] -> [M, N] in x's dtype.

    The weight is widened in float32 and rounded once to x's dtype; sums are float32. Tiles of 16 to 128 rows by 64
    outputs (32 in float32) by 64 or 128 inputs. Like `F.linear` over `packed.dense(weight)`.
    """
    x = by_rows(x)
    rows, inputs = x.shape
    outputs, expected = weight.shape
    if inputs != expected:
        raise ValueError(f"x has {inputs} columns, the weight {expected}")
    out = torch.empty(rows, outputs, dtype=x.dtype, device=x.device)
    if not out.numel():
        return out
    kind, shift, scale_rows, scale_columns = packing(weight)
    height = min(128, tile(rows, 16))

    def launch(config: tuning.Config) -> None:
        block_n, block_k = config.size("outputs"), config.size("inputs")
        programs = blocks(outputs, block_n) * blocks(rows, height)
        steps = blocks(inputs, block_k)
        splits = max(1, min(2 * multiprocessors(x.device) // programs, steps // 4, 16))
        per_split = blocks(steps, splits) * block_k
        splits = blocks(inputs, per_split)
        into = out
        if splits > 1:
            into = torch.empty(splits, rows, outputs, dtype=torch.float32, device=x.device)
        given = out if bias is None else bias
        _product[(blocks(outputs, block_n), blocks(rows, height), splits)](
            x, as_bits(weight.q), weight.scale, shift, given, into, rows, x.stride(0), weight.scale.stride(0),
            scale_rows, scale_columns, per_split,
            N=outputs, K=inputs, KIND=kind, BIAS=bias is not None, SPLIT=splits > 1,
            BLOCK_M=height, BLOCK_N=block_n, BLOCK_K=block_k,
            num_warps=config.num_warps, num_stages=config.num_stages,
        )  # fmt: skip
        if splits > 1:
            _add_splits[(blocks(out.numel(), 1024),)](
                into, given, out, out.numel(), outputs, splits, BIAS=bias is not None, BLOCK=1024
            )

    tuning.run("product", f"{kind} {height} {outputs}x{inputs} {x.dtype}", product_configs(x.dtype), launch)
    return out


def packing(weight: IntWeight | Fp8Weight) -> tuple[int, torch.Tensor, int, int]:
    """(kind, shift or what stands for it, rows and columns that share a scale) as the kernels take them."""
    if isinstance(weight, Fp8Weight):
        return FP8, weight.scale, weight.rows, weight.columns
    return (INT8 if weight.bits == 8 else INT4), weight.shift, 1, 1


def product_configs(dtype: torch.dtype) -> list[tuning.Config]:
    if dtype == torch.float32:
        return [tuning.Config({"outputs": 32, "inputs": 64}, 4, 1)]
    return [
        tuning.Config({"outputs": 64, "inputs": 64}, 4, 2),  # fits into the 64 KiB of AMD's
        tuning.Config({"outputs": 64, "inputs": 64}, 4, 3),
        tuning.Config({"outputs": 32, "inputs": 128}, 4, 3),
        tuning.Config({"outputs": 64, "inputs": 128}, 4, 2),
    ]
