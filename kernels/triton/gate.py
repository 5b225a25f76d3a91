"""Gated units (arXiv 2002.05202): one half of a product passes through an activation and is multiplied by the other."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from radixrt.kernels.triton.common import blocks, by_rows, narrow, tanh, tile


@triton.jit
def _gate(gate_up, out, stride, I: tl.constexpr, GELU: tl.constexpr, BLOCK: tl.constexpr):  # noqa: E741
    """A program: BLOCK columns of one token."""
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < I
    gate = tl.load(gate_up + token * stride + column, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gate_up + token * stride + I + column, mask=inside, other=0.0).to(tl.float32)
    if GELU:
        active = 0.5 * gate * (1 + tanh(0.7978845608028654 * (gate + 0.044715 * gate * gate * gate)))
    else:
        active = gate / (1 + tl.exp(-gate))
    tl.store(out + token * I + column, narrow(active * up, out.dtype.element_ty), mask=inside)


def silu_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """silu(gate) * up: gate_up [T, 2 * I] -> [T, I]; float32 within, rounded once."""
    return _launch(gate_up, gelu=False)


def gelu_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """gelu(gate) * up, by the tanh form that Gemma uses (arXiv 1606.08415, section 2): [T, 2 * I] -> [T, I]."""
    return _launch(gate_up, gelu=True)


def _launch(gate_up: torch.Tensor, *, gelu: bool) -> torch.Tensor:
    gate_up = by_rows(gate_up)
    tokens, inner = gate_up.shape[0], gate_up.shape[1] // 2
    out = torch.empty(tokens, inner, dtype=gate_up.dtype, device=gate_up.device)
    if out.numel():
        block = min(1024, tile(inner))
        _gate[(tokens, blocks(inner, block))](gate_up, out, gate_up.stride(0), I=inner, GELU=gelu, BLOCK=block)
    return out
