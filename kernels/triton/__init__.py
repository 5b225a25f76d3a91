"""The operations in Triton, for GPUs; under TRITON_INTERPRET=1 they run on a CPU, for tests."""

from radixrt.kernels.triton.attention import attend, decode_attention, extend_attention, tree_attention
from radixrt.kernels.triton.gate import gelu_mul, silu_mul
from radixrt.kernels.triton.moe import grouped_product, moe_mlp
from radixrt.kernels.triton.norm import add_rms_norm, rms_norm
from radixrt.kernels.triton.plan import AttentionPlan, make_plan
from radixrt.kernels.triton.products import packed_product
from radixrt.kernels.triton.rotary import rope, rope_write, write_kv
from radixrt.kernels.triton.sampling import sample
from radixrt.kernels.triton.tiers import copy_kv, gather_kv, scatter_kv

__all__ = [
    "AttentionPlan",
    "add_rms_norm",
    "attend",
    "copy_kv",
    "decode_attention",
    "extend_attention",
    "gather_kv",
    "gelu_mul",
    "grouped_product",
    "make_plan",
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
