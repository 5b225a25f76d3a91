"""The operations on a CPU in C++, compiled for the machine at hand; `available()` says whether they can be had."""

from radixrt.kernels.cpu.native.binding import library
from radixrt.kernels.cpu.native.ops import add_rms_norm, rms_norm, rope, silu_mul, tree_attention, write_kv

__all__ = ["add_rms_norm", "available", "rms_norm", "rope", "silu_mul", "tree_attention", "write_kv"]


def available() -> bool:
    """Whether the library is here; the first call may compile it."""
    return library() is not None
