"""Random weights in the shape of a configuration, made on the device: to measure speed where there are no weights."""

from __future__ import annotations

import torch

from radixrt.checkpoint import ModelConfig
from radixrt.models import narrow
from radixrt.models.blocks import Decoder, Layer
from radixrt.models.load import LAYERS, TRAITS
from radixrt.models.parallel import Group, split

SPREAD = 0.02
"""Standard deviation of the weights: what models are initialized with, so that activations stay finite."""


def dummy_model(
    config: ModelConfig,
    *,
    dtype: torch.dtype,
    device: torch.device | str = "cpu",
    seed: int = 0,
    spread: float = SPREAD,
    group: Group | None = None,
    compiled: bool = False,
) -> Decoder:
    """A model of `config` that says nothing of sense. The same seed gives the same model on devices of one kind; with
    `group` each rank makes its own part. `compiled`: with the compiled path, over bfloat16 matrices."""
    part = split(config, group.ranks)[group.rank] if group is not None else None
    with torch.inference_mode():
        model = Decoder(
            config if part is None else part.config(config),
            TRAITS[config.architecture](config),
            tied=bool(config.tie_word_embeddings),
            dtype=dtype,
            device=torch.device(device),
            layer=LAYERS.get(config.architecture, Layer),
        )
        if compiled:
            model.store_bfloat16()
        generator = torch.Generator(model.device).manual_seed(seed + (part.rank if part is not None else 0))
        for name, view in model.parameters().items():
            if "norm" in name:
                view.fill_(1.0)
            else:
                view.normal_(std=spread, generator=generator)
        if part is not None and group is not None:
            model.join(part, group)
        if compiled:
            model.narrow = narrow.make(model, {})
    return model
