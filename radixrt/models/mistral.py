"""Mistral (arXiv 2310.06825): Llama whose tokens read a window of the latest positions."""

from __future__ import annotations

from radixrt.checkpoint import ModelConfig
from radixrt.models.blocks import Traits


def traits(config: ModelConfig) -> Traits:
    return Traits(sliding_window=config.sliding_window)
