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
from radixrt.kernels.cpu.native.packed import NarrowLinear, Packed
from radixrt.models.packing import BITS, layer_name

if TYPE_CHECKING:
    from radixrt.models.blocks import Decoder

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
    most_logits: int
    description: str


def usable(model: Decoder, weights: Weights) -> bool:
    """Whether `model` (its tensors need not be filled) can take the compiled path on this machine.

    ModelError where a form of the weights is asked for that cannot be had without it.
    """
    reason = _obstacle(model)
    if reason is None:
        return True
    if weights in BITS or (weights == "bf16" and model.dtype != torch.bfloat16):
        raise ModelError(f"weights={weights} cannot be had here: {reason}")
    _log.info("the compiled decoder is not used: %s", reason)
    return False


def make(model: Decoder, packed: dict[str, Packed]) -> Narrow:
    """The compiled path: over what is packed, by the names of `packing.parts`, and the model's own tensors else.

    Products that are packed are so for every path: the layers' `Linear` get them in place of a dense weight.
    """
    layers = []
    for index, layer in enumerate(model.layers):
        products = {}
        for key, (linear, _) in layer.linears().items():
            form = packed.get(layer_name(index, key))
            products[key] = NarrowLinear(linear.weight if form is None else form, linear.bias)
            linear.packed = None if form is None else products[key]
        layers.append(NarrowLayer(layer.input_norm, layer.mlp_norm, layer.q_norm, layer.k_norm, **products))
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
    head = NarrowLinear(packed.get("head", model.head))
    bits = {linear.bits for layer in layers for linear in (layer.qkv, layer.output, layer.gate_up, layer.down)}
    return Narrow(
        decoder,
        head,
        most_tokens=HALF_TOKENS if 16 in bits else PACKED_TOKENS,
        most_logits=HALF_TOKENS if head.bits == 16 else PACKED_TOKENS,
        description=f"{'/'.join(map(str, sorted(bits)))}-bit weights, {head.bits}-bit head",
    )


def _obstacle(model: Decoder) -> str | None:
    config = model.config
    if model.device.type != "cpu":
        return "it is for CPUs"
    if model.group is not None:
        return "it is for one rank"
    if config.num_experts:
        return "it is for models without experts"
    if model.dtype != torch.bfloat16:
        return "it is for dtype bfloat16"
    if config.head_dim % 2 or config.head_dim > 256 or config.intermediate_size % 16:
        return "heads or the MLP have a width that it does not take"
    if not native.available():
        return "it needs a C++ compiler (g++ or clang++)"
    return None
