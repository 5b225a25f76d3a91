"""Each architecture's logits against transformers on the same weights, whole, in chunks, and in a batch."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from models_steps import Pool, Row, max_difference
from models_tiny import MODELS, random_tokens, save, tiny, truth

from radixrt.checkpoint import open_checkpoint
from radixrt.errors import ModelError
from radixrt.models import CausalLM, load_model

# Random weights of deviation 0.25 give logits of size about 10.
TOLERANCE = 1e-4


def load(path: Path, dtype: torch.dtype = torch.float32) -> CausalLM:
    return load_model(open_checkpoint(path), dtype=dtype)


@pytest.mark.parametrize("name", MODELS)
def test_logits(name: str, tmp_path: Path) -> None:
    reference = tiny(name)
    model = load(save(reference, tmp_path))
    tokens = random_tokens(150)
    theirs = truth(reference, tokens)
    assert float(theirs.abs().max()) > 1  # the comparison means something
    assert max_difference(Pool(model, 200).logits(tokens), theirs) < TOLERANCE


@pytest.mark.parametrize("name", ["llama, tied", "qwen3", "mistral"])
def test_chunks_decode_and_batches(name: str, tmp_path: Path) -> None:
    """Chunked prefill, one token at a time, and several rows at once give what the whole sequence gives."""
    reference = tiny(name)
    model = load(save(reference, tmp_path))
    pool = Pool(model, 400)
    sequences = [random_tokens(40, seed) for seed in range(4)]
    rows = [Row() for _ in sequences]
    ours: list[list[torch.Tensor]] = [[] for _ in sequences]
    at = [0] * 4
    for lens in ([5, 1, 12, 20], [1, 1, 12, 1], [30, 8, 1, 1], [1, 20, 1, 1], [3, 10, 14, 17]):
        work = [(row, tokens[a : a + n]) for row, tokens, a, n in zip(rows, sequences, at, lens, strict=True)]
        for out, logits in zip(ours, pool.step(work), strict=True):
            out.append(logits)
        at = [a + n for a, n in zip(at, lens, strict=True)]
    assert at == [40] * 4
    for out, tokens in zip(ours, sequences, strict=True):
        assert max_difference(torch.cat(out), truth(reference, tokens)) < TOLERANCE


@pytest.mark.parametrize("name", ["llama, untied, llama3 rope", "mistral"])
def test_rows_over_a_shared_span(name: str, tmp_path: Path) -> None:
    reference = tiny(name)
    pool = Pool(load(save(reference, tmp_path)), 200)
    prefix = random_tokens(30)
    first = Row()
    pool.step([(first, prefix)])
    rows = [Row(list(first.slots)) for _ in range(3)]
    tails = [random_tokens(9, seed) for seed in (1, 2, 3)]
    out = [
        pool.step([(r, t[a:b]) for r, t in zip(rows, tails, strict=True)], shared=30)
        for a, b in ((0, 6), (6, 7), (7, 9))
    ]
    for index, tail in enumerate(tails):
        ours = torch.cat([logits[index] for logits in out])
        assert max_difference(ours, truth(reference, prefix + tail)[30:]) < TOLERANCE


@pytest.mark.parametrize("name", ["llama, tied", "qwen2"])
def test_bfloat16(name: str, tmp_path: Path) -> None:
    """In bfloat16 we are as near to the float32 truth as transformers in bfloat16 is (and not above twice as far)."""
    reference = tiny(name)
    model = load(save(reference, tmp_path), torch.bfloat16)
    assert model.dtype == torch.bfloat16
    tokens = random_tokens(60)
    theirs = truth(reference, tokens)
    rounded = truth(type(reference).from_pretrained(tmp_path, dtype=torch.bfloat16), tokens)
    ours = Pool(model, 100).logits(tokens)
    error, their_error = (ours - theirs).square().mean().sqrt(), (rounded - theirs).square().mean().sqrt()
    assert 0 < float(error) < 2 * float(their_error)


def test_dynamic_rope_is_refused(tmp_path: Path) -> None:
    path = save(
        tiny("llama, tied", rope_parameters={"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}), tmp_path
    )
    with pytest.raises(ModelError, match="dynamic"):
        load(path)


def test_other_dtypes_are_refused(tmp_path: Path) -> None:
    path = save(tiny("llama, tied"), tmp_path)
    with pytest.raises(ModelError, match="float16"):
        load(path, torch.float16)
