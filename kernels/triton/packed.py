"""Weights in fewer bits, as the products of `products.py` and `moe.py` read them."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from radixrt.kernels.triton.fp8 import LARGEST

GROUP = 32
"""Inputs that share a scale and a shift, as in the CPU's packed weights and in GGUF's blocks."""


@dataclass(frozen=True)
class IntWeight:
    """A weight [N, K] in groups of 32 inputs: w = scale * q + shift.

    Attributes:
        bits: 8 or 4.
        q: uint8 [N, K] for 8 bits; [N, K / 2] for 4, where byte j of a group's 16 holds input j in its lower and input
            j + 16 in its upper half, so that both halves are runs of inputs.
        scale, shift: float16 [N, K / 32].
    """

    bits: int
    q: torch.Tensor
    scale: torch.Tensor
    shift: torch.Tensor

    @property
    def shape(self) -> tuple[int, int]:
        return self.q.shape[0], self.scale.shape[1] * GROUP


@dataclass(frozen=True)
class Fp8Weight:
    """A weight [N, K] in e4m3: w = q * scale of the block it lies in.

    q: float8_e4m3fn [N, K]; scale: float32 [ceil(N / rows), ceil(K / columns)]: (1, K) for a scale a channel,
    (128, 128) for the blocks of DeepSeek-V3 (arXiv 2412.19437, section 3.3.2).
    """

    q: torch.Tensor
    scale: torch.Tensor
    rows: int
    columns: int

    @property
    def shape(self) -> tuple[int, int]:
        return self.q.shape[0], self.q.shape[1]


def pack_int(q: torch.Tensor, scale: torch.Tensor, shift: torch.Tensor, bits: int) -> IntWeight:
    """Integers q uint8 [N, K] below 2 ** bits with scale, shift [N, K / 32], as files and quantizers have them."""
    if bits not in (4, 8):
        raise ValueError(f"weights have 4 or 8 bits, not {bits}")
    if q.shape[1] % GROUP or scale.shape != (q.shape[0], q.shape[1] // GROUP) or shift.shape != scale.shape:
        raise ValueError(
            f"a weight of {q.shape[1]} inputs needs whole groups of {GROUP}, each with a scale and a shift"
        )
    if bits == 4:
        halves = q.view(q.shape[0], -1, 2, GROUP // 2)
        q = (halves[:, :, 0] | (halves[:, :, 1] << 4)).reshape(q.shape[0], -1)
    return IntWeight(bits, q.contiguous(), scale.half().contiguous(), shift.half().contiguous())


def quantize_int(weight: torch.Tensor, bits: int) -> IntWeight:
    """The nearest groups to weight [N, K]: 8 bits around zero, 4 bits from the least to the largest of a group."""
    parts = weight.float().view(len(weight), -1, GROUP)
    if bits == 8:
        scale = (parts.abs().amax(-1) / 127).half()
        shift = (scale * -128).half()
    else:
        low, high = parts.aminmax(dim=-1)
        scale, shift = ((high - low) / 15).half(), low.half()
    inverse = torch.where(scale > 0, 1 / scale.float(), 0)
    q = ((parts - shift.float()[..., None]) * inverse[..., None]).round().clamp(0, 2**bits - 1)
    return pack_int(q.to(torch.uint8).view(weight.shape), scale, shift, bits)


def quantize_fp8(weight: torch.Tensor, rows: int = 1, columns: int | None = None) -> Fp8Weight:
    """Each block of rows x columns (all of a channel's inputs by default) scaled to e4m3's range and rounded."""
    columns = weight.shape[1] if columns is None else columns
    high = -(-weight.shape[0] // rows)
    wide = -(-weight.shape[1] // columns)
    padded = torch.zeros(high * rows, wide * columns, device=weight.device)
    padded[: weight.shape[0], : weight.shape[1]] = weight.float()
    scale = (padded.view(high, rows, wide, columns).abs().amax((1, 3)) / LARGEST).clamp(min=1e-12)
    spread = scale.repeat_interleave(rows, 0).repeat_interleave(columns, 1)
    q = (padded / spread).clamp(-LARGEST, LARGEST)[: weight.shape[0], : weight.shape[1]]
    return Fp8Weight(q.to(torch.float8_e4m3fn).contiguous(), scale, rows, columns)


def dense(weight: IntWeight | Fp8Weight) -> torch.Tensor:
    """float32 [N, K]: what the weight stands for."""
    if isinstance(weight, Fp8Weight):
        spread = weight.scale.repeat_interleave(weight.rows, 0).repeat_interleave(weight.columns, 1)
        return weight.q.float() * spread[: weight.shape[0], : weight.shape[1]]
    outputs, inputs = weight.shape
    q = weight.q
    if weight.bits == 4:
        halves = q.view(outputs, -1, GROUP // 2)
        q = torch.stack([halves & 15, halves >> 4], 2)
    parts = q.reshape(outputs, -1, GROUP).float()
    return (parts * weight.scale.float()[..., None] + weight.shift.float()[..., None]).view(outputs, inputs)
