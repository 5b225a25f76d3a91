"""Small operations against their definitions in float64, and the layout's checks."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from radixrt import kernels
from radixrt.kernels import AttentionLayout, Kernels
from radixrt.kernels.kv_lines import from_lines, line_length, to_lines

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


@pytest.mark.parametrize("pool_dtype", [torch.float32, torch.bfloat16, torch.float16, torch.int8], ids=str)
@pytest.mark.parametrize("width", [8, 64, 66, 256])
def test_write_kv_into_pools_of_other_types(
    ops: Kernels, dtype: torch.dtype, pool_dtype: torch.dtype, width: int
) -> None:
    """The nearest numbers that the pool's type has."""
    line = line_length(pool_dtype, width)
    kv = torch.zeros(2, 2, 40, line, dtype=pool_dtype)
    new = random(30, 4, width, dtype=dtype) * torch.logspace(-6, 4, 30)[:, None, None].to(dtype)
    new[3], new[4, :, 5] = 0, 70000
    slots = torch.randperm(40, generator=torch.Generator().manual_seed(0))[:30]
    ops.write_kv(new[:, :2], new[:, 2:], kv[0], kv[1], slots)
    for pool, own in zip(kv, (new[:, :2], new[:, 2:]), strict=True):
        written = pool[:, slots].transpose(0, 1)
        if pool_dtype != torch.int8:
            assert torch.equal(written, own.to(pool_dtype))
            continue
        assert torch.equal(written, to_lines(own, torch.int8))
        scale = own.double().abs().amax(-1, keepdim=True) / 127
        error = (from_lines(written, torch.float64) - own.double()).abs()
        assert bool((error <= scale * 0.5001).all())


def test_int8_lines_of_no_numbers_and_of_tiny_ones(ops: Kernels) -> None:
    new = torch.ones(5, 2, 16)
    new[0, 0, 3], new[1, 0, 0], new[2, 0, 15] = float("nan"), float("inf"), -float("inf")
    new[3], new[4] = 1e-40, -0.0
    kv = torch.zeros(2, 1, 5, 20, dtype=torch.int8)
    ops.write_kv(new[:, :1], new[:, 1:], kv[0], kv[1], torch.arange(5))
    keys, values = from_lines(kv, torch.float32)
    assert keys[0, :3].isnan().all() and not keys[0, 3:].any()
    assert (values[0, :3] == 1).all() and not values[0, 3:].any()


def test_float16_is_rounded_to_the_nearest(ops: Kernels) -> None:
    """As torch rounds: every float16 number stays, ties go to even; subnormal numbers, overflow and NaN."""
    every = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(torch.float16).float()
    halves = torch.cat([every, (every[:-1] + every[1:]) / 2, every * 1.0001]).nan_to_num(nan=float("nan"))
    x = halves[: len(halves) // 64 * 64].view(-1, 1, 64)
    kv = torch.zeros(2, 1, len(x), 64, dtype=torch.float16)
    ops.write_kv(x, x, kv[0], kv[1], torch.arange(len(x)))
    expected = x[:, 0].half()
    assert torch.equal(kv[0, 0].isnan(), expected.isnan())
    assert torch.equal(kv[0, 0].nan_to_num(0.5), expected.nan_to_num(0.5))


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
