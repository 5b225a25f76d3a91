"""Attention by FlashInfer where that package is installed, all other operations by Triton. Never run on a GPU yet."""

from radixrt.kernels.flashinfer.attention import check, tree_attention
from radixrt.kernels.triton import (
    add_rms_norm,
    copy_kv,
    gather_kv,
    gelu_mul,
    moe_mlp,
    packed_product,
    rms_norm,
    rope,
    rope_write,
    sample,
    scatter_kv,
    silu_mul,
    write_kv,
)

__all__ = [
    "add_rms_norm",
    "check",
    "copy_kv",
    "gather_kv",
    "gelu_mul",
    "moe_mlp",
    "packed_product",
    "rms_norm",
    "rope",
    "rope_write",
    "sample",
    "scatter_kv",
    "silu_mul",
    "tree_attention",
    "write_kv",
]
