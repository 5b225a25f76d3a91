"""Norms, rotation, gating and cache writes; see `radixrt.kernels.ops.Kernels` for what each one is.

At one token an operator costs 2 to 12 us whatever it does, and a layer runs a dozen: so in place and few.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from radixrt.kernels.kv_lines import to_lines


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return F.rms_norm(x, weight.shape, weight, eps)


def add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    residual.add_(x)
    return F.rms_norm(residual, weight.shape, weight, eps), residual


def rope(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    swapped = x.view(*x.shape[:-1], 2, -1).flip(-2).view(x.shape)
    return torch.addcmul(x * cos, swapped, sin)


def write_kv(k: torch.Tensor, v: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, slots: torch.Tensor) -> None:
    keys.index_copy_(1, slots, to_lines(k.transpose(0, 1), keys.dtype))
    values.index_copy_(1, slots, to_lines(v.transpose(0, 1), values.dtype))


def silu_mul(gate_up: torch.Tensor) -> torch.Tensor:
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate).mul_(up)
