"""A whole model's forward through the Triton kernels, against the plain ones and transformers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from models_steps import Pool, Row
from models_tiny import random_tokens, save, tiny, truth

from radixrt.checkpoint import open_checkpoint
from radixrt.kernels import torch as plain
from radixrt.kernels import triton as ops
from radixrt.models import load_model
from radixrt.models.blocks import Decoder

pytestmark = pytest.mark.filterwarnings("ignore:overflow encountered")


def through(model: Decoder, kernels: object) -> Decoder:
    """The model, its operations done by `kernels`."""
    for part in (model, *model.layers):
        part.kernels = kernels  # type: ignore[attr-defined]
    return model


@pytest.mark.parametrize("name", ["qwen3", "mistral"])  # norms of heads; a window
def test_prefill_and_decode_over_a_shared_span(name: str, tmp_path: Path) -> None:
    reference = tiny(name, num_hidden_layers=2)
    checkpoint = open_checkpoint(save(reference, tmp_path))
    prefix, tails = random_tokens(17), [random_tokens(5, seed) for seed in (1, 2)]
    outputs = {}
    for kernels in (plain, ops):
        model = load_model(checkpoint, dtype=torch.float32, weights="float32")
        assert isinstance(model, Decoder)
        pool = Pool(through(model, kernels), 64)
        first = Row()
        given = [pool.step([(first, prefix)])[0]]
        rows = [Row(list(first.slots)) for _ in tails]
        given += pool.step([(row, tail[:4]) for row, tail in zip(rows, tails, strict=True)], shared=len(prefix))
        given += pool.step([(row, tail[4:]) for row, tail in zip(rows, tails, strict=True)], shared=len(prefix))
        outputs[kernels] = torch.cat(given)
    assert float((outputs[ops] - outputs[plain]).norm() / outputs[plain].norm()) < 1e-5
    whole = torch.cat([truth(reference, prefix), *(truth(reference, prefix + t)[17:21] for t in tails),
                       *(truth(reference, prefix + t)[21:] for t in tails)])  # fmt: skip
    assert float((outputs[ops] - whole).norm() / whole.norm()) < 1e-5
