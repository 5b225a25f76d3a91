"""What a model is, in numbers: `ModelConfig`, made from config.json or from GGUF metadata."""

from __future__ import annotations

from typing import Literal

import msgspec

from radixrt.errors import ModelError

ARCHITECTURES = ("llama", "qwen2", "qwen3", "mistral", "qwen3_moe")
"""What the models room runs."""

RopeKind = Literal["default", "linear", "dynamic", "llama3", "yarn"]


class RopeScaling(msgspec.Struct, frozen=True, kw_only=True):
    """How rotary frequencies are stretched to a longer context. Names are those of transformers' rope_parameters.

    Sources: linear and dynamic: transformers' modeling_rope_utils; llama3: the Llama 3.1 release; yarn: arXiv
    2309.00071. Numbers that a kind does not use keep their defaults.
    """

    kind: RopeKind = "default"
    factor: float = 1.0
    original_context_length: int | None = None
    """Positions that the model was trained on before the stretch; always set for llama3 and yarn."""
    low_freq_factor: float = 1.0
    """llama3: wavelengths above original / low_freq_factor are divided by factor."""
    high_freq_factor: float = 4.0
    """llama3: wavelengths below original / high_freq_factor stay; between the two it is interpolated."""
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None
    """yarn: factor on cos and sin; None: from mscale and mscale_all_dim, else 0.1 ln(factor) + 1."""
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True
    """yarn: round the bounds of the ramp to whole dimensions."""


class ModelConfig(msgspec.Struct, frozen=True, kw_only=True):
    """A decoder-only transformer with RMS norm, rotary positions, grouped-query attention and a SiLU-gated MLP."""

    architecture: str
    """One of ARCHITECTURES."""
    hidden_size: int
    intermediate_size: int
    """Width of the MLP, or of each expert."""
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    """Rows of the embedding and width of the logits; may be above the tokenizer's size."""
    context_length: int
    """Tokens of prompt and output together."""
    rms_norm_eps: float
    rope_theta: float
    rope_scaling: RopeScaling
    rope_factors_tensor: str | None = None
    """GGUF only: name of a float32[head_dim / 2] tensor that each inverse frequency is divided by. llama.cpp's
    converter writes the llama3 scaling this way, with `rope_scaling.kind` default."""
    tie_word_embeddings: bool | None
    """The output head is the embedding; None when the weights must say."""
    generates: bool = True
    """False: it has no output head, and only embeds."""
    attention_bias: bool
    """Query, key and value projections have a bias (for llama with config.json the output projection too)."""
    mlp_bias: bool = False
    qk_norm: bool
    """RMS norm over each head of queries and keys before rotation (Qwen3)."""
    sliding_window: int | None
    """Every layer attends to this many latest positions only; None: to all."""
    dtype: str
    """Type most weights are stored in, as torch names it (float32, float16, bfloat16); float32 when quantized."""
    num_experts: int = 0
    """0: every layer has one MLP."""
    experts_per_token: int = 0
    normalize_experts: bool = True
    """The weights of a token's experts sum to 1."""
    quantization: str | None
    """ggml type most weights are stored in (for example Q4_1); None: not quantized."""

    def __post_init__(self) -> None:
        if self.architecture not in ARCHITECTURES:
            raise unsupported_architecture(self.architecture)
        sizes = ("hidden_size", "intermediate_size", "num_layers", "num_heads", "num_kv_heads", "head_dim",
                 "vocab_size", "context_length", "rope_theta", "rms_norm_eps")  # fmt: skip
        for name in sizes:
            if not getattr(self, name) > 0:
                raise ModelError(f"the model's configuration is broken: {name} is {getattr(self, name)}")
        if (
            self.num_experts < 0
            or not 0 <= self.experts_per_token <= self.num_experts
            or (self.num_experts > 0 and not self.experts_per_token)
        ):
            raise ModelError(
                f"the model's configuration is broken: {self.experts_per_token} of {self.num_experts} experts a token"
            )
        if self.num_heads % self.num_kv_heads:
            raise ModelError(
                f"the model's configuration is broken: {self.num_heads} heads do not share {self.num_kv_heads} "
                "key-value heads evenly"
            )
        if self.head_dim % 2:
            raise ModelError(f"the model's configuration is broken: head_dim {self.head_dim} is odd")
        if self.sliding_window is not None and self.sliding_window <= 0:
            raise ModelError(f"the model's configuration is broken: sliding_window is {self.sliding_window}")


def unsupported_architecture(name: object) -> ModelError:
    return ModelError(
        f"models of architecture {name!r} are not supported; these are: {', '.join(ARCHITECTURES)}, and for "
        "embeddings alone bert"
    )
