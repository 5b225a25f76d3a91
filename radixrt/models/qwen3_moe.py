"""Qwen3-MoE (arXiv 2505.09388): Qwen3 whose MLP is a choice of experts, the k most likely for each token."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F

from radixrt.checkpoint import ModelConfig
from radixrt.kernels import Kernels
from radixrt.models.blocks import Layer, Linear, Traits


def traits(config: ModelConfig) -> Traits:
    return Traits(
        qkv_bias=config.attention_bias,
        output_bias=config.attention_bias,
        qk_norm=True,
        sliding_window=config.sliding_window,
    )


class MoeLayer(Layer):
    """A layer of E experts: router [E, hidden], gate_up [E, 2 * inner, hidden], down [E, hidden, inner]."""

    def make_mlp(self, config: ModelConfig, traits: Traits, dtype: torch.dtype, device: torch.device) -> None:
        hidden, inner, count = config.hidden_size, config.intermediate_size, config.num_experts
        self.k, self.normalize = config.experts_per_token, config.normalize_experts
        self.router = Linear(hidden, count, False, dtype, device)
        self.expert_gate_up = torch.empty(count, 2 * inner, hidden, dtype=dtype, device=device)
        self.expert_down = torch.empty(count, hidden, inner, dtype=dtype, device=device)

    def mlp_parameters(self) -> dict[str, torch.Tensor]:
        inner = self.expert_down.shape[2]
        views = {"mlp.gate.weight": self.router.weight}
        for expert, (gate_up, down) in enumerate(zip(self.expert_gate_up, self.expert_down, strict=True)):
            views |= {
                f"mlp.experts.{expert}.gate_proj.weight": gate_up[:inner],
                f"mlp.experts.{expert}.up_proj.weight": gate_up[inner:],
                f"mlp.experts.{expert}.down_proj.weight": down,
            }
        return views

    def linears(self) -> dict[str, tuple[Linear, list[str]]]:
        return self.attention_linears()

    def mlp(self, x: torch.Tensor) -> torch.Tensor:
        router = self.router(x)
        tuned: Callable[..., torch.Tensor] | None = getattr(self.kernels, "moe_mlp", None)
        if tuned is not None:
            out = tuned(x, router, self.expert_gate_up, self.expert_down, self.k, normalize=self.normalize)
        else:
            weights = (self.expert_gate_up, self.expert_down)
            out = moe_mlp(self.kernels, x, router, *weights, self.k, normalize=self.normalize)
        return out if self.group is None else self.group.sum(out)


def moe_mlp(
    ops: Kernels,
    x: torch.Tensor,
    router: torch.Tensor,
    gate_up: torch.Tensor,
    down: torch.Tensor,
    k: int,
    *,
    normalize: bool,
) -> torch.Tensor:
    """Plain torch, an expert at a time: x [T, hidden], router logits [T, E] -> [T, hidden], sums in float32.

    A token's experts are the k most likely of a softmax over all; with `normalize` their weights sum to 1.
    """
    weights, experts = torch.softmax(router.float(), -1).topk(k, dim=-1)
    if normalize:
        weights = weights / weights.sum(-1, keepdim=True)
    out = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
    for expert in set(experts.flatten().tolist()):
        tokens, place = (experts == expert).nonzero(as_tuple=True)
        inner = ops.silu_mul(F.linear(x[tokens], gate_up[expert]))
        out.index_add_(0, tokens, F.linear(inner, down[expert]).float() * weights[tokens, place, None])
    return out.to(x.dtype)
