"""config.json in every spelling, against transformers' own configuration classes; GGUF metadata; refusals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from checkpoint_stand_ins import write_gguf

from radixrt.checkpoint import ModelConfig, RopeScaling, open_checkpoint
from radixrt.checkpoint.config_hf import config_from_hf
from radixrt.errors import ModelError

SMALL = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 64, "intermediate_size": 96,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 100,
    "max_position_embeddings": 256, "rms_norm_eps": 1e-5, "rope_theta": 50000.0,
}  # fmt: skip


def config(**changes: Any) -> ModelConfig:
    return config_from_hf({k: v for k, v in (SMALL | changes).items() if v != "absent"}, {})


LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 128,
}  # fmt: skip


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3", "mistral"])
@pytest.mark.parametrize("spelling", ["old", "new"])
def test_equals_transformers(architecture: str, spelling: str, tmp_path: Path) -> None:
    from transformers import AutoConfig

    given = SMALL | {"model_type": architecture, "architectures": None, "sliding_window": None}
    given["tie_word_embeddings"] = architecture != "llama"
    if architecture == "qwen3":
        given["head_dim"] = 32
    (tmp_path / "config.json").write_text(json.dumps(given | {"rope_scaling": LLAMA3}))
    theirs = AutoConfig.from_pretrained(tmp_path)
    if spelling == "new":
        theirs.save_pretrained(tmp_path)
    raw = json.loads((tmp_path / "config.json").read_text())
    assert ("rope_parameters" in raw) == (spelling == "new")
    ours = config_from_hf(raw, {})
    rope = theirs.rope_parameters
    assert ours == ModelConfig(
        architecture=architecture,
        hidden_size=theirs.hidden_size,
        intermediate_size=theirs.intermediate_size,
        num_layers=theirs.num_hidden_layers,
        num_heads=theirs.num_attention_heads,
        num_kv_heads=theirs.num_key_value_heads,
        head_dim=getattr(theirs, "head_dim", None) or theirs.hidden_size // theirs.num_attention_heads,
        vocab_size=theirs.vocab_size,
        context_length=theirs.max_position_embeddings,
        rms_norm_eps=theirs.rms_norm_eps,
        rope_theta=rope["rope_theta"],
        rope_scaling=RopeScaling(
            kind="llama3",
            factor=rope["factor"],
            original_context_length=rope["original_max_position_embeddings"],
            low_freq_factor=rope["low_freq_factor"],
            high_freq_factor=rope["high_freq_factor"],
        ),
        tie_word_embeddings=theirs.tie_word_embeddings,
        attention_bias=architecture == "qwen2",
        qk_norm=architecture == "qwen3",
        sliding_window=theirs.sliding_window if architecture != "llama" else None,
        dtype="float32",
        quantization=None,
    )


def test_rope_kinds() -> None:
    assert config().rope_scaling == RopeScaling()
    assert config(rope_scaling={"type": "linear", "factor": 2.0}).rope_scaling == RopeScaling(
        kind="linear", factor=2.0, original_context_length=256
    )
    assert config(rope_scaling={"type": "dynamic", "factor": 4.0}).rope_scaling == RopeScaling(
        kind="dynamic", factor=4.0, original_context_length=256
    )
    yarn = config(rope_scaling={"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256})
    assert yarn.rope_scaling == RopeScaling(kind="yarn", factor=4.0, original_context_length=256)
    assert yarn.context_length == 1024
    full = config(
        rope_scaling=None,
        rope_theta="absent",
        rope_parameters={
            "rope_type": "yarn", "rope_theta": 1e6, "factor": 2, "original_max_position_embeddings": 128,
            "beta_fast": 16, "beta_slow": 2, "mscale": 0.7, "mscale_all_dim": 0.9, "truncate": False,
        },
    )  # fmt: skip
    assert full.rope_theta == 1e6
    assert full.rope_scaling == RopeScaling(
        kind="yarn", factor=2.0, original_context_length=128, beta_fast=16.0, beta_slow=2.0, mscale=0.7,
        mscale_all_dim=0.9, truncate=False,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "gemma3_text"}, r"'gemma3_text' are not supported; these are: llama, qwen2, qwen3, mistral"),
        ({"model_type": "absent"}, r"None are not supported"),
        ({"architectures": ["LlamaForSequenceClassification"]}, r"not a language model that generates"),
        ({"rope_scaling": {"rope_type": "longrope", "factor": 2}}, r"rope scaling 'longrope' is not supported"),
        ({"rope_scaling": {"rope_type": "linear"}}, r"config\.json lacks factor"),
        ({"rope_parameters": {"full_attention": {"rope_type": "default"}}}, r"layers rotate differently"),
        ({"partial_rotary_factor": 0.5}, r"only a part of each head"),
        ({"quantization_config": {"quant_method": "gptq"}}, r"quantized with gptq are not supported"),
        ({"hidden_act": "gelu"}, r"activation 'gelu'"),
        ({"hidden_size": "absent"}, r"lacks hidden_size"),
        ({"hidden_size": "64"}, r"'64' as hidden_size where a whole number"),
        ({"num_hidden_layers": 0}, r"num_layers is 0"),
        ({"num_key_value_heads": 3}, r"do not share 3"),
        ({"head_dim": 15}, r"head_dim 15 is odd"),
        ({"num_attention_heads": 0}, r"num_heads is 0"),
        ({"num_local_experts": 8}, r"mixture-of-experts"),
    ],
)
def test_refusals(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        config(**changes)


def test_sliding_windows() -> None:
    assert config(model_type="mistral", sliding_window=64).sliding_window == 64
    assert config(model_type="mistral", sliding_window=None).sliding_window is None
    assert config(model_type="mistral", sliding_window=256).sliding_window is None
    assert config(model_type="mistral", max_position_embeddings=8192).sliding_window == 4096
    qwen = {"model_type": "qwen2", "sliding_window": 64, "max_window_layers": 0}
    assert config(**qwen).sliding_window is None
    assert config(**qwen, use_sliding_window=True).sliding_window == 64
    assert config(**(qwen | {"max_window_layers": 2}), use_sliding_window=True).sliding_window is None
    with pytest.raises(ModelError, match="differ in their attention window"):
        config(**(qwen | {"max_window_layers": 1}), use_sliding_window=True)
    with pytest.raises(ModelError, match="differ in their attention window"):
        config(**qwen, use_sliding_window=True, layer_types=["full_attention", "sliding_attention"])


def test_the_real_model(smollm2_path: Path) -> None:
    # https://huggingface.co/HuggingFaceTB/SmolLM2-135M-Instruct/blob/main/config.json
    checkpoint = open_checkpoint(smollm2_path)
    assert checkpoint.config == ModelConfig(
        architecture="llama", hidden_size=576, intermediate_size=1536, num_layers=30, num_heads=9, num_kv_heads=3,
        head_dim=64, vocab_size=49152, context_length=8192, rms_norm_eps=float(np.float32(1e-5)), rope_theta=100000.0,
        rope_scaling=RopeScaling(), tie_word_embeddings=True, attention_bias=False, qk_norm=False,
        sliding_window=None, dtype="float32", quantization="Q4_1",
    )  # fmt: skip
    assert checkpoint.format == "gguf" and checkpoint.gguf_path == smollm2_path
    assert checkpoint.eos_token_ids == (2,)
    assert checkpoint.chat_template is not None and checkpoint.chat_template.startswith("{% for message in messages %}")


def gguf_config(tmp_path: Path, arch: str = "llama", extra: Any = None) -> ModelConfig:
    return open_checkpoint(
        write_gguf(tmp_path / "m.gguf", tokens=["a", "b", "c"], types=[1, 1, 3], arch=arch, extra=extra)
    ).config


def test_gguf_metadata(tmp_path: Path) -> None:
    def fields(writer: gguf.GGUFWriter) -> None:
        writer.add_rope_freq_base(1e6)
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(4.0)
        writer.add_rope_scaling_orig_ctx_len(16)
        writer.add_key_length(4)
        writer.add_sliding_window(32)
        writer.add_tensor("output.weight", np.zeros((3, 8), np.float16))
        writer.add_tensor("rope_freqs.weight", np.ones(2, np.float32))
        writer.add_tensor("blk.0.attn_q.bias", np.zeros(8, np.float32))
        writer.add_tensor("blk.0.attn_q_norm.weight", np.zeros(4, np.float32))

    config = gguf_config(tmp_path, "qwen3", fields)
    assert config.architecture == "qwen3"
    assert (config.vocab_size, config.head_dim, config.num_heads, config.num_kv_heads) == (3, 4, 2, 1)
    assert config.rope_theta == 1e6
    scaling = config.rope_scaling
    assert (scaling.kind, scaling.factor, scaling.original_context_length) == ("yarn", 4.0, 16)
    assert scaling.attention_factor == pytest.approx(0.1 * np.log(4.0) + 1.0)
    assert config.rope_factors_tensor == "rope_freqs.weight"
    assert (config.tie_word_embeddings, config.attention_bias, config.qk_norm) == (False, True, True)
    assert config.sliding_window == 32
    assert (config.dtype, config.quantization) == ("float32", None)


def test_gguf_refusals(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="'gemma3' are not supported"):
        gguf_config(tmp_path, "gemma3")
    with pytest.raises(ModelError, match="rope scaling 'longrope' is not supported"):
        gguf_config(tmp_path, extra=lambda w: w.add_rope_scaling_type(gguf.RopeScalingType.LONGROPE))
    with pytest.raises(ModelError, match="mixture-of-experts"):
        gguf_config(tmp_path, extra=lambda w: w.add_expert_count(8))
    with pytest.raises(ModelError, match="only a part of each head"):
        gguf_config(tmp_path, extra=lambda w: w.add_rope_dimension_count(2))
