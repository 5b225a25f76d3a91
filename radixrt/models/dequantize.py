"""ggml's block formats as float32, and as groups of 32 integers that the compiled products multiply.

The types in `gguf_blocks.INTEGERS` are taken apart in torch, which takes a fifth of the time of the gguf library's
numpy; the others go through the library.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from radixrt.checkpoint import GgufTensor
from radixrt.errors import ModelError
from radixrt.models.gguf_blocks import INTEGERS, Integers, q3_k_scales, q6_k_scales

_GROUP = 32


def dequantize(blocks: np.ndarray, tensor: GgufTensor) -> torch.Tensor:
    """blocks uint8[n, bytes of a block] of the tensor's type -> float32[n, elements of a block].

    ModelError for a type that the gguf library does not dequantize either.
    """
    data = torch.from_numpy(blocks)
    if (plain := _PLAIN.get(tensor.type_name)) is not None:
        return plain(data)
    if (integers := INTEGERS.get(tensor.type_name)) is not None:
        return integers(data).dense()
    from gguf import GGMLQuantizationType, quants

    try:
        return torch.from_numpy(quants.dequantize(blocks, GGMLQuantizationType(tensor.ggml_type)))
    except (NotImplementedError, ValueError) as error:
        raise ModelError(f"tensor {tensor.name} is of type {tensor.type_name}, which is not supported") from error


GROUP_BITS = {
    "Q4_0": 4, "Q4_1": 4, "Q4_K": 4, "Q5_0": 8, "Q5_1": 8, "Q5_K": 8, "Q8_0": 8,
    "Q2_K": 8, "Q3_K": 8, "Q6_K": 8, "IQ4_NL": 8, "IQ4_XS": 8,
}  # fmt: skip
"""Types whose blocks become groups of 32 integers with a scale and a shift each, and the bits that hold those."""


def as_groups(blocks: np.ndarray, tensor: GgufTensor) -> tuple[int, torch.Tensor, torch.Tensor, torch.Tensor]:
    """blocks as in `dequantize` -> (bits, q uint8[n, elements], scale, shift float16[n, groups]).

    w = scale * q + shift:

    - exactly for Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q3_K and IQ4_NL;
    - with scales rounded to a float16 (2^-11) for Q4_K, Q5_K and IQ4_XS, where they are products of a float16 and an
      integer of 6 bits;
    - for Q6_K so, too, in that half of each group whose scale is the larger one; numbers of the other half are rounded
      to a third or a quarter of the larger step, or less;
    - for Q2_K to the nearest of 256 numbers from a group's least to its largest.

    ModelError for a type that is not in GROUP_BITS.
    """
    bits = GROUP_BITS.get(tensor.type_name)
    if bits is None:
        raise ModelError(f"tensor {tensor.name} is of type {tensor.type_name}, whose blocks are no groups of 32")
    data = torch.from_numpy(blocks)
    parts = INTEGERS[tensor.type_name](data)
    match tensor.type_name:
        case "Q3_K":
            q, scale, shift = _whole_multiples(parts, data)
        case "Q6_K":
            q, scale, shift = _larger_half_exact(parts, data)
        case "Q2_K":
            q, scale, shift = _from_least_to_largest(parts.dense(), 2**bits - 1)
        case _:
            scale = parts.scale.half()
            shift = -parts.zero * scale if parts.shift is None else parts.shift.half()
            q = parts.q
    return bits, q.flatten(1), scale, shift


def _whole_multiples(parts: Integers, blocks: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Q3_K: two groups of 16 whose scales are multiples of the block's: -32..31 times -4..3 is -124..128, which fits
    8 bits once its sign is turned."""
    multiples = q3_k_scales(blocks)[..., None] * (parts.q.to(torch.int16) - parts.zero)
    q = (128 - multiples).to(torch.uint8)
    scale = -blocks[:, 108:110].contiguous().view(torch.float16).expand(-1, 8)
    return q, scale, -128 * scale


def _larger_half_exact(parts: Integers, blocks: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Q6_K: two groups of 16 with a scale each, an integer times the block's. The step becomes a fraction 1 / m of the
    larger scale, m the largest that leaves all in 8 bits, 3 or more: what has that scale stays what it is."""
    scales = q6_k_scales(blocks).view(-1, 8, 2).float()
    numbers = parts.q.view(-1, 8, 2, 16).float() - parts.zero
    largest = scales.gather(-1, scales.abs().argmax(-1, keepdim=True))
    ratio = torch.where(largest != 0, scales / largest, 0)
    multiples = (numbers * ratio[..., None]).flatten(2)  # [n, 8, 32], of the larger scale
    low, high = multiples.aminmax(dim=-1)
    m = torch.minimum(127 / high.clamp(min=1), 128 / (-low).clamp(min=1)).floor_()
    q = (multiples * m[..., None]).round_().add_(128).clamp_(0, 255).to(torch.uint8)
    scale = (blocks[:, 208:210].contiguous().view(torch.float16).float() * largest[..., 0] / m).half()
    return q, scale, -128 * scale


def _from_least_to_largest(values: torch.Tensor, levels: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """float32[n, elements] -> the nearest of `levels` + 1 numbers at equal distances, for each 32."""
    parts = values.view(len(values), -1, _GROUP)
    low, high = parts.aminmax(dim=-1)
    scale, shift = ((high - low) / levels).half(), low.half()
    inverse = torch.where(scale > 0, 1 / scale.float(), 0)
    q = (parts - shift.float()[..., None]).mul_(inverse[..., None]).round_().clamp_(0, levels)
    return q.to(torch.uint8), scale, shift


_PLAIN: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "F32": lambda blocks: blocks.view(torch.float32),
    "F16": lambda blocks: blocks.view(torch.float16).float(),
    "BF16": lambda blocks: blocks.view(torch.bfloat16).float(),
}
