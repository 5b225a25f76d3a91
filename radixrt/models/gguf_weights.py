"""Weights from a GGUF file, dequantized a few million at a time straight into their place."""

from __future__ import annotations

import mmap
import re

import numpy as np
import torch

from radixrt.checkpoint import GgufFile, GgufTensor
from radixrt.checkpoint.gguf_file import GGML_TYPES
from radixrt.kernels.cpu.native.packed import Groups
from radixrt.models.dequantize import as_groups, dequantize

_CHUNK = 1 << 20
"""Elements dequantized at once: the float32 in between stays in the cache."""

_PLAIN = frozenset({"F64", "F32", "F16", "BF16"})
"""Types that are no blocks of integers."""

_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_LAYER = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")


class GgufWeights:
    """The tensors of a GGUF file under transformers' names."""

    def __init__(self, file: GgufFile, *, interleaved_heads: dict[str, int]) -> None:
        """`interleaved_heads`: projections (q_proj, k_proj) whose rows llama.cpp's converter has reordered, and their
        number of heads: it puts element i of a head beside element i + D/2, and here they are put back.
        """
        self._tensors = {_transformers_name(tensor.name): tensor for tensor in file.tensors}
        self.shapes = {name: tensor.shape for name, tensor in self._tensors.items()}
        self._heads = interleaved_heads
        with file.path.open("rb") as handle:
            # Copy on write: nothing is written, but torch warns of memory that it may not write to.
            self._data = np.frombuffer(mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_COPY), dtype=np.uint8)

    def read(self, name: str, out: torch.Tensor) -> None:
        tensor = self._tensors[name]
        heads = self._reordered(name)
        if heads is None:
            self._fill(tensor, out)
            return
        stored = torch.empty(out.shape, dtype=out.dtype)
        self._fill(tensor, stored)
        out.copy_(_put_back(stored, heads))

    def is_quantized(self, name: str) -> bool:
        return self._tensors[name].type_name not in _PLAIN

    def groups(self, name: str) -> Groups | None:
        tensor = self._tensors[name]
        _, _, block_bytes = GGML_TYPES[tensor.ggml_type]
        data = self._data[tensor.offset : tensor.offset + tensor.nbytes]
        parts = as_groups(data.reshape(-1, block_bytes), tensor)
        if parts is None:
            return None
        bits, *columns = parts
        heads = self._reordered(name)
        lines = [part.reshape(tensor.shape[0], -1) for part in columns]
        return Groups(bits, *(lines if heads is None else [_put_back(part, heads) for part in lines]))

    def _reordered(self, name: str) -> int | None:
        """Heads of a projection whose rows are to be put back."""
        return self._heads.get(name.rsplit(".", 2)[-2]) if ".layers." in name else None

    def close(self) -> None:
        """Let go of the file: the map ends with its last view."""
        del self._data

    def _fill(self, tensor: GgufTensor, out: torch.Tensor) -> None:
        _, block, block_bytes = GGML_TYPES[tensor.ggml_type]
        data = self._data[tensor.offset : tensor.offset + tensor.nbytes]
        lines = out.view(-1, out.shape[-1])
        line_bytes = lines.shape[1] // block * block_bytes
        step = max(1, _CHUNK // lines.shape[1])
        for at in range(0, len(lines), step):
            some = lines[at : at + step]
            blocks = data[at * line_bytes : (at + len(some)) * line_bytes].reshape(-1, block_bytes)
            some.copy_(dequantize(blocks, tensor).view(some.shape))


def _put_back(stored: torch.Tensor, heads: int) -> torch.Tensor:
    """Rows as the converter has them -> halves of each head one below the other."""
    return stored.view(heads, -1, 2, *stored.shape[1:]).transpose(1, 2).reshape(stored.shape)


def _transformers_name(name: str) -> str:
    match = _LAYER.fullmatch(name)
    if match is None:
        return _NAMES.get(name, name)
    index, part, kind = match.groups()
    return f"model.layers.{index}.{_LAYER_NAMES[part]}.{kind}" if part in _LAYER_NAMES else name
