"""Weights from a GGUF file, dequantized a few million at a time straight into their place."""

from __future__ import annotations

import mmap
import re
from collections.abc import Callable

import numpy as np
import torch

from radixrt.checkpoint import GgufFile, GgufTensor
from radixrt.checkpoint.gguf_file import GGML_TYPES
from radixrt.kernels.cpu.native.packed import Groups
from radixrt.models.dequantize import GROUP_BITS, as_groups, dequantize

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

    def __init__(
        self, file: GgufFile, *, interleaved_heads: dict[str, int], rename: Callable[[str], str] | None = None
    ) -> None:
        """`rename`: the file's names -> transformers' (None: a decoder's). `interleaved_heads`: projections (q_proj,
        k_proj) whose rows llama.cpp's converter has reordered, and their number of heads: it puts
        element i of a head beside element i + D/2, and here they are put back.
        """
        rename = rename or _transformers_name
        self._tensors = {rename(tensor.name): tensor for tensor in file.tensors}
        self.shapes = {name: tensor.shape for name, tensor in self._tensors.items()}
        self._heads = interleaved_heads
        with file.path.open("rb") as handle:
            # Copy on write: nothing is written, but torch warns of memory that it may not write to.
            self._map = mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_COPY)
            self._data = np.frombuffer(self._map, dtype=np.uint8)

    def read(self, name: str, out: torch.Tensor, first: int = 0) -> None:
        tensor = self._tensors[name]
        heads = self._reordered(name)
        if heads is None:
            self._fill(tensor, out, first)
            return
        width, begin, end = _whole_heads(tensor, heads, first, first + len(out))
        stored = torch.empty(end - begin, *out.shape[1:], dtype=out.dtype)
        self._fill(tensor, stored, begin)
        out.copy_(_put_back(stored, width)[first - begin : first - begin + len(out)])

    def is_quantized(self, name: str) -> bool:
        return self._tensors[name].type_name not in _PLAIN

    def group_bits(self, name: str) -> int | None:
        return GROUP_BITS.get(self._tensors[name].type_name)

    def groups(self, name: str, first: int, end: int) -> Groups:
        tensor = self._tensors[name]
        heads = self._reordered(name)
        width, begin, stop = _whole_heads(tensor, heads, first, end) if heads is not None else (0, first, end)
        bits, *columns = as_groups(self._blocks(tensor, begin, stop), tensor)
        self._forget(tensor, begin, stop)
        lines = [part.reshape(stop - begin, -1) for part in columns]
        if heads is not None:
            lines = [_put_back(part, width)[first - begin : end - begin] for part in lines]
        return Groups(bits, *lines)

    def _blocks(self, tensor: GgufTensor, first: int, end: int) -> np.ndarray:
        """uint8[n, bytes of a block]: the blocks of rows first..end."""
        _, _, block_bytes = GGML_TYPES[tensor.ggml_type]
        line_bytes = tensor.nbytes // tensor.shape[0]
        return self._data[tensor.offset + first * line_bytes : tensor.offset + end * line_bytes].reshape(
            -1, block_bytes
        )

    def _reordered(self, name: str) -> int | None:
        """Heads of a projection whose rows are to be put back."""
        return self._heads.get(name.rsplit(".", 2)[-2]) if ".layers." in name else None

    def _forget(self, tensor: GgufTensor, first: int, end: int) -> None:
        """Rows first..end have been read: their pages of the file need not be this process's any longer.

        All of a file's pages beside its packed form would be twice the model. What is asked for again comes from the
        kernel's cache. Without madvise (Windows) they stay until the file is closed.
        """
        if not hasattr(mmap, "MADV_DONTNEED"):
            return
        line_bytes = tensor.nbytes // tensor.shape[0]
        begin = (tensor.offset + first * line_bytes) // mmap.PAGESIZE * mmap.PAGESIZE
        self._map.madvise(mmap.MADV_DONTNEED, begin, tensor.offset + end * line_bytes - begin)

    def close(self) -> None:
        """Let go of the file: the map ends with its last view."""
        del self._data, self._map

    def _fill(self, tensor: GgufTensor, out: torch.Tensor, first: int = 0) -> None:
        """The rows of `out`, from `first`, of a tensor that is as large or larger."""
        _, block, block_bytes = GGML_TYPES[tensor.ggml_type]
        begin = tensor.offset + (first * (tensor.nbytes // tensor.shape[0]) if out.ndim > 1 else 0)
        data = self._data[begin : tensor.offset + tensor.nbytes]
        lines = out.view(-1, out.shape[-1])
        line_bytes = lines.shape[1] // block * block_bytes
        step = max(1, _CHUNK // lines.shape[1])
        for at in range(0, len(lines), step):
            some = lines[at : at + step]
            blocks = data[at * line_bytes : (at + len(some)) * line_bytes].reshape(-1, block_bytes)
            some.copy_(dequantize(blocks, tensor).view(some.shape))
        if out.ndim > 1:
            self._forget(tensor, first, first + len(out))
        elif hasattr(mmap, "MADV_DONTNEED"):
            self._map.madvise(mmap.MADV_DONTNEED)  # the kernel has mapped a megabyte around a vector of a few pages


def _whole_heads(tensor: GgufTensor, heads: int, first: int, end: int) -> tuple[int, int, int]:
    """Rows of a head, and the rows of all heads that have any of rows first..end."""
    width = tensor.shape[0] // heads
    return width, first // width * width, -(-end // width) * width


def _put_back(stored: torch.Tensor, width: int) -> torch.Tensor:
    """Rows of whole heads of `width` as the converter has them -> halves of each head one below the other."""
    return stored.view(-1, width // 2, 2, *stored.shape[1:]).transpose(1, 2).reshape(stored.shape)


def _transformers_name(name: str) -> str:
    match = _LAYER.fullmatch(name)
    if match is None:
        return _NAMES.get(name, name)
    index, part, kind = match.groups()
    return f"model.layers.{index}.{_LAYER_NAMES[part]}.{kind}" if part in _LAYER_NAMES else name
