"""Whether a model can fit at all, told before minutes of loading end in the kernel's out-of-memory killer."""

from __future__ import annotations

import math

from radixrt.checkpoint import Checkpoint
from radixrt.checkpoint.safetensors_file import read_safetensors_header
from radixrt.config import Weights
from radixrt.errors import StartupError
from radixrt.runner.pool import SMALLEST_TOKENS, PoolShape, size
from radixrt.runner.precision import Precision

PARAMETER_BYTES: dict[Weights, float] = {"float32": 4.0, "bf16": 2.0, "int8": 1.0, "int4": 0.5}
"""A parameter, at least: scales come on top."""


def check_room(
    checkpoint: Checkpoint, precision: Precision, *, free_bytes: int, ranks: int = 1, kv_tokens: int | None
) -> None:
    """Compare what a model takes at the very least, with the pool it is to have, with the bytes that are free.

    Raises StartupError with the numbers. What passes may still turn out too large: activations and the other processes
    need room as well, and `pool_tokens` looks again at what loading has left.
    """
    parameters, stored = _sizes(checkpoint)
    # Under auto, what the file has quantized is packed: that is never less than the file.
    form = precision.weights
    least = min(stored, 2 * parameters) if form == "auto" else int(parameters * PARAMETER_BYTES[form])
    tokens = SMALLEST_TOKENS if kv_tokens is None else kv_tokens
    pool = tokens * PoolShape.of(checkpoint.config, precision.kv).token_bytes
    need = (least + pool) // ranks
    if need > free_bytes:
        kv = str(precision.kv).removeprefix("torch.")
        raise StartupError(
            f"the model does not fit: {parameters:,} parameters take at least {size(least // ranks)} here (--weights "
            f"{form}), {tokens:,} KV tokens {size(pool // ranks)} ({kv}), and {size(free_bytes)} are free: free "
            f"some memory, or choose a smaller model, a more strongly quantized one, or fewer KV tokens"
        )


def _sizes(checkpoint: Checkpoint) -> tuple[int, int]:
    """(parameters, their bytes in the files)."""
    if checkpoint.gguf is not None:
        tensors = checkpoint.gguf.tensors
        return sum(math.prod(tensor.shape) for tensor in tensors), sum(tensor.nbytes for tensor in tensors)
    entries = [
        entry for path in checkpoint.safetensors_files for entry in read_safetensors_header(path).values()
    ]  # fmt: skip
    return sum(math.prod(entry.shape) for entry in entries), sum(entry.nbytes for entry in entries)
