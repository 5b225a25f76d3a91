"""The operations in plain torch: the readable reference, right on any device and fast on none."""

from radixrt.kernels.torch.attention import tree_attention
from radixrt.kernels.torch.ops import add_rms_norm, rms_norm, rope, silu_mul, write_kv

__all__ = ["add_rms_norm", "rms_norm", "rope", "silu_mul", "tree_attention", "write_kv"]
