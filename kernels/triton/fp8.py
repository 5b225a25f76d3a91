"""float8 e4m3fn (OCP 8-bit Floating Point Specification, section 5) by integer operations, the same on every GPU.

Triton's own conversions exist from compute capability 8.9 on only; these cost three operations a number.
Memory is seen as uint8.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

LARGEST = 448.0
"""The largest finite e4m3fn."""
_LARGEST = tl.constexpr(LARGEST)
UNIT = tl.constexpr(256.0)
"""`decode` gives numbers this much too small: callers fold it into the scale they apply anyway."""


@triton.jit
def decode(bits):
    """uint8 -> float16, divided by UNIT: exponent and mantissa moved under a float16's, whose bias is 8 more."""
    wide = bits.to(tl.uint16)
    magnitude = wide & 0x7F
    half = ((wide & 0x80) << 8) | (magnitude << 7)
    half = tl.where(magnitude == 0x7F, half | 0x7C00, half)  # NaN stays NaN
    return half.to(tl.float16, bitcast=True)


@triton.jit
def encode(x):
    """float32 -> uint8, to the nearest (ties to even), held within the largest finite number; NaN stays NaN."""
    bits = x.to(tl.uint32, bitcast=True)
    sign = (bits >> 24) & 0x80
    magnitude = bits & 0x7FFFFFFF
    nan = magnitude > 0x7F800000
    size = tl.minimum(tl.where(nan, 0.0, magnitude.to(tl.float32, bitcast=True)), _LARGEST)
    # From 2^-6 on: 20 mantissa bits are rounded away, and the bias goes from 127 to 7.
    plain = size.to(tl.uint32, bitcast=True)
    normal = ((plain + 0x7FFFF + ((plain >> 20) & 1)) >> 20) - ((127 - 7) << 3)
    # Below: multiples of 2^-9. Adding 2^23 leaves an integer in the low bits, rounded to even.
    tiny = (size * 512.0 + 8388608.0).to(tl.uint32, bitcast=True) & 0xFF
    code = tl.where(size < 0.015625, tiny, normal)
    return (tl.where(nan, 0x7F, code) | sign).to(tl.uint8)


def is_fp8(x: torch.Tensor) -> bool:
    return x.dtype in (torch.float8_e4m3fn, torch.uint8)


def as_bits(x: torch.Tensor) -> torch.Tensor:
    """e4m3fn seen as uint8; anything else as it is."""
    return x.view(torch.uint8) if x.dtype == torch.float8_e4m3fn else x
