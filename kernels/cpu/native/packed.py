"""Weights for narrow steps: bfloat16 as they are, or 8- or 4-bit integers in groups of 32 inputs (layouts: linear.h,
windows.h)."""

from __future__ import annotations

import ctypes
import math
from dataclasses import dataclass

import numpy as np
import torch

from radixrt.kernels.cpu.native.binding import Choice, Linear, is_half, library, pointer

GROUP, TILE, WINDOW = 32, 16, 64
LAYOUT = 4
"""To be raised whenever `radixrt_pack` lays bytes out differently: files of packed weights name it."""


@dataclass(frozen=True)
class Groups:
    """A weight [N, K] as integers in groups of 32 inputs: w = scale * q + shift.

    q uint8[N, K] below 2 ** bits; scale, shift float16[N, K / 32].
    """

    bits: int
    q: torch.Tensor
    scale: torch.Tensor
    shift: torch.Tensor

    def dense(self) -> torch.Tensor:
        """float32[N, K]."""
        parts = self.q.view(*self.scale.shape, GROUP).float()
        return (parts * self.scale.float()[..., None] + self.shift.float()[..., None]).view(self.q.shape)


def quantize(weight: torch.Tensor, bits: int) -> Groups:
    """The nearest groups to weight [N, K], K a multiple of 32: 8 bits around zero, 4 bits from least to largest."""
    parts = weight.float().view(len(weight), -1, GROUP)
    if bits == 8:
        scale = (parts.abs().amax(-1) / 127).half()
        shift = scale * -128
    else:
        low, high = parts.aminmax(dim=-1)
        scale, shift = ((high - low) / 15).half(), low.half()
    inverse = torch.where(scale > 0, 1 / scale.float(), 0)
    q = (parts - shift.float()[..., None]).mul_(inverse[..., None]).round_().clamp_(0, 2**bits - 1)
    return Groups(bits, q.to(torch.uint8).view(weight.shape), scale, shift)


@dataclass(frozen=True)
class Packed:
    """A weight [outputs, inputs] as the library multiplies it. data: uint8, contiguous, `packed_bytes` long.

    Rows lie in tiles of TILE: what is packed of rows that begin and end at tiles can be put one behind the other.
    """

    bits: int
    outputs: int
    inputs: int
    data: torch.Tensor


def packed_bytes(bits: int, outputs: int, inputs: int) -> int:
    """Length of `Packed.data`."""
    if bits == 8:
        tile = inputs // GROUP * (4 * TILE + GROUP * TILE)
    else:
        tile = 4 * TILE + math.ceil(inputs / WINDOW) * (8 * TILE + WINDOW * TILE // 2)
    return math.ceil(outputs / TILE) * tile


def pack(groups: Groups, out: torch.Tensor | None = None) -> Packed:
    """The groups as the library multiplies them, in memory of their own or in `out` (uint8)."""
    loaded = library()
    if loaded is None:
        raise RuntimeError("packed weights need the compiled kernels")
    outputs, inputs = groups.q.shape
    length = packed_bytes(groups.bits, outputs, inputs)
    data = torch.empty(length, dtype=torch.uint8) if out is None else out
    if data.numel() != length or not data.is_contiguous():
        raise ValueError(f"out must be {length} contiguous bytes")
    q, scale, shift = (part.contiguous() for part in (groups.q, groups.scale, groups.shift))
    loaded.radixrt_pack(
        groups.bits, outputs, inputs, q.data_ptr(), scale.data_ptr(), shift.data_ptr(), data.data_ptr()
    )  # fmt: skip
    return Packed(groups.bits, outputs, inputs, data)


class NarrowLinear:
    """x [rows, K] -> float32[rows, N] by the library, for a handful of rows. Holds what it points to."""

    def __init__(self, weight: torch.Tensor | Groups | Packed, bias: torch.Tensor | None = None) -> None:
        """`weight`: bfloat16 [N, K], contiguous, or packed, used in place; or groups, which are packed here."""
        loaded = library()
        if loaded is None:
            raise RuntimeError("packed weights need the compiled kernels")
        self._library = loaded
        if isinstance(weight, torch.Tensor):
            self.bits, (self.outputs, self.inputs) = 16, weight.shape
            self._data = weight
        else:
            packed = pack(weight) if isinstance(weight, Groups) else weight
            self.bits, self.outputs, self.inputs = packed.bits, packed.outputs, packed.inputs
            self._data = packed.data
        self._bias = None if bias is None else bias.float()
        self.struct = Linear(
            bits=self.bits,
            outputs=self.outputs,
            inputs=self.inputs,
            weight=self._data.data_ptr(),
            bias=pointer(self._bias),
        )

    @property
    def nbytes(self) -> int:
        """Bytes of the packed form; 0 for bfloat16, which is used in place."""
        return self._data.numel() if self.bits < 16 else 0

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        x = x.contiguous()
        y = torch.empty(len(x), self.outputs)
        self._library.radixrt_linear(self.struct, x.data_ptr(), is_half(x), len(x), y.data_ptr())
        return y

    def choose(
        self,
        x: torch.Tensor,
        allowed: int,
        mask_of: np.ndarray | None = None,
        masks: np.ndarray | None = None,
        whole: np.ndarray | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """int64[rows]: the largest output of each row of x [rows, K], the first among equals, without all outputs; and
        float32[len(whole), N]: all outputs of the rows `whole` (int64, none twice), for which -1 is chosen.

        Outputs from `allowed` on are never chosen. masks int32[lines, words]: bit o % 32 of word o / 32 allows output
        o, and those beyond are not allowed; mask_of int64[rows]: the line that is a row's, -1 for none. -1 where
        nothing is allowed, or what is largest is not finite. Where a row of `whole` has a mask, outputs that it
        forbids may be -inf, and the others are what they are without one.
        """
        x = x.contiguous()
        chosen = torch.empty(len(x), dtype=torch.int64)
        logits_of = np.full(len(x), -1, np.int64)
        if whole is not None:
            logits_of[whole] = np.arange(len(whole))
        logits = torch.empty(0 if whole is None else len(whole), self.outputs)
        lines = None if masks is None else np.ascontiguousarray(masks, np.int32)
        choice = Choice(
            head=ctypes.pointer(self.struct), rows=len(x), allowed=allowed,
            masks=None if lines is None else lines.ctypes.data, words=0 if lines is None else lines.shape[1],
            mask_of=None if mask_of is None else mask_of.ctypes.data,
            logits_of=logits_of.ctypes.data, logits=logits.data_ptr(), chosen=chosen.data_ptr(),
        )  # fmt: skip
        self._library.radixrt_choose(choice, x.data_ptr(), is_half(x))
        return chosen, logits
