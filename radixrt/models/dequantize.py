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


GROUP_BITS = {"Q4_0": 4, "Q4_1": 4, "Q8_0": 8}
"""Types whose blocks are groups of 32 integers with a scale and a shift, and the bits of their integers."""


def as_groups(blocks: np.ndarray, tensor: GgufTensor) -> tuple[int, torch.Tensor, torch.Tensor, torch.Tensor]:
    """blocks as in `dequantize` -> (bits, q uint8[n, 32], scale, shift float16[n]): w = scale * q + shift, exactly.

    ModelError for a type that is not in GROUP_BITS.
    """
    data = torch.from_numpy(blocks)
    scale = data[:, :2].contiguous().view(torch.float16)[:, 0]
    match tensor.type_name:
        case "Q4_0":
            return 4, _nibble_bytes(data[:, 2:]), scale, scale * -8
        case "Q4_1":
            return 4, _nibble_bytes(data[:, 4:]), scale, data[:, 2:4].contiguous().view(torch.float16)[:, 0]
        case "Q8_0":
            return 8, data[:, 2:] ^ 128, scale, scale * -128
    raise ModelError(f"tensor {tensor.name} is of type {tensor.type_name}, whose blocks are no groups of 32")


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
