"""`ModelConfig` from config.json, in the spelling of transformers 4 and of transformers 5 (`rope_parameters`).

Defaults of keys that a config.json leaves out are those of transformers' configuration classes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, cast, get_args

from radixrt.checkpoint.config import ARCHITECTURES, ModelConfig, RopeKind, RopeScaling, unsupported_architecture
from radixrt.checkpoint.safetensors_file import SafetensorsEntry
from radixrt.errors import ModelError

_DTYPES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}
_HEAD_DIM = {"qwen3": 128}
_HEADLESS = ("LlamaModel", "MistralModel", "Qwen2Model", "Qwen3Model")
"""Classes of transformers without an output head."""
_SLIDING_WINDOW = {"mistral": 4096}


def config_from_hf(raw: dict[str, Any], tensors: Mapping[str, SafetensorsEntry]) -> ModelConfig:
    """The config; ModelError for what radixrt does not run, or keys that are missing or of the wrong type.

    `tensors`: the headers of the weight files, which say the stored type and whether there is an output head.
    """
    architecture = raw.get("model_type")
    if architecture not in ARCHITECTURES:
        raise unsupported_architecture(architecture)
    _refuse_what_differs(raw)
    headless = _headless(raw, tensors)
    fields = Fields(raw)
    heads = fields.integer("num_attention_heads")
    hidden = fields.integer("hidden_size")
    layers = fields.integer("num_hidden_layers")
    head_dim = fields.integer("head_dim", _HEAD_DIM.get(architecture, hidden // max(heads, 1)))
    experts = architecture == "qwen3_moe"
    theta, scaling, context = _rope(raw, fields.integer("max_position_embeddings"))
    return ModelConfig(
        architecture=architecture,
        hidden_size=hidden,
        intermediate_size=fields.integer("moe_intermediate_size" if experts else "intermediate_size"),
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=fields.integer("num_key_value_heads", heads),
        head_dim=head_dim,
        vocab_size=fields.integer("vocab_size"),
        context_length=context,
        rms_norm_eps=fields.number("rms_norm_eps", 1e-6),
        rope_theta=theta,
        rope_scaling=scaling,
        tie_word_embeddings=headless or fields.boolean("tie_word_embeddings", False),
        generates=not headless,
        attention_bias=architecture == "qwen2" or fields.boolean("attention_bias", False),
        mlp_bias=fields.boolean("mlp_bias", False),
        qk_norm=architecture in ("qwen3", "qwen3_moe"),
        num_experts=fields.integer("num_experts", raw.get("num_local_experts")) if experts else 0,
        experts_per_token=fields.integer("num_experts_per_tok") if experts else 0,
        normalize_experts=fields.boolean("norm_topk_prob", False) if experts else True,
        sliding_window=_sliding_window(raw, fields, architecture, layers, context),
        dtype=stored_dtype(raw, tensors),
        quantization=None,
    )


class Fields:
    """Typed reads; a null counts as absent, as in transformers."""

    def __init__(self, raw: dict[str, Any]) -> None:
        self.raw = raw

    def _get(self, key: str, default: Any) -> Any:
        value = self.raw.get(key)
        if value is None:
            value = default
        if value is None:
            raise ModelError(f"config.json lacks {key}")
        return value

    def integer(self, key: str, default: int | None = None) -> int:
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, int):
            raise ModelError(f"config.json holds {value!r} as {key} where a whole number belongs")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ModelError(f"config.json holds {value!r} as {key} where a number belongs")
        return float(value)

    def boolean(self, key: str, default: bool) -> bool:
        value = self._get(key, default)
        if not isinstance(value, bool):
            raise ModelError(f"config.json holds {value!r} as {key} where true or false belongs")
        return value


def _headless(raw: dict[str, Any], tensors: Mapping[str, SafetensorsEntry]) -> bool:
    """The model was saved without an output head, as embedding models are: it cannot say what comes next."""
    classes = raw.get("architectures") or []
    return any(c in _HEADLESS for c in classes) and "lm_head.weight" not in tensors


def _refuse_what_differs(raw: dict[str, Any]) -> None:
    classes = raw.get("architectures") or []
    if classes and not any(isinstance(c, str) and c.endswith(("ForCausalLM", *_HEADLESS)) for c in classes):
        raise ModelError(f"{', '.join(map(str, classes))} is not a language model that generates text (…ForCausalLM)")
    if raw.get("quantization_config") or raw.get("compression_config"):
        method = (raw.get("quantization_config") or {}).get("quant_method", "an unknown method")
        raise ModelError(
            f"safetensors quantized with {method} are not supported: use the plain model, or a GGUF file of it"
        )
    if (act := raw.get("hidden_act") or raw.get("hidden_activation") or "silu") not in ("silu", "swish"):
        raise ModelError(f"the activation {act!r} is not supported; silu is")
    if raw.get("model_type") == "qwen3_moe":
        if raw.get("mlp_only_layers") or raw.get("decoder_sparse_step", 1) != 1:
            raise ModelError("mixture-of-experts models of which only some layers have experts are not supported")
    elif raw.get("num_experts") or raw.get("num_local_experts"):
        raise ModelError("mixture-of-experts models but qwen3_moe are not supported")


def _rope(raw: dict[str, Any], max_positions: int) -> tuple[float, RopeScaling, int]:
    """(theta, scaling, context length)."""
    parameters = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    if not isinstance(parameters, dict):
        raise ModelError("config.json holds rope parameters that are not an object")
    if any(isinstance(value, dict) for value in parameters.values()):
        raise ModelError("models whose layers rotate differently are not supported")
    fields = Fields({"rope_theta": raw.get("rope_theta")} | parameters)
    partial = parameters.get("partial_rotary_factor", raw.get("partial_rotary_factor"))
    if partial not in (None, 1, 1.0):
        raise ModelError("models that rotate only a part of each head are not supported")
    theta = fields.number("rope_theta", 10000.0)
    kind = parameters.get("rope_type") or parameters.get("type") or "default"
    if kind not in get_args(RopeKind):
        raise ModelError(f"rope scaling {kind!r} is not supported; these are: {', '.join(get_args(RopeKind))}")
    if kind == "default":
        return theta, RopeScaling(), max_positions
    given = raw.get("original_max_position_embeddings") or parameters.get("original_max_position_embeddings")
    original = Fields({"original_max_position_embeddings": given}).integer(
        "original_max_position_embeddings", max_positions
    )
    if kind == "dynamic":
        # transformers grows the base beyond max_position_embeddings, whatever else is given.
        original = max_positions
    factor = fields.number("factor", max_positions / original if kind == "yarn" else None)
    # Qwen's instructions add yarn without raising max_position_embeddings; what it reaches is meant.
    context = max(max_positions, int(original * factor)) if kind == "yarn" and given else max_positions
    return theta, _scaling(cast(RopeKind, kind), factor, original, fields), context


def _scaling(kind: RopeKind, factor: float, original: int, fields: Fields) -> RopeScaling:
    if kind == "llama3":
        return RopeScaling(
            kind=kind,
            factor=factor,
            original_context_length=original,
            low_freq_factor=fields.number("low_freq_factor"),
            high_freq_factor=fields.number("high_freq_factor"),
        )
    if kind == "yarn":
        optional = {
            key: fields.number(key) for key in ("attention_factor", "mscale", "mscale_all_dim") if fields.raw.get(key)
        }
        return RopeScaling(
            kind=kind,
            factor=factor,
            original_context_length=original,
            beta_fast=fields.number("beta_fast", 32.0),
            beta_slow=fields.number("beta_slow", 1.0),
            truncate=fields.boolean("truncate", True),
            **optional,
        )
    return RopeScaling(kind=kind, factor=factor, original_context_length=original)


def _sliding_window(raw: dict[str, Any], fields: Fields, architecture: str, layers: int, context: int) -> int | None:
    """The window where every layer has it; ModelError where only some have, and it is shorter than the context."""
    if architecture == "llama" or (architecture != "mistral" and not fields.boolean("use_sliding_window", False)):
        return None
    window = raw.get("sliding_window", _SLIDING_WINDOW.get(architecture))
    if window is None:
        return None
    window = Fields({"sliding_window": window}).integer("sliding_window")
    if window >= context:
        return None
    kinds = raw.get("layer_types")
    if kinds is None:
        full = 0 if architecture == "mistral" else min(fields.integer("max_window_layers", 28), layers)
        kinds = ["full_attention"] * full + ["sliding_attention"] * (layers - full)
    if set(kinds) == {"sliding_attention"}:
        return window
    if set(kinds) == {"full_attention"}:
        return None
    raise ModelError("models whose layers differ in their attention window are not supported")


def stored_dtype(raw: dict[str, Any], tensors: Mapping[str, SafetensorsEntry]) -> str:
    weights: Counter[str] = Counter()
    for entry in tensors.values():
        weights[entry.dtype] += entry.nbytes
    if not weights:
        return str(raw.get("dtype") or raw.get("torch_dtype") or "float32").removeprefix("torch.")
    name = weights.most_common(1)[0][0]
    if name not in _DTYPES:
        raise ModelError(f"weights stored as {name} are not supported; these are: {', '.join(_DTYPES)}")
    return _DTYPES[name]
