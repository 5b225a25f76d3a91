"""ggml's blocks of integers, taken apart: integers, scales and shifts, exactly as a file holds them.

Layouts: ggml-common.h of ggml-org/llama.cpp, and dequantize_row_* in its ggml-quants.c.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Integers:
    """w = scale * (q - zero) + shift, which float32 computes as the gguf library does.

    q: uint8[n, groups, size], `size` 16 or 32 neighbours in a row. scale: float32[n, groups]. shift: the same, or None
    for 0.
    """

    q: torch.Tensor
    scale: torch.Tensor
    zero: int = 0
    shift: torch.Tensor | None = None

    def dense(self) -> torch.Tensor:
        """float32[n, elements of a block]."""
        values = self.q.float()
        if self.zero:
            values -= self.zero
        values *= self.scale[..., None]
        if self.shift is not None:
            values += self.shift[..., None]
        return values.flatten(1)


IQ4_VALUES = torch.tensor([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113])
"""What the 16 codes of IQ4_NL and IQ4_XS are (kvalues_iq4nl)."""
_IQ4_BYTES = (IQ4_VALUES + 128).to(torch.uint8)
_SHIFTS = torch.arange(8, dtype=torch.uint8)
_PAIRS = torch.tensor([0, 2, 4, 6], dtype=torch.uint8)


def _half(blocks: torch.Tensor, at: int) -> torch.Tensor:
    """The float16 at byte `at` of each block, as float32[n, 1]."""
    return blocks[:, at : at + 2].contiguous().view(torch.float16).float()


def _nibbles(packed: torch.Tensor) -> torch.Tensor:
    """uint8[..., bytes] -> uint8[..., 2 * bytes]: all low halves of the bytes, then all high ones."""
    return torch.cat([packed & 15, packed >> 4], dim=-1)


def _bits_of(packed: torch.Tensor) -> torch.Tensor:
    """uint8[n, 4] -> uint8[n, 1, 32]: bit i as 16 or 0."""
    return ((packed[:, :, None] >> _SHIFTS & 1) << 4).flatten(1)[:, None]


def _twos(packed: torch.Tensor) -> torch.Tensor:
    """uint8[n, 32 * k] -> uint8[n, 4 * k, 32]: of each 32 bytes the lowest two bits, then the next two, ..."""
    return (packed.reshape(len(packed), -1, 1, 32) >> _PAIRS[:, None] & 3).flatten(1, 2)


def _halves(groups: torch.Tensor) -> torch.Tensor:
    """uint8[n, groups, 32] -> uint8[n, 2 * groups, 16]."""
    return groups.reshape(len(groups), -1, 16)


def _q4_0(blocks: torch.Tensor) -> Integers:
    return Integers(_nibbles(blocks[:, None, 2:]), _half(blocks, 0), 8)


def _q4_1(blocks: torch.Tensor) -> Integers:
    return Integers(_nibbles(blocks[:, None, 4:]), _half(blocks, 0), shift=_half(blocks, 2))


def _q5_0(blocks: torch.Tensor) -> Integers:
    return Integers(_nibbles(blocks[:, None, 6:]) | _bits_of(blocks[:, 2:6]), _half(blocks, 0), 16)


def _q5_1(blocks: torch.Tensor) -> Integers:
    q = _nibbles(blocks[:, None, 8:]) | _bits_of(blocks[:, 4:8])
    return Integers(q, _half(blocks, 0), shift=_half(blocks, 2))


def _q8_0(blocks: torch.Tensor) -> Integers:
    return Integers(blocks[:, None, 2:] ^ 128, _half(blocks, 0), 128)


def _q2_k(blocks: torch.Tensor) -> Integers:
    """Bytes 0-15: 4 bits of scale and 4 of shift for each 16 numbers; then the numbers; then a float16 for either."""
    scales = (blocks[:, :16] & 15).float() * _half(blocks, 80)
    shifts = (blocks[:, :16] >> 4).float() * -_half(blocks, 82)
    return Integers(_halves(_twos(blocks[:, 16:80])), scales, shift=shifts)


def _q3_k(blocks: torch.Tensor) -> Integers:
    """Bytes 0-31: the numbers' third bits; 32-95: the others; 96-107: scales of 6 bits; then a float16."""
    q = _twos(blocks[:, 32:96]) | (blocks[:, None, :32] >> _SHIFTS[:, None] & 1) << 2
    return Integers(_halves(q), q3_k_scales(blocks).float() * _half(blocks, 108), 4)


def q3_k_scales(blocks: torch.Tensor) -> torch.Tensor:
    """int16[n, 16], -32..31: bytes 96-103 hold the lower four bits (first in all low, then in all high halves), bytes
    104-107 the upper two."""
    low = _nibbles(blocks[:, 96:104])
    high = (blocks[:, None, 104:108] >> _PAIRS[:, None] & 3).flatten(1)
    return (low | high << 4).to(torch.int16) - 32


def _q4_k(blocks: torch.Tensor) -> Integers:
    return Integers(_nibbles(blocks[:, 16:].view(-1, 4, 32)).view(-1, 8, 32), *_k_scales(blocks))


def _q5_k(blocks: torch.Tensor) -> Integers:
    high = (blocks[:, None, 16:48] >> _SHIFTS[:, None] & 1) << 4
    return Integers(_nibbles(blocks[:, 48:].view(-1, 4, 32)).view(-1, 8, 32) | high, *_k_scales(blocks))


def _k_scales(blocks: torch.Tensor) -> tuple[torch.Tensor, int, torch.Tensor]:
    """Scales, zero and shifts of 8 groups, from 12 bytes that hold 6 bits for each: the first four in the low bits of
    bytes 4-7 (scales) and 8-11 (shifts), the others in bytes 12-15 and the upper bits of the first eight."""
    low, high, last = blocks[:, 4:8], blocks[:, 8:12], blocks[:, 12:16]
    scales = torch.cat([low & 63, last & 15 | low >> 6 << 4], dim=1)
    shifts = torch.cat([high & 63, last >> 4 | high >> 6 << 4], dim=1)
    return scales.float() * _half(blocks, 0), 0, shifts.float() * -_half(blocks, 2)


def _q6_k(blocks: torch.Tensor) -> Integers:
    """Bytes 0-127: low halves; 128-191: the upper two bits; 192-207: int8 scales of 16 numbers each; then a float16.
    Of each 64 low bytes the low halves are the first 64 numbers, the high ones the next 64."""
    q = _nibbles(blocks[:, :128].reshape(-1, 2, 64)).view(-1, 8, 32) | _twos(blocks[:, 128:192]) << 4
    return Integers(_halves(q), q6_k_scales(blocks).float() * _half(blocks, 208), 32)


def q6_k_scales(blocks: torch.Tensor) -> torch.Tensor:
    """int8[n, 16]."""
    return blocks[:, 192:208].contiguous().view(torch.int8)


def _iq4_nl(blocks: torch.Tensor) -> Integers:
    return Integers(_IQ4_BYTES[_nibbles(blocks[:, None, 2:]).int()], _half(blocks, 0), 128)


def _iq4_xs(blocks: torch.Tensor) -> Integers:
    """A float16; 2 bytes with the upper two bits of 8 scales; 4 bytes with their low halves; then the codes."""
    low = torch.stack([blocks[:, 4:8] & 15, blocks[:, 4:8] >> 4], dim=-1).flatten(1)
    high = (blocks[:, 2:4, None] >> _PAIRS & 3).flatten(1)
    scales = (low | high << 4).to(torch.int16) - 32
    q = _IQ4_BYTES[_nibbles(blocks[:, 8:].view(-1, 8, 16)).int()]
    return Integers(q, scales.float() * _half(blocks, 0), 128)


INTEGERS: dict[str, Callable[[torch.Tensor], Integers]] = {
    "Q4_0": _q4_0, "Q4_1": _q4_1, "Q5_0": _q5_0, "Q5_1": _q5_1, "Q8_0": _q8_0,
    "Q2_K": _q2_k, "Q3_K": _q3_k, "Q4_K": _q4_k, "Q5_K": _q5_k, "Q6_K": _q6_k,
    "IQ4_NL": _iq4_nl, "IQ4_XS": _iq4_xs,
}  # fmt: skip
"""By name of the type: blocks uint8[n, bytes of a block] -> their integers."""
