"""The compiled path through a decoder: its weights as `--weights` asks for them, all layers in one call."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from radixrt.config import Weights
from radixrt.errors import ModelError
from radixrt.kernels.cpu import native
from radixrt.kernels.cpu.native.decoder import NarrowDecoder, NarrowLayer
from radixrt.kernels.cpu.native.packed import GROUP, Groups, NarrowLinear, quantize
from radixrt.models.weights import WeightSource

if TYPE_CHECKING:
    from radixrt.models.blocks import Decoder, Linear

_BITS = {"int8": 8, "int4": 4}
PACKED_TOKENS = 1 << 20
HALF_TOKENS = 16
"""Steps of more tokens go through torch's matrix products, which are faster there (figures in benchmarks/README.md)."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Narrow:
    """What `Decoder` runs steps of at most `most_tokens` with; `head` gives logits float32[K, vocab]."""

    decoder: NarrowDecoder
    head: NarrowLinear
    most_tokens: int
    description: str


def make(model: Decoder, source: WeightSource, weights: Weights) -> Narrow | None:
    """The compiled path for `model`, whose tensors are filled; None where it is not for this model or machine.

    auto: integers where the file holds integers, exactly its own where its blocks allow (Q4_0, Q4_1, Q8_0), 8 bits for
    its other block formats; else bfloat16. ModelError where a form is asked for that cannot be had.
    """
    reason = _obstacle(model)
    if reason is not None:
        if weights in _BITS or (weights == "bf16" and model.dtype != torch.bfloat16):
            raise ModelError(f"weights={weights} cannot be had here: {reason}")
        _log.info("the compiled decoder is not used: %s", reason)
        return None
    layers = []
    for index, layer in enumerate(model.layers):
        packed = {
            name: _pack(linear, [f"model.layers.{index}.{part}.weight" for part in parts], source, weights)
            for name, (linear, parts) in layer.linears().items()
        }
        layers.append(NarrowLayer(layer.input_norm, layer.mlp_norm, layer.q_norm, layer.k_norm, **packed))
    config = model.config
    decoder = NarrowDecoder(
        layers,
        model.norm,
        heads=config.num_heads,
        kv_heads=config.num_kv_heads,
        head_width=config.head_dim,
        eps=config.rms_norm_eps,
        window=model.layers[0].window,
    )
    groups = _groups(model.head, ["model.embed_tokens.weight" if model.tied else "lm_head.weight"], source, weights)
    head = NarrowLinear(model.head if groups is None else groups)
    bits = {linear.bits for layer in layers for linear in (layer.qkv, layer.output, layer.gate_up, layer.down)}
    description = f"{'/'.join(map(str, sorted(bits)))}-bit weights, {head.bits}-bit head"
    return Narrow(decoder, head, HALF_TOKENS if 16 in bits else PACKED_TOKENS, description)


def _obstacle(model: Decoder) -> str | None:
    config = model.config
    if model.device.type != "cpu":
        return "it is for CPUs"
    if model.group is not None:
        return "it is for one rank"
    if model.dtype != torch.bfloat16:
        return "it is for dtype bfloat16"
    if config.head_dim % 2 or config.head_dim > 256 or config.intermediate_size % 16:
        return "heads or the MLP have a width that it does not take"
    if not native.available():
        return "it needs a C++ compiler (g++ or clang++)"
    return None


def _pack(linear: Linear, names: list[str], source: WeightSource, weights: Weights) -> NarrowLinear:
    groups = _groups(linear.weight, names, source, weights)
    return NarrowLinear(linear.weight if groups is None else groups, linear.bias)


def _groups(weight: torch.Tensor, names: list[str], source: WeightSource, weights: Weights) -> Groups | None:
    """The weight as integers; None: bfloat16 as it is. `names`: the tensors that lie in it one below the other."""
    if weights == "bf16" or weight.shape[1] % GROUP:
        return None
    if weights in _BITS:
        return quantize(weight, _BITS[weights])
    if not all(source.is_quantized(name) for name in names):
        return None
    stored = [source.groups(name) for name in names]
    exact = [part for part in stored if part is not None]
    if len(exact) < len(names):
        return quantize(weight, 8)
    return Groups(
        max(part.bits for part in exact),
        torch.cat([part.q for part in exact]),
        torch.cat([part.scale for part in exact]),
        torch.cat([part.shift for part in exact]),
    )
