"""The compiled path of a decoder against transformers, and its weights against the files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Type
from models_steps import Pool, Row
from models_tiny import MODELS, random_tokens, save, tiny, truth
from test_models_gguf import HEADS, LLAMA, llama_tensors, write
from transformers import PreTrainedModel

from radixrt.checkpoint import open_checkpoint
from radixrt.config import Weights
from radixrt.errors import ModelError
from radixrt.kernels import AttentionLayout
from radixrt.kernels.cpu import native
from radixrt.kernels.cpu.native.packed import quantize
from radixrt.kernels.kv_lines import line_length
from radixrt.models import load_model
from radixrt.models.blocks import Decoder
from radixrt.models.gguf_weights import GgufWeights

pytestmark = pytest.mark.skipif(not native.available(), reason="there is no C++ compiler")

GROUPED = {"hidden_size": 96, "intermediate_size": 160, "head_dim": 32}
"""Widths that are multiples of 32, so that every product can be packed."""
# Relative norm of the logits' error, which these random layers make many times that of one product: bfloat16 rows bring
# 2^-9, 8-bit rows 0.6 %. A part that is wrong or left out gives about 1.
TOLERANCE = {"bf16": 0.03, "int8": 0.17, "int4": 0.17}


KV_TYPES = (torch.float32, torch.bfloat16, torch.float16, torch.int8)


def load(path: Path, weights: Weights, dtype: torch.dtype = torch.bfloat16) -> Decoder:
    model = load_model(open_checkpoint(path), dtype=dtype, weights=weights)
    assert isinstance(model, Decoder)
    return model


def make_exact(reference: PreTrainedModel, weights: Weights) -> PreTrainedModel:
    """Round the matrices to what the packed form can hold, so that only the rows' rounding is left to tolerate."""
    bits = {"int8": 8, "int4": 4}.get(weights)
    with torch.no_grad():
        for parameter in reference.parameters():
            exact = quantize(parameter, bits).dense() if bits and parameter.ndim == 2 else parameter
            parameter.copy_(exact.bfloat16())
    return reference


def relative(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    return float((ours - theirs).norm() / theirs.norm())


@pytest.mark.parametrize("name", [name for name in MODELS if "moe" not in name])
@pytest.mark.parametrize("weights", ["bf16", "int8", "int4"])
def test_every_architecture(name: str, weights: Weights, tmp_path: Path) -> None:
    reference = make_exact(tiny(name, **GROUPED), weights)
    model = load(save(reference, tmp_path), weights)
    assert model.narrow is not None
    tokens = random_tokens(14)
    expected = truth(reference, tokens)
    pool = Pool(model, 64)
    row = Row()
    chunks = [pool.step([(row, tokens[:9])])[0], *(pool.step([(row, [token])])[0] for token in tokens[9:])]
    assert relative(torch.cat(chunks), expected) < TOLERANCE[weights]


POOL_COST = {torch.float32: 0.0, torch.bfloat16: 0.0, torch.float16: 0.0, torch.int8: 0.03}
"""What a pool's rounding may add to the relative error. In bfloat16 its share is in the tolerance of the weights."""


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("pool_dtype", list(POOL_COST), ids=str)
def test_pools_and_hidden_states_of_every_type(pool_dtype: torch.dtype, dtype: torch.dtype, tmp_path: Path) -> None:
    """The type of the pool and that of embedded tokens, which hidden states come back in, are independent."""
    reference = make_exact(tiny("qwen3", **GROUPED), "bf16")
    model = load(save(reference, tmp_path), "bf16")
    assert model.narrow is not None
    config, count = model.config, 12
    line = line_length(pool_dtype, config.head_dim)
    kv = torch.zeros(config.num_layers, 2, config.num_kv_heads, 30, line, dtype=pool_dtype)
    tokens = random_tokens(count)
    with torch.inference_mode():
        hidden = []
        for first, end in ((0, 7), (7, 8), (8, 11), (11, 12)):
            layout = one_row(first, end)
            cos, sin = model.rotary.tables(torch.arange(first, end), torch.float32)
            embedded = model.embedding[torch.tensor(tokens[first:end])].to(dtype)
            slots = torch.from_numpy(layout.slots)
            hidden.append(model.narrow.decoder(embedded, cos, sin, slots, kv, layout))
            assert hidden[-1].dtype == dtype
        logits = torch.cat(hidden).float() @ model.head.float().T
        decoder = model.narrow.decoder
        with pytest.raises(TypeError, match="pool"):
            decoder(embedded, cos, sin, slots, kv.double(), layout)
        with pytest.raises(TypeError, match="embedded"):
            decoder(embedded.half(), cos, sin, slots, kv, layout)
        with pytest.raises(ValueError, match="slots"):
            decoder(embedded, cos, sin, slots, kv[..., :-2].contiguous(), layout)
    assert relative(logits, truth(reference, tokens)) < TOLERANCE["bf16"] + POOL_COST[pool_dtype]


def one_row(first: int, end: int) -> AttentionLayout:
    """Tokens first .. end of a row that has the slots of the same numbers."""
    places = np.arange(end)
    return AttentionLayout(
        new_lens=np.array([end - first]),
        slots=places[first:],
        positions=places[first:],
        private_lens=np.array([first]),
        private_slots=places[:first],
        spans=np.zeros((0, 4), dtype=np.int32),
        span_slots=np.zeros(0, dtype=np.int32),
    )


def test_odd_widths_stay_bfloat16(tmp_path: Path) -> None:
    """48 inputs do not divide into groups of 32: those products stay as they are, the others are packed."""
    reference = tiny("llama, biases", hidden_size=48, intermediate_size=96)
    model = load(save(reference, tmp_path), "int8")
    assert model.narrow is not None and "8/16-bit" in model.narrow.description
    tokens = random_tokens(9)
    assert relative(Pool(model, 32).logits(tokens), truth(reference, tokens)) < TOLERANCE["int8"]


def test_rows_over_a_shared_span(tmp_path: Path) -> None:
    reference = make_exact(tiny("llama, tied", **GROUPED), "int8")
    model = load(save(reference, tmp_path), "int8")
    pool = Pool(model, 300)
    stem, tails = random_tokens(80, seed=3), [random_tokens(3, seed=n) for n in range(11)]
    stem_row = Row()
    pool.step([(stem_row, stem)])
    logits = pool.step([(Row(list(stem_row.slots)), tail) for tail in tails], shared=len(stem))
    # All rows together: three tokens alone are too few for a norm of rounding errors to settle.
    expected = torch.cat([truth(reference, stem + tail)[len(stem) :] for tail in tails])
    assert relative(torch.cat(logits), expected) < TOLERANCE["int8"]


@pytest.mark.parametrize("weights", ["bf16", "int8", "int4"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_each_form_under_each_type_of_activations_and_pool(
    dtype: torch.dtype, weights: Weights, tmp_path: Path
) -> None:
    """Prefill, steps of one token, and one step wider than what bfloat16 weights leave to torch's products."""
    reference = make_exact(tiny("qwen3", **GROUPED), weights)
    model = load(save(reference, tmp_path), weights, dtype)
    assert model.narrow is not None and model.dtype == dtype
    tokens = random_tokens(30)
    expected = truth(reference, tokens)
    for kv in KV_TYPES:
        pool, row = Pool(model, 64, kv=kv), Row()
        chunks = [pool.step([(row, tokens[:9])])[0], *(pool.step([(row, [token])])[0] for token in tokens[9:12])]
        chunks += pool.step([(row, tokens[12:])])
        assert relative(torch.cat(chunks), expected) < TOLERANCE[weights]


@pytest.mark.parametrize("kv", KV_TYPES, ids=str)
def test_dense_float32_takes_each_pool(kv: torch.dtype, tmp_path: Path) -> None:
    reference = tiny("llama, biases")
    model = load(save(reference, tmp_path), "float32", torch.float32)
    tokens = random_tokens(12)
    pool, row = Pool(model, 64, kv=kv), Row()
    chunks = [pool.step([(row, tokens[:9])])[0], *(pool.step([(row, [token])])[0] for token in tokens[9:])]
    tolerance = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 2e-2, torch.int8: 3e-2}[kv]
    assert relative(torch.cat(chunks), truth(reference, tokens)) < tolerance


def test_dense_float32_is_asked_for_or_what_the_file_is(tmp_path: Path) -> None:
    path = save(tiny("llama, tied"), tmp_path)
    assert load(path, "auto", torch.float32).narrow is None
    with pytest.raises(ModelError, match="goes with dtype float32"):
        load(path, "float32", torch.bfloat16)


ROUNDED = (Type.Q4_K, Type.Q5_K)
"""Types whose groups' scales are rounded once more."""


@pytest.mark.parametrize("kind", [Type.Q4_0, Type.Q4_1, Type.Q5_0, Type.Q5_1, Type.Q8_0, *ROUNDED])
def test_groups_are_exactly_the_files(kind: Type, tmp_path: Path) -> None:
    """As integers a tensor is, number for number, what dequantizing gives, rows put back where they are reordered."""
    checkpoint = open_checkpoint(write(tmp_path / "model.gguf", llama_tensors(kind), LLAMA))
    assert checkpoint.gguf is not None
    source = GgufWeights(checkpoint.gguf, interleaved_heads={"q_proj": HEADS})
    for name in ("model.layers.0.self_attn.q_proj.weight", "model.layers.0.mlp.down_proj.weight"):
        dense = torch.empty(source.shapes[name])
        source.read(name, dense)
        rows = len(dense)
        assert source.group_bits(name) in (4, 8) and source.is_quantized(name)
        # 2^-12 of a scale times the largest integer: of what a group spans, not of a number in it.
        atol = 2**-12 * float(dense.abs().max()) * 2 if kind in ROUNDED else 1e-7
        torch.testing.assert_close(source.groups(name, 0, rows).dense(), dense, rtol=1e-6, atol=atol)
        some = source.groups(name, 3, rows - 5).dense()  # from the middle of a head to the middle of another
        torch.testing.assert_close(some, dense[3 : rows - 5], rtol=1e-6, atol=atol)
        part = torch.empty(rows - 8, dense.shape[1])
        source.read(name, part, 3)
        assert torch.equal(part, dense[3 : rows - 5])
    source.close()


@pytest.mark.parametrize(("weights", "count"), [("bf16", 16), ("int4", 151)])
@pytest.mark.parametrize("wanted", [[], [0], [2, 7, 15], [-1]], ids=str)
def test_some_tokens_alone_are_the_same(wanted: list[int], weights: Weights, count: int, tmp_path: Path) -> None:
    """What is left out after the last layer's attention changes neither the others' hidden states nor any key: no bit
    of them with integer products, which do not depend on the other rows; bfloat16 products may sum in another order
    for another number of rows."""

    def same(ours: torch.Tensor, theirs: torch.Tensor) -> bool:
        if weights == "int4" or not len(ours):
            return torch.equal(ours, theirs)
        return float((ours - theirs).abs().max()) <= 2**-6 * float(theirs.abs().max())

    model = load(save(tiny("llama, tied", **GROUPED), tmp_path), weights)
    assert model.narrow is not None and model.narrow.most_tokens >= count
    tokens, places = torch.tensor(random_tokens(count)), torch.arange(count)
    wanted = [token % count for token in wanted]
    layout = one_row(0, count)
    pools = [Pool(model, len(tokens)).kv for _ in range(2)]
    with torch.inference_mode():
        whole = model.forward(tokens, places, places, pools[0], layout)
        some = model.forward_of(tokens, places, places, pools[1], layout, torch.tensor(wanted, dtype=torch.int64))
        assert same(some, whole[wanted]) and torch.equal(*pools)
        for refused in ([3, 3], [4, 2], [-1], [count]):
            with pytest.raises(ValueError, match="rising"):
                model.forward_of(tokens, places, places, pools[1], layout, torch.tensor(refused))
        model.narrow = None
        plain = model.forward(tokens, places, places, pools[0], layout)
        some = model.forward_of(tokens, places, places, pools[1], layout, torch.tensor(wanted, dtype=torch.int64))
        assert torch.equal(some, plain[wanted])
