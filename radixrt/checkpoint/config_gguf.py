"""`ModelConfig` from GGUF metadata. Keys: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, section llm."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

from radixrt.checkpoint.config import ARCHITECTURES, ModelConfig, RopeScaling, unsupported_architecture
from radixrt.checkpoint.gguf_file import GgufFile
from radixrt.errors import ModelError

_DTYPES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
_NO_DEFAULT = object()


def config_from_gguf(file: GgufFile) -> ModelConfig:
    """The config; ModelError for another architecture, a missing key, or a rope scaling that is not known."""
    architecture = file.metadata.get("general.architecture")
    # llama.cpp's converter files Mistral under llama: the two differ in nothing but the name.
    if architecture not in ARCHITECTURES:
        raise unsupported_architecture(architecture)
    fields = Fields(file.metadata, architecture)
    names = file.by_name
    embedding = names.get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2:
        raise ModelError(f"{file.path.name} holds no matrix token_embd.weight: it is not a whole language model")
    if fields.number("expert_count", int, 0):
        raise ModelError("mixture-of-experts models are not supported")
    heads = fields.number("attention.head_count", int)
    hidden = fields.number("embedding_length", int)
    head_dim = fields.number("attention.key_length", int, hidden // max(heads, 1))
    if fields.number("attention.value_length", int, head_dim) != head_dim:
        raise ModelError("models whose keys and values differ in length are not supported")
    if fields.number("rope.dimension_count", int, head_dim) != head_dim:
        raise ModelError("models that rotate only a part of each head are not supported")
    context = fields.number("context_length", int)
    dtype, quantization = storage(file)
    return ModelConfig(
        architecture=architecture,
        hidden_size=hidden,
        intermediate_size=fields.number("feed_forward_length", int),
        num_layers=fields.number("block_count", int),
        num_heads=heads,
        num_kv_heads=fields.number("attention.head_count_kv", int, heads),
        head_dim=head_dim,
        vocab_size=embedding.shape[0],
        context_length=context,
        rms_norm_eps=fields.number("attention.layer_norm_rms_epsilon", float),
        rope_theta=fields.number("rope.freq_base", float, 10000.0),
        rope_scaling=_rope_scaling(fields, context),
        rope_factors_tensor="rope_freqs.weight" if "rope_freqs.weight" in names else None,
        tie_word_embeddings="output.weight" not in names,
        attention_bias="blk.0.attn_q.bias" in names,
        mlp_bias="blk.0.ffn_gate.bias" in names,
        qk_norm="blk.0.attn_q_norm.weight" in names,
        sliding_window=fields.number("attention.sliding_window", int, 0) or None,
        dtype=dtype,
        quantization=quantization,
    )


class Fields:
    """Typed reads of the keys under the architecture's name."""

    def __init__(self, metadata: dict[str, Any], architecture: str) -> None:
        self.metadata = metadata
        self.architecture = architecture

    def number(self, key: str, kind: type, default: Any = _NO_DEFAULT) -> Any:
        name = f"{self.architecture}.{key}"
        value = self.metadata.get(name, default)
        if value is _NO_DEFAULT:
            raise ModelError(f"the GGUF file lacks the metadata key {name}: convert the model again")
        if isinstance(value, list):
            if len(set(value)) != 1:
                raise ModelError(f"models whose layers differ ({name}) are not supported")
            value = value[0]
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ModelError(f"the GGUF metadata key {name} holds {value!r} where a number belongs")
        return kind(value)


def _rope_scaling(fields: Fields, context: int) -> RopeScaling:
    name = f"{fields.architecture}.rope.scaling.type"
    kind = fields.metadata.get(name, "none")
    if kind == "none":
        return RopeScaling()
    if kind not in ("linear", "yarn"):
        raise ModelError(f"rope scaling {kind!r} is not supported; these are: linear, yarn")
    factor = fields.number("rope.scaling.factor", float)
    original = fields.number("rope.scaling.original_context_length", int, context)
    if kind == "linear":
        return RopeScaling(kind="linear", factor=factor, original_context_length=original)
    # llama.cpp multiplies its own 0.1 ln(factor) + 1 by this number.
    extra = fields.number("rope.scaling.attn_factor", float, 1.0)
    return RopeScaling(
        kind="yarn",
        factor=factor,
        original_context_length=original,
        attention_factor=extra * (0.1 * math.log(max(factor, 1.0)) + 1.0),
        beta_fast=fields.number("rope.scaling.yarn_beta_fast", float, 32.0),
        beta_slow=fields.number("rope.scaling.yarn_beta_slow", float, 1.0),
    )


def storage(file: GgufFile) -> tuple[str, str | None]:
    """(dtype, quantization) of the type that holds the most weights of matrices."""
    weights: Counter[str] = Counter()
    for tensor in file.tensors:
        if len(tensor.shape) >= 2:
            weights[tensor.type_name] += tensor.nbytes
    name = weights.most_common(1)[0][0]
    return (_DTYPES[name], None) if name in _DTYPES else ("float32", name)
