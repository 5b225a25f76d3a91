"""The one way in: a checkpoint becomes a model."""

from __future__ import annotations

from collections.abc import Callable

import torch

from radixrt.checkpoint import Checkpoint
from radixrt.models.base import CausalLM

Progress = Callable[[str, float], None]
"""Called with a stage ("weights") and the fraction of it that is done."""


def load_model(
    checkpoint: Checkpoint,
    *,
    dtype: torch.dtype,
    device: torch.device | str = "cpu",
    progress: Progress | None = None,
) -> CausalLM:
    """Read the checkpoint's weights into a model of its architecture.

    Raises ModelError where the architecture is unknown, or tensors are missing or misshapen.
    """
    raise NotImplementedError
