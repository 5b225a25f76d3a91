"""The operations in Triton, for GPUs; under TRITON_INTERPRET=1 they run on a CPU, for tests."""

from radixrt.kernels.triton.attention import attend, decode_attention, extend_attention, tree_attention
from radixrt.kernels.triton.gate import gelu_mul, silu_mul
from radixrt.kernels.triton.norm import add_rms_norm, rms_norm
from radixrt.kernels.triton.plan import AttentionPlan, make_plan
from radixrt.kernels.triton.rotary import rope, rope_write, write_kv

__all__ = [
    "AttentionPlan",
    "add_rms_norm",
    "attend",
    "decode_attention",
    "extend_attention",
    "gelu_mul",
    "make_plan",
    "rms_norm",
    "rope",
    "rope_write",
    "silu_mul",
    "tree_attention",
    "write_kv",
]
