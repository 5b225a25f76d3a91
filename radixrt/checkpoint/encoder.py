"""What an encoder is, in numbers: `EncoderConfig`, made from config.json or from GGUF metadata.

An encoder reads a whole text at once, each token sees all others, and nothing is generated: it makes embeddings.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from radixrt.checkpoint.config_gguf import Fields as GgufFields
from radixrt.checkpoint.config_gguf import storage
from radixrt.checkpoint.config_hf import Fields, stored_dtype
from radixrt.checkpoint.gguf_file import GgufFile
from radixrt.checkpoint.pooling import EmbeddingFacts
from radixrt.checkpoint.safetensors_file import SafetensorsEntry
from radixrt.errors import ModelError

ENCODERS = ("bert",)
"""Architectures that embed and do not generate."""
Activation = Literal["gelu", "gelu_tanh", "relu"]
_ACTIVATIONS: dict[str, Activation] = {
    "gelu": "gelu", "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh", "relu": "relu",
}  # fmt: skip
_CLASSES = ("BertModel", "BertForMaskedLM", "BertForPreTraining")
"""Classes of transformers whose encoder is the whole, but for heads that are not used here."""


class EncoderConfig(msgspec.Struct, frozen=True, kw_only=True):
    """BERT (arXiv 1810.04805): learned positions, biases everywhere, a layer norm behind each half of a layer."""

    architecture: str
    """One of ENCODERS."""
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    vocab_size: int
    positions: int
    """Rows of the table of positions: no text can be longer."""
    context_length: int
    """Tokens of one text, those around it included; what the model was made for, at most `positions`."""
    token_types: int
    """Rows of the table of token types, of which the first is used; 0: there is none."""
    layer_norm_eps: float
    activation: Activation
    dtype: str
    """As in ModelConfig."""
    quantization: str | None

    def __post_init__(self) -> None:
        for name in ("hidden_size", "intermediate_size", "num_layers", "num_heads", "vocab_size", "positions",
                     "context_length", "layer_norm_eps"):  # fmt: skip
            if not getattr(self, name) > 0:
                raise ModelError(f"the model's configuration is broken: {name} is {getattr(self, name)}")
        if self.hidden_size % self.num_heads:
            raise ModelError(
                f"the model's configuration is broken: {self.hidden_size} columns are no {self.num_heads} equal heads"
            )


def encoder_from_hf(
    raw: dict[str, Any], tensors: Mapping[str, SafetensorsEntry], facts: EmbeddingFacts
) -> EncoderConfig:
    """From config.json. ModelError for what differs from a plain encoder, or keys that are missing or wrong."""
    fields = Fields(raw)
    classes = [name for name in raw.get("architectures") or [] if isinstance(name, str)]
    if classes and not set(classes) & set(_CLASSES):
        raise ModelError(f"{', '.join(classes)} is no encoder that makes embeddings; these are: {', '.join(_CLASSES)}")
    if fields.boolean("is_decoder", False) or fields.boolean("add_cross_attention", False):
        raise ModelError("BERT models that decode are not supported: encoders are")
    if (kind := raw.get("position_embedding_type") or "absolute") != "absolute":
        raise ModelError(f"position embeddings of type {kind!r} are not supported; absolute ones are")
    act = raw.get("hidden_act") or "gelu"
    if act not in _ACTIVATIONS:
        raise ModelError(f"the activation {act!r} is not supported; these are: {', '.join(_ACTIVATIONS)}")
    positions = fields.integer("max_position_embeddings", 512)
    return EncoderConfig(
        architecture="bert",
        hidden_size=fields.integer("hidden_size", 768),
        intermediate_size=fields.integer("intermediate_size", 3072),
        num_layers=fields.integer("num_hidden_layers", 12),
        num_heads=fields.integer("num_attention_heads", 12),
        vocab_size=fields.integer("vocab_size", 30522),
        positions=positions,
        context_length=min(positions, facts.max_tokens or positions),
        token_types=fields.integer("type_vocab_size", 2),
        layer_norm_eps=fields.number("layer_norm_eps", 1e-12),
        activation=_ACTIVATIONS[act],
        dtype=stored_dtype(raw, tensors),
        quantization=None,
    )


def encoder_from_gguf(file: GgufFile) -> EncoderConfig:
    """From GGUF metadata, with the keys that llama.cpp's converter writes for BERT. ModelError as above."""
    fields = GgufFields(file.metadata, "bert")
    shapes = {name: file.by_name[name].shape for name in ("token_embd.weight", "position_embd.weight") if
              name in file.by_name}  # fmt: skip
    if len(shapes) != 2 or any(len(shape) != 2 for shape in shapes.values()):
        raise ModelError(f"{file.path.name} holds no token_embd.weight and position_embd.weight: it is no whole BERT")
    if file.metadata.get("bert.attention.causal") is True:
        raise ModelError("BERT models that decode are not supported: encoders are")
    types = file.by_name.get("token_types.weight")
    positions = shapes["position_embd.weight"][0]
    dtype, quantization = storage(file)
    return EncoderConfig(
        architecture="bert",
        hidden_size=fields.number("embedding_length", int),
        intermediate_size=fields.number("feed_forward_length", int),
        num_layers=fields.number("block_count", int),
        num_heads=fields.number("attention.head_count", int),
        vocab_size=shapes["token_embd.weight"][0],
        positions=positions,
        context_length=min(positions, fields.number("context_length", int, positions)),
        token_types=0 if types is None else types.shape[0] if len(types.shape) == 2 else 1,
        layer_norm_eps=fields.number("attention.layer_norm_epsilon", float),
        activation="gelu",
        dtype=dtype,
        quantization=quantization,
    )
