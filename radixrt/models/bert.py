"""BERT's encoder (arXiv 1810.04805) over ragged texts: no padding, so that nothing depends on a text's neighbours.

All products run over the tokens of all texts together; attention runs over texts of equal length together.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial

import torch
import torch.nn.functional as F

from radixrt.checkpoint import EncoderConfig
from radixrt.models.blocks import Linear

_ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "relu": F.relu,
}


class Norm:
    """Layer norm with weight and bias, [.., hidden]."""

    def __init__(self, config: EncoderConfig, dtype: torch.dtype, device: torch.device) -> None:
        self.weight = torch.empty(config.hidden_size, dtype=dtype, device=device)
        self.bias = torch.empty(config.hidden_size, dtype=dtype, device=device)
        self._eps = config.layer_norm_eps

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(x, self.weight.shape, self.weight, self.bias, self._eps)

    def parameters(self, name: str) -> dict[str, torch.Tensor]:
        return {f"{name}.weight": self.weight, f"{name}.bias": self.bias}


class BertLayer:
    """Attention and MLP, each followed by a norm of its sum with what went in."""

    def __init__(self, config: EncoderConfig, dtype: torch.dtype, device: torch.device) -> None:
        hidden, inner = config.hidden_size, config.intermediate_size
        self._heads = config.num_heads
        self._act = _ACTIVATIONS[config.activation]
        self.qkv = Linear(hidden, 3 * hidden, True, dtype, device)
        self.output = Linear(hidden, hidden, True, dtype, device)
        self.up = Linear(hidden, inner, True, dtype, device)
        self.down = Linear(inner, hidden, True, dtype, device)
        self.attention_norm = Norm(config, dtype, device)
        self.mlp_norm = Norm(config, dtype, device)

    def parameters(self) -> dict[str, torch.Tensor]:
        """Views to load into, by the names that transformers gives them within a layer."""
        inner, hidden = self.up.weight.shape
        views = self.qkv.parts({f"attention.self.{name}": hidden for name in ("query", "key", "value")})
        views |= self.output.parts({"attention.output.dense": hidden})
        views |= self.up.parts({"intermediate.dense": inner}) | self.down.parts({"output.dense": hidden})
        views |= self.attention_norm.parameters("attention.output.LayerNorm")
        return views | self.mlp_norm.parameters("output.LayerNorm")

    def __call__(self, x: torch.Tensor, groups: Sequence[tuple[int, torch.Tensor]]) -> torch.Tensor:
        """x [T, hidden]; groups: (length, the tokens of all texts of that length, int64[texts * length])."""
        x = self.attention_norm(x + self.output(self._attention(x, groups)))
        return self.mlp_norm(x + self.down(self._act(self.up(x))))

    def _attention(self, x: torch.Tensor, groups: Sequence[tuple[int, torch.Tensor]]) -> torch.Tensor:
        qkv = self.qkv(x).view(len(x), 3, self._heads, -1)
        out = torch.empty_like(x)
        for length, places in groups:
            # [3, texts, heads, length, width]
            q, k, v = qkv[places].view(-1, length, 3, self._heads, qkv.shape[-1]).permute(2, 0, 3, 1, 4)
            mixed = F.scaled_dot_product_attention(q, k, v)
            out[places] = mixed.transpose(1, 2).reshape(len(places), -1)
        return out


class BertEncoder:
    """Embeddings and layers; `load_encoder` fills the weights."""

    def __init__(self, config: EncoderConfig, *, dtype: torch.dtype, device: torch.device) -> None:
        self.config, self.dtype, self.device = config, dtype, device

        def table(rows: int) -> torch.Tensor:
            return torch.empty(rows, config.hidden_size, dtype=dtype, device=device)

        self.words, self.places = table(config.vocab_size), table(config.positions)
        self.types = table(config.token_types) if config.token_types else None
        self.norm = Norm(config, dtype, device)
        self.layers = [BertLayer(config, dtype, device) for _ in range(config.num_layers)]

    def parameters(self) -> dict[str, torch.Tensor]:
        """Views to load into, by the names that transformers' BertModel gives them."""
        views = {
            "embeddings.word_embeddings.weight": self.words,
            "embeddings.position_embeddings.weight": self.places,
        }
        if self.types is not None:
            views["embeddings.token_type_embeddings.weight"] = self.types
        views |= self.norm.parameters("embeddings.LayerNorm")
        for index, layer in enumerate(self.layers):
            views |= {f"encoder.layer.{index}.{name}": view for name, view in layer.parameters().items()}
        return views

    def forward(self, tokens: torch.Tensor, lengths: Sequence[int]) -> torch.Tensor:
        """tokens int64[T], the texts one behind the other, of `lengths` (their sum is T) -> last hidden states
        [T, hidden] of the model's dtype. To be called under `torch.inference_mode()`."""
        starts = [0]
        for length in lengths:
            starts.append(starts[-1] + length)
        at = torch.cat([torch.arange(length) for length in lengths]).to(self.device)
        by_length: dict[int, list[int]] = defaultdict(list)
        for start, length in zip(starts, lengths, strict=False):
            by_length[length].append(start)
        groups = [
            (length, (torch.tensor(begins)[:, None] + torch.arange(length)).view(-1).to(self.device))
            for length, begins in by_length.items()
        ]
        x = F.embedding(tokens, self.words) + F.embedding(at, self.places)
        if self.types is not None:
            x = x + self.types[0]
        x = self.norm(x)
        for layer in self.layers:
            x = layer(x, groups)
        return x
