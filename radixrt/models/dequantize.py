"""ggml's block formats as float32.

The formats of whole files that people use most on a CPU are written out here in torch, which takes a fifth of the time
of the gguf library's numpy; the others go through the library. Layouts: ggml-common.h of ggml-org/llama.cpp.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from radixrt.checkpoint import GgufTensor
from radixrt.errors import ModelError


def dequantize(blocks: np.ndarray, tensor: GgufTensor) -> torch.Tensor:
    """blocks uint8[n, bytes of a block] of the tensor's type -> float32[n, elements of a block].

    ModelError for a type that the gguf library does not dequantize either.
    """
    convert = _TORCH.get(tensor.type_name)
    if convert is not None:
        return convert(torch.from_numpy(blocks))
    from gguf import GGMLQuantizationType, quants

    try:
        return torch.from_numpy(quants.dequantize(blocks, GGMLQuantizationType(tensor.ggml_type)))
    except (NotImplementedError, ValueError) as error:
        raise ModelError(f"tensor {tensor.name} is of type {tensor.type_name}, which is not supported") from error


GROUP_BITS = {"Q4_0": 4, "Q4_1": 4, "Q8_0": 8, "Q4_K": 4, "Q5_0": 8, "Q5_1": 8, "Q5_K": 8}
"""Types whose blocks are groups of 32 integers with a scale and a shift each, and the bits that hold their integers."""


def as_groups(blocks: np.ndarray, tensor: GgufTensor) -> tuple[int, torch.Tensor, torch.Tensor, torch.Tensor]:
    """blocks as in `dequantize` -> (bits, q uint8[n, elements], scale, shift float16[n, groups]).

    w = scale * q + shift: exactly, but for Q4_K and Q5_K, whose scales are products of a float16 and an integer of 6
    bits: here they are rounded to a float16 (2^-11). ModelError for a type that is not in GROUP_BITS.
    """
    data = torch.from_numpy(blocks)
    scale = data[:, :2].contiguous().view(torch.float16)
    second = data[:, 2:4].contiguous().view(torch.float16)
    match tensor.type_name:
        case "Q4_0":
            return 4, _nibble_bytes(data[:, 2:]), scale, scale * -8
        case "Q4_1":
            return 4, _nibble_bytes(data[:, 4:]), scale, second
        case "Q5_0":
            return 8, _nibble_bytes(data[:, 6:]) | _fifth_bits(data[:, 2:6]), scale, scale * -16
        case "Q5_1":
            return 8, _nibble_bytes(data[:, 8:]) | _fifth_bits(data[:, 4:8]), scale, second
        case "Q8_0":
            return 8, data[:, 2:] ^ 128, scale, scale * -128
        case "Q4_K":
            return 4, _nibble_groups(data[:, 16:]), *_k_scales(data[:, 4:16], scale, second)
        case "Q5_K":
            high = (data[:, None, 16:48] >> torch.arange(8, dtype=torch.uint8)[:, None] & 1) << 4
            q = _nibble_groups(data[:, 48:]) | high.flatten(1)
            return 8, q, *_k_scales(data[:, 4:16], scale, second)
    raise ModelError(f"tensor {tensor.name} is of type {tensor.type_name}, whose blocks are no groups of 32")


def _fifth_bits(packed: torch.Tensor) -> torch.Tensor:
    """uint8[n, 4] -> uint8[n, 32]: bit i as 16 or 0."""
    return ((packed[:, :, None] >> torch.arange(8, dtype=torch.uint8) & 1) << 4).flatten(1)


def _nibble_groups(packed: torch.Tensor) -> torch.Tensor:
    """uint8[n, 128] -> uint8[n, 256]: of each 32 bytes the low halves, then the high ones."""
    return _nibble_bytes(packed.reshape(-1, 32)).view(len(packed), 256)


def _k_scales(packed: torch.Tensor, scale: torch.Tensor, least: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The 8 groups' scales and shifts, float16[n, 8], from 12 bytes that hold 6 bits for each: the first four in the
    low bits of bytes 0-3 (scales) and 4-7 (least), the others in bytes 8-11 and the upper bits of the first eight."""
    low, high, last = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    scales = torch.cat([low & 63, last & 15 | low >> 6 << 4], dim=1)
    shifts = torch.cat([high & 63, last >> 4 | high >> 6 << 4], dim=1)
    return (scales * scale.float()).half(), (shifts * -least.float()).half()


def _half(blocks: torch.Tensor, at: int) -> torch.Tensor:
    """The float16 at byte `at` of each block, as float32[n, 1]."""
    return blocks[:, at : at + 2].contiguous().view(torch.float16).float()


def _nibbles(packed: torch.Tensor) -> torch.Tensor:
    """uint8[n, 16] -> float32[n, 32]: all low halves of the bytes, then all high ones."""
    return _nibble_bytes(packed).float()


def _nibble_bytes(packed: torch.Tensor) -> torch.Tensor:
    return torch.cat([packed & 15, packed >> 4], dim=1)


def _q4_0(blocks: torch.Tensor) -> torch.Tensor:
    return _nibbles(blocks[:, 2:]).sub_(8).mul_(_half(blocks, 0))


def _q4_1(blocks: torch.Tensor) -> torch.Tensor:
    return torch.addcmul(_half(blocks, 2), _nibbles(blocks[:, 4:]), _half(blocks, 0))


def _q8_0(blocks: torch.Tensor) -> torch.Tensor:
    return blocks[:, 2:].view(torch.int8).float().mul_(_half(blocks, 0))


_TORCH: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "F32": lambda blocks: blocks.view(torch.float32),
    "F16": lambda blocks: blocks.view(torch.float16).float(),
    "BF16": lambda blocks: blocks.view(torch.bfloat16).float(),
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q8_0": _q8_0,
}
