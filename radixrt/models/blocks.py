"""The decoder that Llama, Qwen2, Qwen3 and Mistral share; their files say in what they differ."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F

from radixrt import kernels
from radixrt.checkpoint import ModelConfig
from radixrt.kernels import AttentionLayout, Kernels
from radixrt.kernels.cpu.native.packed import NarrowLinear
from radixrt.models.narrow import Narrow
from radixrt.models.parallel import Group, Part, embed_part
from radixrt.models.rope import Rotary
from radixrt.models.torch_packed import TorchPackedLinear


@dataclass(frozen=True)
class Traits:
    """In what architectures of this family differ."""

    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    """RMS norm over each head of queries and keys, before they are rotated."""
    sliding_window: int | None = None
    """A token reads this many latest positions, itself included."""


class Linear:
    """x [.., in] -> [.., out]. Several projections of one input may lie in it, one below the other."""

    def __init__(self, inputs: int, outputs: int, bias: bool, dtype: torch.dtype, device: torch.device) -> None:
        self.weight = torch.empty(outputs, inputs, dtype=dtype, device=device)
        self.bias = torch.empty(outputs, dtype=dtype, device=device) if bias else None
        self.packed: NarrowLinear | TorchPackedLinear | None = None
        """The weight in packed form, bias included, where it is; `weight` then has its shape alone (device meta)."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if self.packed is not None:
            return self.packed(x).to(x.dtype)
        return F.linear(x, self.weight, self.bias)

    def parts(self, names: dict[str, int]) -> dict[str, torch.Tensor]:
        """Views to load into: `names` gives the projections, in order, and how many outputs each has."""
        views: dict[str, torch.Tensor] = {}
        at = 0
        for name, outputs in names.items():
            views[f"{name}.weight"] = self.weight[at : at + outputs]
            if self.bias is not None:
                views[f"{name}.bias"] = self.bias[at : at + outputs]
            at += outputs
        return views


class Layer:
    """The weights of one layer, and its attention and MLP."""

    def __init__(self, config: ModelConfig, traits: Traits, dtype: torch.dtype, device: torch.device) -> None:
        self.heads, self.kv_heads, self.width = config.num_heads, config.num_kv_heads, config.head_dim
        self.window, self.eps, self.kernels = traits.sliding_window, config.rms_norm_eps, kernels.select(device)
        hidden = config.hidden_size
        self.input_norm = torch.empty(hidden, dtype=dtype, device=device)
        self.mlp_norm = torch.empty(hidden, dtype=dtype, device=device)
        self.q_norm = torch.empty(self.width, dtype=dtype, device=device) if traits.qk_norm else None
        self.k_norm = torch.empty(self.width, dtype=dtype, device=device) if traits.qk_norm else None
        projected = (self.heads + 2 * self.kv_heads) * self.width
        self.qkv = Linear(hidden, projected, traits.qkv_bias, dtype, device)
        self.output = Linear(self.heads * self.width, hidden, traits.output_bias, dtype, device)
        self.make_mlp(config, traits, dtype, device)
        self.group: Group | None = None
        """The ranks that hold the other heads and columns."""

    def make_mlp(self, config: ModelConfig, traits: Traits, dtype: torch.dtype, device: torch.device) -> None:
        hidden, inner = config.hidden_size, config.intermediate_size
        self.gate_up = Linear(hidden, 2 * inner, traits.mlp_bias, dtype, device)
        self.down = Linear(inner, hidden, traits.mlp_bias, dtype, device)

    def parameters(self) -> dict[str, torch.Tensor]:
        """Views to load into, by the names that transformers gives them within a layer."""
        query, key = self.heads * self.width, self.kv_heads * self.width
        views = {"input_layernorm.weight": self.input_norm, "post_attention_layernorm.weight": self.mlp_norm}
        views |= self.qkv.parts({"self_attn.q_proj": query, "self_attn.k_proj": key, "self_attn.v_proj": key})
        views |= self.output.parts({"self_attn.o_proj": len(self.input_norm)})
        views |= self.mlp_parameters()
        if self.q_norm is not None and self.k_norm is not None:
            views |= {"self_attn.q_norm.weight": self.q_norm, "self_attn.k_norm.weight": self.k_norm}
        return views

    def mlp_parameters(self) -> dict[str, torch.Tensor]:
        hidden, inner = self.down.weight.shape
        views = self.gate_up.parts({"mlp.gate_proj": inner, "mlp.up_proj": inner})
        return views | self.down.parts({"mlp.down_proj": hidden})

    def linears(self) -> dict[str, tuple[Linear, list[str]]]:
        """Each product of the layer, and the projections that lie in it, by transformers' names within a layer."""
        return self.attention_linears() | {
            "gate_up": (self.gate_up, ["mlp.gate_proj", "mlp.up_proj"]),
            "down": (self.down, ["mlp.down_proj"]),
        }

    def attention_linears(self) -> dict[str, tuple[Linear, list[str]]]:
        return {
            "qkv": (self.qkv, ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"]),
            "output": (self.output, ["self_attn.o_proj"]),
        }

    def attention(
        self,
        x: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
        slots: torch.Tensor,
        kv: torch.Tensor,
        layout: AttentionLayout,
    ) -> torch.Tensor:
        """x [T, hidden], normed -> [T, hidden]; kv [2, kv_heads, slots, head_dim] of this layer is written."""
        ops, heads = self.kernels, self.heads
        qkv = self.qkv(x).view(len(x), -1, self.width)
        fused = getattr(ops, "rope_write", None)
        if fused is not None:
            q, k, v = fused(
                qkv, cos, sin, kv[0], kv[1], slots, q_norm=self.q_norm, k_norm=self.k_norm, eps=self.eps
            )  # fmt: skip
        else:
            qk, v = qkv[:, : heads + self.kv_heads], qkv[:, heads + self.kv_heads :]
            if self.q_norm is not None and self.k_norm is not None:
                q = ops.rms_norm(qk[:, :heads], self.q_norm, self.eps)
                qk = torch.cat([q, ops.rms_norm(qk[:, heads:], self.k_norm, self.eps)], dim=1)
            qk = ops.rope(qk, cos, sin)
            q, k = qk[:, :heads], qk[:, heads:]
            ops.write_kv(k, v, kv[0], kv[1], slots)
        out = ops.tree_attention(q, k, v, kv[0], kv[1], layout, self.width**-0.5, self.window)
        out = self.output(out.view(len(x), -1))
        return out if self.group is None else self.group.sum(out)

    def mlp(self, x: torch.Tensor) -> torch.Tensor:
        """x [T, hidden], normed -> [T, hidden]."""
        out = self.down(self.kernels.silu_mul(self.gate_up(x)))
        return out if self.group is None else self.group.sum(out)


class Decoder:
    """Embedding, layers, final norm, head: a `CausalLM`. Weights are uninitialized until `load` fills them."""

    def __init__(
        self,
        config: ModelConfig,
        traits: Traits,
        *,
        tied: bool,
        dtype: torch.dtype,
        device: torch.device,
        rope_factors: torch.Tensor | None = None,
        layer: type[Layer] = Layer,
    ) -> None:
        """`tied`: the head is the embedding (one storage)."""
        self.config, self.dtype, self.device, self.kernels = config, dtype, device, kernels.select(device)
        """`dtype`: of activations, and of dense weights but for those that `store_bfloat16` has made bfloat16."""
        self.rotary = Rotary(config, device, rope_factors)
        self.embedding = torch.empty(config.vocab_size, config.hidden_size, dtype=dtype, device=device)
        self.head = self.embedding if tied else torch.empty_like(self.embedding)
        self.layers = [layer(config, traits, dtype, device) for _ in range(config.num_layers)]
        self.norm = torch.empty(config.hidden_size, dtype=dtype, device=device)
        self.narrow: Narrow | None = None
        """The compiled path, where `load` could make one; it gives the same within the tolerance of its weights."""
        self.packed_head: TorchPackedLinear | None = None
        """The head, where it is packed without the compiled path."""
        self.compiled_last = False
        self.part: Part | None = None
        self.group: Group | None = None

    def store_bfloat16(self) -> None:
        """Make all matrices bfloat16, whatever the activations are; called before anything is read into them."""
        tied = self.tied
        self.embedding = torch.empty_like(self.embedding, dtype=torch.bfloat16)
        self.head = self.embedding if tied else torch.empty_like(self.head, dtype=torch.bfloat16)
        for layer in self.layers:
            for linear, _ in layer.linears().values():
                linear.weight = torch.empty_like(linear.weight, dtype=torch.bfloat16)

    def use(self, ops: Kernels) -> None:
        """Compute with these operations from now on, and not by the compiled path."""
        self.narrow, self.kernels = None, ops
        for layer in self.layers:
            layer.kernels = ops

    @property
    def spent(self) -> dict[str, float]:
        """Seconds of the last `forward` by part, where it was one call of the compiled path; else nothing."""
        return self.narrow.decoder.spent if self.narrow is not None and self.compiled_last else {}

    def join(self, part: Part, group: Group) -> None:
        """From now on this model is `part` of one that `group` holds together; its config is `part.config(whole)`.

        `forward` gives every rank the whole hidden states; `logits` gives a rank those of its own tokens.
        """
        self.part, self.group = part, group
        for layer in self.layers:
            layer.group = group

    @property
    def tied(self) -> bool:
        return self.head is self.embedding

    def parameters(self) -> dict[str, torch.Tensor]:
        """Views to load into, by the names that transformers gives them; a tied head is not among them."""
        views = {"model.embed_tokens.weight": self.embedding, "model.norm.weight": self.norm}
        if not self.tied:
            views["lm_head.weight"] = self.head
        for index, layer in enumerate(self.layers):
            views |= {f"model.layers.{index}.{name}": view for name, view in layer.parameters().items()}
        return views

    def forward(
        self,
        tokens: torch.Tensor,
        positions: torch.Tensor,
        slots: torch.Tensor,
        kv: torch.Tensor,
        layout: AttentionLayout,
    ) -> torch.Tensor:
        """See `CausalLM.forward`."""
        if self._fits(tokens):
            return self._compiled(tokens, positions, slots, kv, layout, None)
        self.compiled_last = False
        ops, eps = self.kernels, self.config.rms_norm_eps
        cos, sin = self.rotary.tables(positions, self.dtype)
        if self.part is not None and self.group is not None:
            residual = embed_part(tokens, self.embedding, self.part, self.group)
        else:
            residual = self._embed(tokens)
        # Each addition to the residual is made together with the norm that follows it.
        next_norms = [*(layer.input_norm for layer in self.layers[1:]), self.norm]
        x = ops.rms_norm(residual, self.layers[0].input_norm, eps)
        for layer, layer_kv, next_norm in zip(self.layers, kv, next_norms, strict=True):
            x = layer.attention(x, cos, sin, slots, layer_kv, layout)
            x, residual = ops.add_rms_norm(x, residual, layer.mlp_norm, eps)
            x = layer.mlp(x)
            x, residual = ops.add_rms_norm(x, residual, next_norm, eps)
        return x

    def forward_of(
        self,
        tokens: torch.Tensor,
        positions: torch.Tensor,
        slots: torch.Tensor,
        kv: torch.Tensor,
        layout: AttentionLayout,
        wanted: torch.Tensor,
    ) -> torch.Tensor:
        """`forward`, of which only the hidden states of the tokens `wanted` (int64[K], rising) are read: [K, hidden].

        The compiled path spares the others what is behind the last layer's attention.
        """
        if self._fits(tokens):
            return self._compiled(tokens, positions, slots, kv, layout, wanted)
        return self.forward(tokens, positions, slots, kv, layout)[wanted]

    def _fits(self, tokens: torch.Tensor) -> bool:
        return self.narrow is not None and len(tokens) <= self.narrow.most_tokens

    def _embed(self, tokens: torch.Tensor) -> torch.Tensor:
        return F.embedding(tokens, self.embedding).to(self.dtype)

    def _compiled(
        self,
        tokens: torch.Tensor,
        positions: torch.Tensor,
        slots: torch.Tensor,
        kv: torch.Tensor,
        layout: AttentionLayout,
        wanted: torch.Tensor | None,
    ) -> torch.Tensor:
        if self.narrow is None:
            raise RuntimeError("there is no compiled path here")
        cos, sin = self.rotary.tables(positions, torch.float32)
        self.compiled_last = True
        return self.narrow.decoder(self._embed(tokens), cos, sin, slots, kv, layout, wanted)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """See `CausalLM.logits`."""
        if self.narrow is not None and len(hidden) <= self.narrow.most_logits:
            return self.narrow.head(hidden)
        if self.packed_head is not None:
            return self.packed_head(hidden)
        return F.linear(hidden, self.head).float()

    def chooses(self, lines: int) -> bool:
        """Whether `choose` can be had for so many lines."""
        return self.narrow is not None and lines <= self.narrow.most_logits

    def choose(
        self,
        hidden: torch.Tensor,
        allowed: int,
        mask_of: np.ndarray | None,
        masks: np.ndarray | None,
        whole: np.ndarray | None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The most likely tokens, int64[K], of hidden [K, hidden], and the logits of the lines `whole` alone: see
        `NarrowLinear.choose`."""
        if self.narrow is None:
            raise RuntimeError("only the compiled path chooses without logits")
        return self.narrow.head.choose(hidden, allowed, mask_of, masks, whole)
