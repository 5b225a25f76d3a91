"""What all Triton kernels share: extents of tiles, and products and roundings that are right when interpreted too."""

from __future__ import annotations

from functools import cache

import torch
import triton
import triton.language as tl

INTERPRETED = bool(triton.knobs.runtime.interpret)
"""TRITON_INTERPRET was set when triton was imported: kernels run as numpy, on tensors of any device, very slowly."""
_INTERPRETED = tl.constexpr(INTERPRETED)

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
_MULTIPROCESSORS = 132
"""Of an H100 or H200: what plans are made for where no GPU is at hand."""


def tile(length: int, least: int = 1) -> int:
    """The smallest power of two that holds `length`, at least `least`: the extent of a tile."""
    return max(least, 1 << max(0, length - 1).bit_length())


def blocks(length: int, block: int) -> int:
    """How many blocks cover `length`."""
    return -(-length // block)


def by_rows(x: torch.Tensor) -> torch.Tensor:
    """`x`, or a copy of it whose last dimension is contiguous."""
    return x if x.stride(-1) == 1 else x.contiguous()


@cache
def multiprocessors(device: torch.device) -> int:
    """How many programs run at once on `device`, at one a multiprocessor."""
    if device.type != "cuda":
        return _MULTIPROCESSORS
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


@triton.jit
def dot(a, b, acc):
    """acc + a @ b with sums in float32; float32 operands keep all their bits (no TF32)."""
    if _INTERPRETED:  # the interpreter multiplies the bits of a bfloat16 as if they were integers
        return tl.dot(a.to(tl.float32), b.to(tl.float32), acc, input_precision="ieee")
    return tl.dot(a, b, acc, input_precision="ieee")


@triton.jit
def narrow(x, dtype: tl.constexpr):
    """float32 as `dtype`, rounded to the nearest, ties to even."""
    if _INTERPRETED and dtype == tl.bfloat16:  # the interpreter cuts the lower half off
        bits = x.to(tl.uint32, bitcast=True)
        rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).to(tl.uint16).to(tl.bfloat16, bitcast=True)
        return rounded
    return x.to(dtype)


@triton.jit
def tanh(x):
    """tanh of float32 by one exponential; exact at both ends."""
    return 1 - 2 / (tl.exp(2 * x) + 1)
