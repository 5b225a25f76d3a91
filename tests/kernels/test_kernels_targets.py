"""A whole model by the library compiled for each kind of CPU, and without any: the same logits within a tolerance."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from models_steps import Pool
from models_tiny import random_tokens, save, tiny, truth

from radixrt.checkpoint import open_checkpoint
from radixrt.config import Weights
from radixrt.kernels.cpu import native
from radixrt.kernels.cpu.native.packed import quantize
from radixrt.models import load_model
from radixrt.models.blocks import Decoder

WIDTHS = {"hidden_size": 96, "intermediate_size": 160, "head_dim": 32}


@pytest.mark.parametrize("weights", ["bf16", "int8", "int4"])
def test_each_target_runs_the_model(target: str, weights: Weights, tmp_path: Path) -> None:
    reference = tiny("llama, tied", **WIDTHS)
    bits = {"int8": 8, "int4": 4}.get(weights)
    with torch.no_grad():
        for parameter in reference.parameters():
            exact = quantize(parameter, bits).dense() if bits and parameter.ndim == 2 else parameter
            parameter.copy_(exact.bfloat16())
    model = load_model(open_checkpoint(save(reference, tmp_path)), dtype=torch.bfloat16, weights=weights)
    assert isinstance(model, Decoder) and model.narrow is not None
    tokens = random_tokens(14)
    expected = truth(reference, tokens)
    error = float((Pool(model, 64).logits(tokens) - expected).norm() / expected.norm())
    assert error < {"bf16": 0.03, "int8": 0.17, "int4": 0.17}[weights]


def test_without_a_library_torch_gives_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a CPU gets for which nothing can be compiled."""
    reference = tiny("llama, tied", **WIDTHS)
    with torch.no_grad():
        for parameter in reference.parameters():
            parameter.copy_(parameter.bfloat16())
    monkeypatch.setattr(native, "available", lambda: False)
    model = load_model(open_checkpoint(save(reference, tmp_path)), dtype=torch.bfloat16)
    assert isinstance(model, Decoder) and model.narrow is None
    tokens = random_tokens(14)
    expected = truth(reference, tokens)
    assert float((Pool(model, 64).logits(tokens) - expected).norm() / expected.norm()) < 0.03
