"""The operations of `radixrt.kernels.ops.Kernels` by the library; what it does not take goes to torch's operators."""

from __future__ import annotations

from ctypes import CDLL

import torch

from radixrt.kernels.cpu import attention as composed_attention
from radixrt.kernels.cpu import ops as composed
from radixrt.kernels.cpu.native.binding import POOL_TYPES, Heads, is_half, library
from radixrt.kernels.cpu.native.reads import step_reads
from radixrt.kernels.kv_lines import line_length
from radixrt.kernels.layout import AttentionLayout

WIDEST_HEAD = 256


def _loaded() -> CDLL:
    loaded = library()
    if loaded is None:
        raise RuntimeError("the library is not there: ask radixrt.kernels.select for an implementation")
    return loaded


def _fits(*tensors: torch.Tensor) -> bool:
    """Whether the library takes them: contiguous, all float32 or all bfloat16."""
    dtype = tensors[0].dtype
    return dtype in (torch.float32, torch.bfloat16) and all(t.dtype == dtype and t.is_contiguous() for t in tensors)


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    if not _fits(x, weight):
        return composed.rms_norm(x, weight, eps)
    out = torch.empty_like(x)
    n = len(weight)
    _loaded().radixrt_add_norm(
        x.data_ptr(), None, weight.data_ptr(), eps, x.numel() // n, n, out.data_ptr(), is_half(x)
    )
    return out


def add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    if not _fits(x, residual, weight):
        return composed.add_rms_norm(x, residual, weight, eps)
    out = torch.empty_like(x)
    n = len(weight)
    _loaded().radixrt_add_norm(
        residual.data_ptr(), x.data_ptr(), weight.data_ptr(), eps, x.numel() // n, n, out.data_ptr(), is_half(x)
    )
    return out, residual


def rope(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    tokens, heads, width = x.shape
    if not _fits(cos, sin) or x.dtype != cos.dtype or x.stride()[1:] != (width, 1):
        return composed.rope(x, cos, sin)
    out = x.new_empty(x.shape)
    _loaded().radixrt_rope(
        x.data_ptr(), x.stride(0), cos.data_ptr(), sin.data_ptr(), tokens, heads, width, out.data_ptr(), is_half(x)
    )
    return out


def write_kv(k: torch.Tensor, v: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, slots: torch.Tensor) -> None:
    tokens, kv_heads, width = k.shape
    if not _reads(k, width, keys, values) or v.dtype != k.dtype or v.stride()[1:] != (width, 1):
        composed.write_kv(k, v, keys, values, slots)
        return
    _loaded().radixrt_write_kv(
        k.data_ptr(), k.stride(0), v.data_ptr(), v.stride(0), keys.data_ptr(), values.data_ptr(),
        slots.contiguous().data_ptr(), tokens, kv_heads, keys.shape[1], width, is_half(k), POOL_TYPES[keys.dtype],
    )  # fmt: skip


def silu_mul(gate_up: torch.Tensor) -> torch.Tensor:
    if not _fits(gate_up):
        return composed.silu_mul(gate_up)
    rows, n = gate_up.shape[0], gate_up.shape[1] // 2
    out = gate_up.new_empty(rows, n)
    _loaded().radixrt_silu_mul(gate_up.data_ptr(), rows, n, out.data_ptr(), is_half(gate_up))
    return out


def tree_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    layout: AttentionLayout,
    scale: float,
    sliding_window: int | None = None,
) -> torch.Tensor:
    _, heads, width = q.shape
    kv_heads, slots, _ = keys.shape
    if not _reads(q, width, keys, values) or layout.parents is not None:
        return composed_attention.tree_attention(q, k, v, keys, values, layout, scale, sliding_window)
    out = q.new_empty(q.shape)
    call = Heads(
        q=q.data_ptr(),
        keys=keys.data_ptr(),
        values=values.data_ptr(),
        out=out.data_ptr(),
        q_stride=q.stride(0),
        pool=slots,
        kv_heads=kv_heads,
        group=heads // kv_heads,
        width=width,
        half=is_half(q),
        type=POOL_TYPES[keys.dtype],
        scale=scale,
    )
    _loaded().radixrt_attention(step_reads(layout, sliding_window).reads, call)
    return out


def _reads(x: torch.Tensor, width: int, keys: torch.Tensor, values: torch.Tensor) -> bool:
    """Whether the library takes heads like those of `x` [T, heads, width] with this pool."""
    return (
        takes(width)
        and x.dtype in (torch.float32, torch.bfloat16)
        and x.stride()[1:] == (width, 1)
        and keys.dtype in POOL_TYPES
        and keys.dtype == values.dtype
        and keys.shape[-1] == values.shape[-1] == line_length(keys.dtype, width)
        and keys.is_contiguous()
        and values.is_contiguous()
    )


def takes(head_width: int) -> bool:
    """Whether the library attends with heads of this width."""
    return head_width % 2 == 0 and head_width <= WIDEST_HEAD
