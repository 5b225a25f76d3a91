"""Qwen3 (arXiv 2505.09388): each head of queries and keys is normed, and there are no biases as a rule."""

from __future__ import annotations

from radixrt.checkpoint import ModelConfig
from radixrt.models.blocks import Traits


def traits(config: ModelConfig) -> Traits:
    return Traits(
        qkv_bias=config.attention_bias,
        output_bias=config.attention_bias,
        qk_norm=True,
        sliding_window=config.sliding_window,
    )
