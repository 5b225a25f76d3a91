"""Qwen2 and Qwen2.5 (arXiv 2407.10671): biases on queries, keys and values, and on nothing else."""

from __future__ import annotations

from radixrt.checkpoint import ModelConfig
from radixrt.models.blocks import Traits


def traits(config: ModelConfig) -> Traits:
    return Traits(qkv_bias=True, sliding_window=config.sliding_window)
