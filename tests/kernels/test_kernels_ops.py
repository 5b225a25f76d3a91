"""Small operations against their definitions in float64, and the layout's checks."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from radixrt import kernels
from radixrt.kernels import AttentionLayout, Kernels

# bfloat16 has 8 significant bits: one rounding is 2^-9 of the value, and a few happen on the way.
RELATIVE = {torch.float32: 1e-5, torch.bfloat16: 2**-6}


@pytest.fixture(params=["torch", "composed", "compiled"])
def ops(request: pytest.FixtureRequest) -> Kernels:
    return kernels.select("cpu", reference=request.param == "torch", native=request.param == "compiled")


@pytest.fixture(params=[torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    return request.param


def random(*shape: int, dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def assert_close(out: torch.Tensor, truth: torch.Tensor, dtype: torch.dtype) -> None:
    assert out.dtype == dtype
    torch.testing.assert_close(out.double(), truth, rtol=RELATIVE[dtype], atol=RELATIVE[dtype])


def norm64(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    x = x.double()
    return x / torch.sqrt((x**2).mean(-1, keepdim=True) + eps) * weight.double()


def test_the_door_leads_to_each_implementation() -> None:
    assert kernels.select("cpu") is not kernels.select("cpu", reference=True)
    assert kernels.select("cpu", native=False) is not kernels.select("cpu", reference=True)
    assert kernels.select(torch.device("cuda"), reference=True) is kernels.select("cpu", reference=True)
    assert kernels.select(torch.device("meta")) is kernels.select("cpu", reference=True)


@pytest.mark.parametrize("shape", [(1, 48), (7, 48), (5, 3, 16), (2, 23), (40, 577)])
def test_rms_norm(ops: Kernels, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    x, weight = random(*shape, dtype=dtype) * 3, random(shape[-1], dtype=dtype, seed=1)
    assert_close(ops.rms_norm(x, weight, 1e-5), norm64(x, weight, 1e-5), dtype)


def test_rms_norm_of_tiny_values_depends_on_eps(ops: Kernels) -> None:
    x, weight = torch.full((1, 8), 1e-4), torch.ones(8)
    assert_close(ops.rms_norm(x, weight, 1e-6), norm64(x, weight, 1e-6), torch.float32)


def test_add_rms_norm(ops: Kernels, dtype: torch.dtype) -> None:
    x, residual = random(4, 32, dtype=dtype), random(4, 32, dtype=dtype, seed=1)
    weight = random(32, dtype=dtype, seed=2)
    total = x.double() + residual.double()
    normed, new_residual = ops.add_rms_norm(x, residual.clone(), weight, 1e-5)
    assert_close(new_residual, total, dtype)
    assert_close(normed, norm64(total, weight, 1e-5), dtype)


def test_rope_turns_each_pair_by_its_angle(ops: Kernels, dtype: torch.dtype) -> None:
    width, tokens = 8, 5
    x = random(tokens, 6, width, dtype=dtype)[:, :4]  # not contiguous, as in a model
    angles = torch.rand(tokens, width // 2, dtype=torch.float64) * 2 * math.pi
    cos, sin = angles.cos(), angles.sin()
    pairs = torch.complex(x.double()[..., : width // 2], x.double()[..., width // 2 :])
    turned = pairs * torch.polar(torch.ones_like(angles), angles)[:, None]
    out = ops.rope(x, torch.cat([cos, cos], -1)[:, None].to(dtype), torch.cat([-sin, sin], -1)[:, None].to(dtype))
    assert_close(out, torch.cat([turned.real, turned.imag], -1), dtype)


def test_write_kv_touches_nothing_else(ops: Kernels, dtype: torch.dtype) -> None:
    kv = random(2, 3, 11, 8, dtype=dtype)
    before = kv.clone()
    new = random(4, 9, 8, dtype=dtype, seed=1)
    slots = torch.tensor([7, 2, 3, 10])
    ops.write_kv(new[:, 3:6], new[:, 6:], kv[0], kv[1], slots)
    for token, slot in enumerate(slots.tolist()):
        assert torch.equal(kv[0, :, slot], new[token, 3:6]) and torch.equal(kv[1, :, slot], new[token, 6:])
    others = torch.tensor([s for s in range(11) if s not in slots.tolist()])
    assert torch.equal(kv[:, :, others], before[:, :, others])


@pytest.mark.parametrize("tokens", [1, 6])
def test_silu_mul(ops: Kernels, dtype: torch.dtype, tokens: int) -> None:
    gate_up = random(tokens, 2 * 24, dtype=dtype) * 4
    kept = gate_up.clone()
    gate, up = gate_up.double().chunk(2, -1)
    assert_close(ops.silu_mul(gate_up), gate / (1 + torch.exp(-gate)) * up, dtype)
    assert torch.equal(gate_up, kept)


def arrays(**changed: list[int]) -> dict[str, np.ndarray]:
    plain = {
        "new_lens": [2, 1], "slots": [5, 6, 7], "positions": [3, 4, 4], "private_lens": [1, 2],
        "private_slots": [2, 3, 4], "spans": [0, 2, 0, 2], "span_slots": [0, 1],
    }  # fmt: skip
    return {name: np.array(value, dtype=np.int32) for name, value in (plain | changed).items()}


def test_layout_says_what_a_row_reads() -> None:
    layout = AttentionLayout(**arrays())
    assert (layout.num_rows, layout.num_tokens) == (2, 3)
    assert layout.context(0).tolist() == [0, 1, 2] and layout.context(1).tolist() == [0, 1, 3, 4]
    assert layout.new_slots(0).tolist() == [5, 6] and layout.private(1).tolist() == [3, 4]


@pytest.mark.parametrize(
    "changed",
    [
        {"new_lens": [2, 2]},
        {"new_lens": [3, 0]},
        {"positions": [3, 4]},
        {"private_lens": [1, 1]},
        {"private_lens": [4, -1]},
        {"private_lens": [3]},
        {"spans": [1, 2, 0, 2]},
        {"spans": [0, 2, 0, 3]},
        {"spans": [0, 2, 2, 1]},
        {"spans": [-1, 2, 0, 2]},
    ],
)
def test_layout_refuses_arrays_that_contradict_each_other(changed: dict[str, list[int]]) -> None:
    with pytest.raises(ValueError, match="step"):
        AttentionLayout(**arrays(**changed))
