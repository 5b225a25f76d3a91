"""Blocks of GGUF files as groups of 32 integers, against what the gguf library says they are."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Type
from test_models_gguf import HALVES

from radixrt.checkpoint import GgufTensor
from radixrt.kernels.cpu.native.packed import Groups
from radixrt.models.dequantize import GROUP_BITS, as_groups, dequantize
from radixrt.models.gguf_blocks import q6_k_scales

EXACT = ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q3_K", "IQ4_NL"]
ROUNDED_SCALES = ["Q4_K", "Q5_K", "IQ4_XS"]
AT = {kind.name: at for kind, at in HALVES.items()} | {
    "Q4_0": (0,), "Q4_1": (0, 2), "Q5_0": (0,), "Q5_1": (0, 2), "Q8_0": (0,)
}  # fmt: skip


def blocks_of(name: str, seed: int = 0) -> tuple[np.ndarray, GgufTensor]:
    """Random bits with scales of either sign, and among them the extremes that a quantizer writes: all bits, none."""
    rng = np.random.default_rng(seed)
    kind = Type[name]
    elements, size = gguf.GGML_QUANT_SIZES[kind]
    blocks = rng.integers(0, 256, (300, size), dtype=np.uint8)
    blocks[0], blocks[1] = 0, 255
    for at in AT[name]:
        scales = (rng.uniform(1e-3, 1e-2, len(blocks)) * rng.choice([-1, 1], len(blocks))).astype(np.float16)
        blocks[:, at : at + 2] = scales.view(np.uint8).reshape(-1, 2)
    tensor = GgufTensor(
        name="x", shape=(300, elements), ggml_type=int(kind), type_name=name, offset=0, nbytes=blocks.size
    )
    return blocks, tensor


def grouped(name: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Groups and the library's numbers, both float32[groups, 32]."""
    blocks, tensor = blocks_of(name)
    bits, q, scale, shift = as_groups(blocks, tensor)
    assert bits == GROUP_BITS[name] and q.dtype == torch.uint8 and int(q.max()) < 2**bits
    truth = torch.from_numpy(gguf.quants.dequantize(blocks, Type[name]))
    return Groups(bits, q, scale, shift).dense().view(-1, 32), truth.view(-1, 32)


def test_every_type_with_groups_is_tried() -> None:
    assert {*EXACT, *ROUNDED_SCALES, "Q6_K", "Q2_K"} == set(GROUP_BITS)


@pytest.mark.parametrize("name", sorted(GROUP_BITS))
def test_dequantized_as_the_library_does_to_the_bit(name: str) -> None:
    blocks, tensor = blocks_of(name)
    assert torch.equal(dequantize(blocks, tensor), torch.from_numpy(gguf.quants.dequantize(blocks, Type[name])))


@pytest.mark.parametrize("name", EXACT)
def test_exact_groups(name: str) -> None:
    ours, truth = grouped(name)
    assert torch.equal(ours, truth)


@pytest.mark.parametrize("name", ROUNDED_SCALES)
def test_groups_with_scales_rounded_to_float16(name: str) -> None:
    ours, truth = grouped(name)
    blocks, _ = blocks_of(name)
    # w = scale * q + shift, each rounded by 2^-11 of itself: no more than that of what they can add up to.
    most = {"Q4_K": 15, "Q5_K": 31, "IQ4_XS": 127}[name]
    halves = np.concatenate([blocks[:, at : at + 2].copy().view(np.float16) for at in AT[name]], axis=1)
    largest = torch.from_numpy(np.abs(halves.astype(np.float32)).max(1)) * 64 * (most + 1)
    per_group = largest.repeat_interleave(len(ours) // len(blocks))
    assert bool(((ours - truth).abs().amax(1) <= per_group * 2**-11).all())


def test_of_q6_k_the_half_with_the_larger_scale_keeps_its_numbers() -> None:
    ours, truth = grouped("Q6_K")
    blocks, _ = blocks_of("Q6_K")
    scales = q6_k_scales(torch.from_numpy(blocks)).view(-1, 2).float().abs()
    d = torch.from_numpy(blocks[:, 208:210].copy()).view(torch.float16).float().abs().repeat_interleave(8, dim=0)
    step = (d * scales.amax(1, keepdim=True)).view(-1, 1, 1)
    error, size = ((part.view(-1, 2, 16)) for part in ((ours - truth).abs(), truth.abs()))
    rounding = size * 2**-11
    larger = (scales == scales.amax(1, keepdim=True))[..., None]
    assert bool((torch.where(larger, error - rounding, 0) <= 1e-7).all())
    assert bool((error <= step / 6 + rounding + 1e-7).all())


def test_q2_k_lies_within_half_a_255th_of_what_its_group_spans() -> None:
    ours, truth = grouped("Q2_K")
    low, high = truth.aminmax(dim=1)
    slack = (high - low) / 510 + 2**-10 * torch.maximum(low.abs(), high.abs()) + 1e-7
    assert bool(((ours - truth).abs().amax(1) <= slack).all())
