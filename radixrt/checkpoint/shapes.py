"""Configurations of known models, as their config.json has them: enough to measure speed with random weights."""

from __future__ import annotations

from typing import Any

_COMMON: dict[str, Any] = {
    "head_dim": 128, "num_attention_heads": 32, "num_key_value_heads": 8, "hidden_size": 4096, "hidden_act": "silu",
    "attention_bias": False, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
}  # fmt: skip

SHAPES: dict[str, dict[str, Any]] = {
    "llama-3-8b": {
        **_COMMON, "architectures": ["LlamaForCausalLM"], "model_type": "llama", "intermediate_size": 14336,
        "num_hidden_layers": 32, "vocab_size": 128256, "max_position_embeddings": 8192, "rms_norm_eps": 1e-5,
        "rope_theta": 500000.0,
    },
    "qwen3-8b": {
        **_COMMON, "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "intermediate_size": 12288,
        "num_hidden_layers": 36, "vocab_size": 151936, "max_position_embeddings": 40960, "rms_norm_eps": 1e-6,
        "rope_theta": 1000000.0,
    },
    "qwen3-30b-a3b": {
        **_COMMON, "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "hidden_size": 2048,
        "num_key_value_heads": 4, "intermediate_size": 6144, "moe_intermediate_size": 768, "num_experts": 128,
        "num_experts_per_tok": 8, "norm_topk_prob": True, "num_hidden_layers": 48, "vocab_size": 151936,
        "max_position_embeddings": 40960, "rms_norm_eps": 1e-6, "rope_theta": 1000000.0,
    },
}  # fmt: skip
"""By short name. Sources: the config.json of Meta-Llama-3-8B, Qwen3-8B and Qwen3-30B-A3B."""
