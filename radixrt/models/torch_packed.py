"""Quantized weights without the compiled kernels: by torch's product with 4-bit weights.

That operator, `_weight_int4pack_mm_for_cpu`, takes groups of 32 inputs, outputs in sixteens, and activations and scales
in bfloat16 (in float32 and float16 it is slower than a dense product). Groups of 8 bits are two of 4 bits, side by
side: q = 16 h + l. What torch offers for 8 bits, `_weight_int8pack_mm`, has one scale for a whole output.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

from radixrt.kernels.cpu import native
from radixrt.kernels.cpu.native.packed import GROUP, Groups
from radixrt.models.packing import Part, Report, layer_name, pieces
from radixrt.models.weights import WeightSource

if TYPE_CHECKING:
    from radixrt.models.blocks import Decoder

_OUTPUTS = 16
"""Outputs come in groups of this number."""


class TorchPackedLinear:
    """x [rows, K] -> float32 [rows, N] by a weight in groups of 32, held in 5 bits (of 4) or 10 bits (of 8) a number.

    x is rounded to bfloat16, and so are the scales and the result.
    """

    def __init__(self, parts: Iterable[Groups], bias: torch.Tensor | None = None) -> None:
        """`parts`: rows of the weight, one below the other; each is packed before the next is asked for."""
        self._pieces = [_Piece(groups) for groups in parts]
        self._bias = bias
        self.outputs = sum(piece.outputs for piece in self._pieces)

    @property
    def nbytes(self) -> int:
        return sum(piece.weight.nbytes + piece.scales.nbytes for piece in self._pieces)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        x = x.bfloat16().contiguous()
        twice = torch.cat([x, x], dim=-1) if any(piece.bits == 8 for piece in self._pieces) else x
        y = torch.empty(len(x), self.outputs)
        at = 0
        for piece in self._pieces:
            y[:, at : at + piece.outputs] = piece(twice if piece.bits == 8 else x)
            at += piece.outputs
        return y if self._bias is None else y + self._bias


class _Piece:
    """A weight as the operator takes it."""

    def __init__(self, groups: Groups) -> None:
        self.bits, self.outputs = groups.bits, len(groups.q)
        scale, shift = groups.scale.float(), groups.shift.float()
        # The operator's weight is scale * (q - 8) + zero. The scale that it will multiply by is the rounded one.
        rounded = scale.bfloat16().float()
        if groups.bits == 4:
            q, scales, zeros = groups.q, rounded, shift + 8 * scale
        else:
            q = torch.cat([groups.q >> 4, groups.q & 15], dim=1)
            scales = torch.cat([16 * rounded, rounded], dim=1)
            zeros = torch.cat([shift + 128 * scale, 8 * rounded], dim=1)
        more = -len(q) % _OUTPUTS
        self.weight = torch.ops.aten._convert_weight_to_int4pack_for_cpu(F.pad(q, (0, 0, 0, more)).int(), 1)
        both = torch.stack([F.pad(scales, (0, 0, 0, more)).T, F.pad(zeros, (0, 0, 0, more)).T], dim=-1)
        self.scales = both.bfloat16().contiguous()

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = torch.ops.aten._weight_int4pack_mm_for_cpu(x, self.weight, GROUP, self.scales)
        return y[:, : self.outputs]


def possible(device: torch.device, ranks: int = 1) -> bool:
    """Whether packed weights are to be multiplied so: on a CPU without the compiled kernels, in one rank."""
    return device.type == "cpu" and ranks == 1 and not native.available()


def fill(model: Decoder, source: WeightSource, wanted: dict[str, Part], report: Report) -> None:
    """Read what is to be packed (`packing.parts`) into the model, as its products and its head.

    The embedding, still to be read, is bfloat16 from now on where the head is packed.
    """

    def read(name: str, bias: torch.Tensor | None = None) -> TorchPackedLinear:
        return TorchPackedLinear(_reported(pieces(wanted[name], source), report), bias)

    for index, layer in enumerate(model.layers):
        for key, (linear, _) in layer.linears().items():
            if (name := layer_name(index, key)) in wanted:
                linear.packed = read(name, linear.bias)  # the bias is filled later, in place
    if "head" in wanted:
        model.packed_head = read("head")
        tied = model.tied
        model.embedding = torch.empty_like(model.embedding, dtype=torch.bfloat16)
        if tied:
            model.head = model.embedding


def _reported(parts: Iterator[Groups], report: Report) -> Iterator[Groups]:
    for groups in parts:
        yield groups
        report(groups.q.numel())
