"""Weights in groups of 32 by torch's own operator, where there are no compiled kernels: against dense float64."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Type
from models_steps import Pool
from models_tiny import random_tokens
from test_models_gguf import HIDDEN, LLAMA, VOCAB, llama_tensors, quantized, write

from radixrt.checkpoint import open_checkpoint
from radixrt.kernels.cpu import native
from radixrt.kernels.cpu.native.packed import Groups, quantize
from radixrt.models import load_model
from radixrt.models.torch_packed import TorchPackedLinear


def groups(bits: int, outputs: int, inputs: int, seed: int) -> Groups:
    """Drawn groups, whose shift has no relation to the scale."""
    draw = torch.Generator().manual_seed(seed)
    q = torch.randint(0, 2**bits, (outputs, inputs), generator=draw, dtype=torch.uint8)
    scale = (torch.rand(outputs, inputs // 32, generator=draw) + 0.1) / 2**bits
    return Groups(bits, q, scale.half(), (torch.randn(scale.shape, generator=draw) - 0.5).half())


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize(("outputs", "inputs"), [(16, 32), (48, 96), (7, 64), (576, 576), (129, 1536)])
@pytest.mark.parametrize("rows", [1, 5, 70])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_it_is_the_product_but_for_rounding(
    bits: int, outputs: int, inputs: int, rows: int, dtype: torch.dtype
) -> None:
    weight = groups(bits, outputs, inputs, seed=outputs + rows)
    draw = torch.Generator().manual_seed(rows)
    x = torch.randn(rows, inputs, generator=draw).to(dtype)
    bias = torch.randn(outputs, generator=draw)
    y = TorchPackedLinear([weight], bias)(x)
    # What bfloat16 leaves of a number: 2 ** -9 of it, of x, of the scale, of the zero point and of y.
    size = x.double().abs() @ weight.dense().double().abs().T
    expected = x.double() @ weight.dense().double().T
    assert y.dtype == torch.float32
    error = (y.double() - expected - bias.double()).abs()
    assert bool((error <= 2**-9 * (3 * size + expected.abs()) + 1e-3).all())
    assert float(error.norm() / size.norm()) < 2**-9


def test_eight_bits_around_zero_are_as_exact_as_bfloat16_activations() -> None:
    """What Q8_0 holds: the zero point is exactly none."""
    draw = torch.Generator().manual_seed(0)
    weight = quantize(torch.randn(64, 256, generator=draw), 8)
    x = torch.randn(9, 256, generator=draw).bfloat16()
    expected = x.double() @ weight.dense().double().T
    error = TorchPackedLinear([weight])(x).double() - expected
    assert float(error.norm() / expected.norm()) < 2**-8


def test_rows_may_come_in_pieces_of_any_length() -> None:
    parts = [groups(4, 40, 64, 1), groups(4, 3, 64, 2), groups(4, 16, 64, 3)]
    x = torch.randn(4, 64, generator=torch.Generator().manual_seed(4))
    whole = TorchPackedLinear(parts)
    assert torch.equal(whole(x), torch.cat([TorchPackedLinear([part])(x) for part in parts], dim=1))
    assert TorchPackedLinear([])(x).shape == (4, 0)


@pytest.mark.parametrize(("bits", "each"), [(4, 5), (8, 10)])
def test_memory(bits: int, each: int) -> None:
    assert TorchPackedLinear([groups(bits, 128, 256, 0)]).nbytes == 128 * 256 * each // 8


@pytest.fixture
def no_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "available", lambda: False)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("kind", [Type.Q4_0, Type.Q4_1, Type.Q8_0, Type.Q6_K], ids=lambda kind: kind.name)
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "own head"])
@pytest.mark.usefixtures("no_kernels")
def test_a_quantized_file_stays_packed(kind: Type, dtype: torch.dtype, tied: bool, tmp_path: Path) -> None:
    """The logits are about as near to dense float32 as dense bfloat16 is; the embedding alone is dense."""
    tensors = llama_tensors(kind)
    if not tied:
        tensors["output.weight"] = (quantized((VOCAB, HIDDEN), kind, np.random.default_rng(1)), kind)
    checkpoint = open_checkpoint(write(tmp_path / "model.gguf", tensors, LLAMA))
    model = load_model(checkpoint, dtype=dtype)
    for layer in model.layers:
        assert all(linear.weight.is_meta and linear.packed is not None for linear, _ in layer.linears().values())
    assert model.embedding.dtype == torch.bfloat16 and (tied or model.head.is_meta)
    tokens = random_tokens(14)
    exact = Pool(load_model(checkpoint, dtype=torch.float32, weights="float32"), 64).logits(tokens).double()
    rounded = Pool(load_model(checkpoint, dtype=torch.bfloat16, weights="bf16"), 64).logits(tokens).double()
    error = Pool(model, 64).logits(tokens).double() - exact
    # Weights this large make attention nearly a choice, which enlarges whatever is rounded; Q6_K is not kept exactly.
    assert float(error.norm()) < 4 * float((rounded - exact).norm())


@pytest.mark.usefixtures("no_kernels")
def test_what_is_not_quantized_stays_dense(tmp_path: Path) -> None:
    model = load_model(
        open_checkpoint(write(tmp_path / "model.gguf", llama_tensors(Type.F16), LLAMA)), dtype=torch.float32
    )
    assert model.packed_head is None and model.embedding.dtype == torch.float32
