"""Model architectures and their weights: `load_model(checkpoint, dtype=...)` gives a `CausalLM`."""

from __future__ import annotations

from radixrt.models.base import CausalLM
from radixrt.models.load import Progress, load_model

__all__ = ["CausalLM", "Progress", "load_model"]
