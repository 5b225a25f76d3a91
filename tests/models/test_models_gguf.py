"""GGUF files: every quantization against the gguf library's own, and whole models against transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Type
from models_steps import Pool, max_difference
from models_tiny import random_tokens, tiny, truth
from transformers import PreTrainedModel

from radixrt.checkpoint import open_checkpoint
from radixrt.errors import ModelError
from radixrt.models import load_model
from radixrt.models.blocks import Decoder

HIDDEN, INNER, HEADS, KV_HEADS, VOCAB = 256, 512, 4, 2, 300
WIDTH = HIDDEN // HEADS
Blocks = tuple[np.ndarray, Type]
"""Raw bytes of a tensor, or float32, and its type."""


def write(path: Path, tensors: dict[str, Blocks], numbers: dict[str, Any], architecture: str = "llama") -> Path:
    """A GGUF file without a tokenizer."""
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in numbers.items():
        add = writer.add_float32 if isinstance(value, float) else writer.add_uint32
        add(f"{architecture}.{key}", value)
    for name, (data, kind) in tensors.items():
        writer.add_tensor(name, data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def load(path: Path, dtype: torch.dtype = torch.float32) -> Decoder:
    model = load_model(open_checkpoint(path), dtype=dtype, weights="bf16" if dtype == torch.bfloat16 else "float32")
    assert isinstance(model, Decoder)
    return model


HALVES = {
    Type.Q2_K: (80, 82), Type.Q3_K: (108,), Type.Q4_K: (0, 2), Type.Q5_K: (0, 2), Type.Q6_K: (208,),
    Type.IQ4_NL: (0,), Type.IQ4_XS: (0,), Type.TQ1_0: (52,), Type.IQ3_S: (0,),
}  # fmt: skip
"""Where the blocks' float16 numbers are."""


def quantized(shape: tuple[int, ...], kind: Type, rng: np.random.Generator) -> np.ndarray:
    """Valid blocks of a random matrix; where the library cannot quantize, random bits with sane scales."""
    values = rng.standard_normal(shape).astype(np.float32)
    if kind == Type.F32:
        return values
    try:
        return gguf.quants.quantize(values, kind)
    except NotImplementedError:
        elements, size = gguf.GGML_QUANT_SIZES[kind]
        blocks = rng.integers(0, 256, (values.size // elements, size), dtype=np.uint8)
        scales = HALVES[kind]
        for at in scales:
            scale = rng.uniform(0.01, 0.1, len(blocks)).astype(np.float16)
            blocks[:, at : at + 2] = scale.view(np.uint8).reshape(-1, 2)
        return blocks.reshape(*shape[:-1], -1)


def llama_tensors(kind: Type) -> dict[str, Blocks]:
    rng = np.random.default_rng(0)
    matrices = {
        "token_embd": (VOCAB, HIDDEN),
        "blk.0.attn_q": (HIDDEN, HIDDEN),
        "blk.0.attn_k": (KV_HEADS * WIDTH, HIDDEN),
        "blk.0.attn_v": (KV_HEADS * WIDTH, HIDDEN),
        "blk.0.attn_output": (HIDDEN, HIDDEN),
        "blk.0.ffn_gate": (INNER, HIDDEN),
        "blk.0.ffn_up": (INNER, HIDDEN),
        "blk.0.ffn_down": (HIDDEN, INNER),
    }
    tensors: dict[str, Blocks] = {
        f"{name}.weight": (quantized(shape, kind, rng), kind) for name, shape in matrices.items()
    }
    for name in ("blk.0.attn_norm", "blk.0.ffn_norm", "output_norm"):
        tensors[f"{name}.weight"] = (rng.standard_normal(HIDDEN).astype(np.float32), Type.F32)
    return tensors


LLAMA: dict[str, Any] = {
    "context_length": 512, "embedding_length": HIDDEN, "block_count": 1, "feed_forward_length": INNER,
    "attention.head_count": HEADS, "attention.head_count_kv": KV_HEADS,
    "attention.layer_norm_rms_epsilon": 1e-5, "rope.freq_base": 10000.0,
}  # fmt: skip

PARTS = {
    "token_embd": "model.embed_tokens", "blk.0.attn_q": "model.layers.0.self_attn.q_proj",
    "blk.0.attn_k": "model.layers.0.self_attn.k_proj", "blk.0.attn_v": "model.layers.0.self_attn.v_proj",
    "blk.0.attn_output": "model.layers.0.self_attn.o_proj", "blk.0.ffn_gate": "model.layers.0.mlp.gate_proj",
    "blk.0.ffn_up": "model.layers.0.mlp.up_proj", "blk.0.ffn_down": "model.layers.0.mlp.down_proj",
    "blk.0.attn_norm": "model.layers.0.input_layernorm", "output_norm": "model.norm",
    "blk.0.ffn_norm": "model.layers.0.post_attention_layernorm",
}  # fmt: skip


@pytest.mark.parametrize(
    "kind",
    [
        Type.F32,
        Type.F16,
        Type.BF16,
        Type.Q4_0,
        Type.Q4_1,
        Type.Q5_0,
        Type.Q5_1,
        Type.Q8_0,
        Type.Q2_K,
        Type.Q3_K,
        Type.Q4_K,
        Type.Q5_K,
        Type.Q6_K,
        Type.IQ4_NL,
        Type.IQ4_XS,
        Type.TQ1_0,
        Type.IQ3_S,
    ],
    ids=lambda kind: kind.name,
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def test_every_format_loads_as_the_library_reads_it(kind: Type, dtype: torch.dtype, tmp_path: Path) -> None:
    tensors = llama_tensors(kind)
    loaded = load(write(tmp_path / "model.gguf", tensors, LLAMA), dtype).parameters()
    assert set(loaded) == {f"{name}.weight" for name in PARTS.values()}
    for name, (data, stored) in tensors.items():
        values = gguf.quants.dequantize(data, stored)
        assert np.isfinite(values).all() and values.std() > 0
        if name.startswith(("blk.0.attn_q", "blk.0.attn_k")):
            # Element 2j of a head in the file is element j, element 2j + 1 is element j + WIDTH / 2.
            heads = values.reshape(-1, WIDTH, HIDDEN)
            values = np.concatenate([heads[:, 0::2], heads[:, 1::2]], axis=1).reshape(values.shape)
        ours = loaded[f"{PARTS[name.removesuffix('.weight')]}.weight"]
        torch.testing.assert_close(ours, torch.from_numpy(values.copy()).to(dtype), rtol=1e-6, atol=1e-7)


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    tensors = llama_tensors(Type.F32)
    del tensors["blk.0.ffn_up.weight"]
    with pytest.raises(ModelError, match=r"layers\.0\.mlp\.up_proj\.weight"):
        load(write(tmp_path / "model.gguf", tensors, LLAMA))


def test_an_extra_tensor_is_named_in_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    tensors = llama_tensors(Type.F32)
    load(write(tmp_path / "one.gguf", tensors, LLAMA))
    assert not caplog.records
    tensors["blk.0.ffn_strange.weight"] = (np.ones(32, np.float32), Type.F32)
    load(write(tmp_path / "two.gguf", tensors, LLAMA))
    assert "blk.0.ffn_strange.weight" in caplog.text


def test_a_wrong_shape_is_told_with_both_shapes(tmp_path: Path) -> None:
    tensors = llama_tensors(Type.F32)
    tensors["blk.0.ffn_up.weight"] = (np.zeros((INNER + 1, HIDDEN), np.float32), Type.F32)
    with pytest.raises(ModelError, match=r"\[513, 256\].*\[512, 256\]"):
        load(write(tmp_path / "model.gguf", tensors, LLAMA))


def test_a_format_that_is_not_supported_is_named(tmp_path: Path) -> None:
    tensors = llama_tensors(Type.F32)
    tensors["blk.0.ffn_up.weight"] = (np.zeros((INNER, HIDDEN), np.int8), Type.I8)
    with pytest.raises(ModelError, match=r"blk\.0\.ffn_up\.weight.*I8"):
        load(write(tmp_path / "model.gguf", tensors, LLAMA))


def interleave(weight: np.ndarray, heads: int) -> np.ndarray:
    """The order that llama.cpp's convert_hf_to_gguf.py gives the rows of q and k (LlamaModel.permute)."""
    split = weight.reshape(heads, 2, weight.shape[0] // heads // 2, *weight.shape[1:])
    return split.swapaxes(1, 2).reshape(weight.shape)


def converted(model: PreTrainedModel, path: Path, **numbers: Any) -> Path:
    """The transformers model as a float32 GGUF file, as llama.cpp's converter writes it."""
    config = model.config
    architecture = "llama" if config.model_type == "mistral" else config.model_type
    names = gguf.get_tensor_name_map(
        {"llama": gguf.MODEL_ARCH.LLAMA, "qwen2": gguf.MODEL_ARCH.QWEN2, "qwen3": gguf.MODEL_ARCH.QWEN3}[architecture],
        config.num_hidden_layers,
    )
    tensors: dict[str, Blocks] = {}
    for name, parameter in model.named_parameters():
        stem, _, suffix = name.rpartition(".")
        values = parameter.detach().numpy()
        if architecture == "llama" and ".q_proj" in name:
            values = interleave(values, config.num_attention_heads)
        elif architecture == "llama" and ".k_proj" in name:
            values = interleave(values, config.num_key_value_heads)
        tensors[f"{names.get_name(stem)}.{suffix}"] = (np.ascontiguousarray(values), Type.F32)
    numbers = {
        "context_length": 512, "embedding_length": config.hidden_size, "block_count": config.num_hidden_layers,
        "feed_forward_length": config.intermediate_size, "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads, "attention.key_length": config.head_dim
        if getattr(config, "head_dim", None) else config.hidden_size // config.num_attention_heads,
        "attention.layer_norm_rms_epsilon": config.rms_norm_eps, "rope.freq_base": 10000.0, **numbers,
    }  # fmt: skip
    numbers["attention.value_length"] = numbers["attention.key_length"]
    return write(path, tensors, numbers, architecture)


@pytest.mark.parametrize(
    ("name", "numbers"),
    [
        ("llama, tied", {}),
        ("llama, biases", {}),
        ("qwen2", {}),
        ("qwen3", {}),
        ("mistral", {"attention.sliding_window": 7}),
    ],
)
def test_logits_of_converted_models(name: str, numbers: dict[str, Any], tmp_path: Path) -> None:
    reference = tiny(name)
    model = load(converted(reference, tmp_path / "model.gguf", **numbers))
    tokens = random_tokens(60)
    assert max_difference(Pool(model, 80).logits(tokens), truth(reference, tokens)) < 1e-4


def test_llama3_rope_factors(tmp_path: Path) -> None:
    """llama.cpp's converter writes the llama3 scaling as a tensor of divisors."""
    reference = tiny("llama, untied, llama3 rope")
    plain = tiny("llama, tied").model.rotary_emb.inv_freq
    factors = (plain / reference.model.rotary_emb.inv_freq).numpy()
    assert factors.max() == 8 and factors.min() == 1
    path = converted(reference, tmp_path / "plain.gguf")
    writer_tensors = {
        t.name: (np.array(t.data), t.tensor_type) for t in gguf.GGUFReader(path).tensors
    } | {"rope_freqs.weight": (factors, Type.F32)}  # fmt: skip
    numbers = {
        key.removeprefix("llama."): field.contents()
        for key, field in gguf.GGUFReader(path).fields.items()
        if key.startswith("llama.")
    }
    model = load(write(tmp_path / "scaled.gguf", writer_tensors, numbers))
    tokens = random_tokens(150)
    theirs = truth(reference, tokens)
    assert max_difference(Pool(model, 200).logits(tokens), theirs) < 1e-4
    assert max_difference(Pool(load(path), 200).logits(tokens), theirs) > 1e-2
