"""Llama (arXiv 2302.13971) and what follows its plan, SmolLM2 among them."""

from __future__ import annotations

from radixrt.checkpoint import ModelConfig
from radixrt.models.blocks import Traits


def traits(config: ModelConfig) -> Traits:
    return Traits(
        qkv_bias=config.attention_bias,
        output_bias=config.attention_bias,
        mlp_bias=config.mlp_bias,
        sliding_window=config.sliding_window,  # GGUF files call Mistral llama, too
    )
