"""The compiled path through a decoder: its weights as `--weights` asks for them, all layers in one call."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from radixrt.checkpoint import ModelConfig
from radixrt.kernels import instruction_sets
from radixrt.kernels.build import SWITCH
from radixrt.kernels.cpu import native
from radixrt.kernels.cpu.native.decoder import NarrowDecoder, NarrowLayer
from radixrt.kernels.cpu.native.packed import NarrowLinear, Packed
from radixrt.models.packing import layer_name

if TYPE_CHECKING:
    from radixrt.models.blocks import Decoder

PACKED_TOKENS = 1 << 20
HALF_TOKENS = 16
"""Steps of more tokens go through torch's matrix products where weights and activations are bfloat16 and the CPU
multiplies it: they are faster there (figures in benchmarks/README.md)."""


@dataclass(frozen=True)
class Obstacle:
    """Why the compiled decoder does not run a model."""

    reason: str
    """A sentence without its full stop."""
    advice: str = ""
    """What to do about it; empty where nothing can be done."""

    def __str__(self) -> str:
        return f"{self.reason}: {self.advice}" if self.advice else self.reason


@dataclass(frozen=True)
class Narrow:
    """What `Decoder` runs steps of at most `most_tokens` with; `head` gives logits float32[K, vocab]."""

    decoder: NarrowDecoder
    head: NarrowLinear
    most_tokens: int
    most_logits: int
    description: str
    """The form of the weights, in words."""


def obstacle(config: ModelConfig, device: torch.device, ranks: int = 1) -> Obstacle | None:
    """What keeps a model from the compiled path on this machine; None: nothing. The first call may compile kernels."""
    if device.type != "cpu":
        return Obstacle("the compiled decoder is for CPUs")
    if ranks > 1:
        return Obstacle("the compiled decoder is for one rank", "leave out --tp")
    if config.num_experts:
        return Obstacle("the compiled decoder has no experts, which this model has")
    if config.head_dim % 2 or config.head_dim > 256 or config.intermediate_size % 16:
        return Obstacle("heads or the MLP have a width that the compiled decoder does not take")
    if not native.available():
        if os.environ.get(SWITCH) == "0":
            return Obstacle(f"{SWITCH}=0 switches the compiled kernels off", "unset it")
        return Obstacle(
            "there are no compiled kernels here",
            "install a C++ compiler (g++ or clang++), or a wheel of radixrt that brings them",
        )
    return None


def make(model: Decoder, packed: dict[str, Packed], *, exact: bool = False) -> Narrow:
    """The compiled path: over what is packed, by the names of `packing.parts`, and the model's bfloat16 matrices else.

    Products that are packed are so for every path: the layers' `Linear` get them in place of a dense weight; those in
    bfloat16 as well, where activations are float32. `exact`: what is packed is what the files hold.
    """
    layers = []
    mixed = model.dtype != torch.bfloat16
    for index, layer in enumerate(model.layers):
        products = {}
        for key, (linear, _) in layer.linears().items():
            form = packed.get(layer_name(index, key))
            products[key] = NarrowLinear(linear.weight if form is None else form, linear.bias)
            linear.packed = None if form is None and not mixed else products[key]
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
    wide = not mixed and instruction_sets.current().bf16
    return Narrow(
        decoder,
        head,
        most_tokens=HALF_TOKENS if wide and 16 in bits else PACKED_TOKENS,
        most_logits=HALF_TOKENS if wide and head.bits == 16 else PACKED_TOKENS,
        description=_describe(bits, head.bits, exact),
    )


def _describe(bits: set[int], head: int, exact: bool) -> str:
    if bits == {16}:
        form = "bfloat16 weights"
    else:
        form = f"{'/'.join(map(str, sorted(bits)))}-bit weights{' as the file' if exact else ''}"
    return form if bits == {head} else f"{form}, {head}-bit head"
