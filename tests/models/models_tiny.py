"""Tiny random models of each architecture, made by transformers, the independent truth."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

VOCAB = 131
SIZES: dict[str, Any] = {
    "vocab_size": VOCAB, "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 3,
    "num_attention_heads": 6, "num_key_value_heads": 2, "max_position_embeddings": 512,
    "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
}  # fmt: skip


def rope(kind: str, **numbers: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 10000.0, **numbers}}


LLAMA3 = rope("llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=64)

MODELS: dict[str, tuple[Callable[..., Any], Callable[..., Any], dict[str, Any]]] = {
    "llama, tied": (LlamaConfig, LlamaForCausalLM, {"tie_word_embeddings": True}),
    "llama, untied, llama3 rope": (LlamaConfig, LlamaForCausalLM, {"tie_word_embeddings": False, **LLAMA3}),
    "llama, biases": (LlamaConfig, LlamaForCausalLM, {"attention_bias": True, "mlp_bias": True}),
    "llama, linear rope": (LlamaConfig, LlamaForCausalLM, rope("linear", factor=4.0)),
    "llama, yarn rope": (
        LlamaConfig,
        LlamaForCausalLM,
        rope("yarn", factor=4.0, original_max_position_embeddings=128),
    ),
    "llama, one head for all": (LlamaConfig, LlamaForCausalLM, {"num_key_value_heads": 1}),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM, {"tie_word_embeddings": True}),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM, {"head_dim": 32, "tie_word_embeddings": True}),
    "qwen3_moe": (
        Qwen3MoeConfig,
        Qwen3MoeForCausalLM,
        {
            "head_dim": 16,
            "num_experts": 6,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 24,
            "norm_topk_prob": True,
        },
    ),
    "qwen3_moe, weights as they are": (
        Qwen3MoeConfig,
        Qwen3MoeForCausalLM,
        {
            "head_dim": 16,
            "num_experts": 5,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 24,
            "norm_topk_prob": False,
        },
    ),
    "mistral": (MistralConfig, MistralForCausalLM, {"sliding_window": 7}),
    "mistral, no window": (MistralConfig, MistralForCausalLM, {"sliding_window": None}),
}


def tiny(name: str, **changes: Any) -> PreTrainedModel:
    """The model with random weights, biases and norms included, in float32."""
    config_type, model_type, own = MODELS[name]
    torch.manual_seed(0)
    model = model_type(config_type(**(SIZES | own | changes), attn_implementation="eager")).eval()
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            parameter.normal_(mean=1.0 if "norm" in key else 0.0, std=0.25)
    return model


def save(model: PreTrainedModel, path: Path, **options: Any) -> Path:
    model.save_pretrained(path, **options)
    return path


def truth(model: PreTrainedModel, tokens: list[int]) -> torch.Tensor:
    """float32[n, vocab]"""
    with torch.no_grad():
        return model(torch.tensor([tokens]), use_cache=False).logits[0].float()


def random_tokens(count: int, seed: int = 0) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(3, VOCAB, (count,), generator=generator).tolist()
