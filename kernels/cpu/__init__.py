"""The operations on a CPU: torch's own operators, put together so that a layer needs few and large ones."""

from radixrt.kernels.cpu.attention import tree_attention
from radixrt.kernels.cpu.ops import add_rms_norm, rms_norm, rope, silu_mul, write_kv

__all__ = ["add_rms_norm", "rms_norm", "rope", "silu_mul", "tree_attention", "write_kv"]
