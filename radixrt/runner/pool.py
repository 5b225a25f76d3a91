"""The KV pool: how many slots, and the one tensor that holds them."""

from __future__ import annotations

import mmap
from dataclasses import dataclass

import torch

from radixrt.checkpoint import ModelConfig
from radixrt.errors import StartupError
from radixrt.kernels.kv_lines import line_length
from radixrt.runner import cgroup

CPU = torch.device("cpu")
MEMORY_SHARE = 0.4
"""Of the memory that is free once the model is loaded: what the pool takes at most when no size is asked for. The
machine is shared: with the other processes, with the step's activations, and with whatever else the user runs."""
CONTEXTS = 16
"""No more than this many full contexts when no size is asked for: a small model must not fill a big machine."""
AT_LEAST_TOKENS = 65_536
"""... but that many tokens are fine in any case, so that models of short context can still batch."""
LARGEST_SHARE = 0.9
"""Of free memory: what a pool of a size that was asked for may take."""
DEVICE_SHARE = 0.88
"""Of a GPU's free memory: the pool's when no size is asked for. The rest is for activations and recorded steps."""
SMALLEST_TOKENS = 64
"""Below this nothing useful runs."""


@dataclass(frozen=True)
class PoolShape:
    """Numbers a KV pool follows from.

    dtype: float32, bfloat16, float16 or int8, see `kernels.kv_lines`.
    """

    layers: int
    kv_heads: int
    head_dim: int
    dtype: torch.dtype

    @classmethod
    def of(cls, model: ModelConfig, dtype: torch.dtype) -> PoolShape:
        return cls(layers=model.num_layers, kv_heads=model.num_kv_heads, head_dim=model.head_dim, dtype=dtype)

    @property
    def line(self) -> int:
        """Elements of one head's key or value in the pool."""
        return line_length(self.dtype, self.head_dim)

    @property
    def token_bytes(self) -> int:
        """Bytes of one slot: keys and values of every layer."""
        return 2 * self.layers * self.kv_heads * self.line * self.dtype.itemsize


def free_memory(device: torch.device = CPU) -> int:
    """Bytes that this process may still take: a GPU's free memory, or the machine's, or less where a control group
    limits it."""
    if device.type == "cuda":
        torch.cuda.empty_cache()  # what loading left over counts as free
        return int(torch.cuda.mem_get_info(device)[0])
    import psutil  # a GPU runner on a plain machine does without

    free = int(psutil.virtual_memory().available)
    left = cgroup.memory_left()
    return free if left is None else min(free, left)


def pool_tokens(
    shape: PoolShape, *, wanted: int | None, context_length: int, free_bytes: int, own: bool = False
) -> int:
    """Slots of the pool: `wanted` (--kv-tokens) where given, else from `free_bytes`. `own`: of memory that is there for
    nothing else, a GPU's.

    Raises StartupError, with the numbers, when the pool would not fit.
    """
    if wanted is not None:
        most = int(free_bytes * LARGEST_SHARE) // shape.token_bytes
        if wanted < 1:
            raise StartupError(f"kv_tokens must be 1 or more, but is {wanted}", param="kv_tokens")
        if wanted > most:
            raise StartupError(
                f"kv_tokens={wanted:,} needs {size(wanted * shape.token_bytes)} ({shape.token_bytes:,} bytes a "
                f"token), but {size(free_bytes)} are free: ask for at most {most:,}, or free some memory",
                param="kv_tokens",
            )
        return wanted
    share = DEVICE_SHARE if own else MEMORY_SHARE
    fits = int(free_bytes * share) // shape.token_bytes
    if fits < SMALLEST_TOKENS:
        raise StartupError(
            f"there is no room for the KV pool: one token takes {shape.token_bytes:,} bytes and {size(free_bytes)} "
            f"are free, of which the pool may take {share:.0%}; free some memory or choose a smaller model"
        )
    return fits if own else min(fits, max(CONTEXTS * context_length, AT_LEAST_TOKENS))


def allocate_pool(shape: PoolShape, tokens: int, device: torch.device = CPU) -> torch.Tensor:
    """[layers, 2, kv_heads, tokens, shape.line], zeros; on a GPU with one slot more, which nobody owns (padding writes
    there). In CPU memory pages are taken from the system when first written.

    The memory comes from an anonymous mapping and not from torch.zeros, which would touch every page now, nor from
    torch.empty, whose contents may be NaN: an implementation of attention that multiplies a masked slot by zero must
    get zero.
    """
    if device.type != "cpu":
        size = (shape.layers, 2, shape.kv_heads, tokens + 1, shape.line)
        return torch.zeros(size, dtype=shape.dtype, device=device)
    memory = mmap.mmap(-1, tokens * shape.token_bytes)
    flat = torch.frombuffer(memory, dtype=shape.dtype)
    return flat.view(shape.layers, 2, shape.kv_heads, tokens, shape.line)


def size(count: int) -> str:
    """Bytes in words."""
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / 2**20:.0f} MiB"
