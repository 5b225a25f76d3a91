"""Narrow products and the decoder in one call, against float64 and against the plain operations."""

from __future__ import annotations

import pytest
import torch

from radixrt.kernels.cpu.native.packed import Groups, NarrowLinear, quantize

ROWS = [1, 2, 3, 4, 7, 8, 9, 21]


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def relative(out: torch.Tensor, truth: torch.Tensor) -> float:
    return float((out.double() - truth.double()).norm() / truth.double().norm())


def rounded(x: torch.Tensor, bits: int) -> torch.Tensor:
    """x [R, K] as 8-bit integers in groups of 32, or windows of 64: what the products are defined over."""
    parts = []
    for part in x.float().split(32 if bits == 8 else 64, dim=1):
        scale = part.abs().amax(-1, keepdim=True) / 127
        parts.append(torch.where(scale > 0, (part / scale).round(), 0) * scale)
    return torch.cat(parts, dim=1)


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("shape", [(64, 96), (50, 32), (7, 160)])
@pytest.mark.parametrize("bits", [4, 8])
def test_integers_multiply_exactly(target: str, bits: int, shape: tuple[int, int], rows: int) -> None:
    """Apart from the rounding of x, which is repeated here, only float32 sums differ."""
    groups = quantize(random(*shape), bits)
    x, bias = random(rows, shape[1], seed=1), random(shape[0], seed=2)
    x[0, :32] = 0
    truth = rounded(x, bits).double() @ groups.dense().double().T + bias.double()
    assert relative(NarrowLinear(groups, bias)(x), truth) < 1e-3  # a tie may round the other way
    assert relative(NarrowLinear(groups, bias)(x), x.double() @ groups.dense().double().T + bias.double()) < 1e-2


@pytest.mark.parametrize("bits", [4, 8])
def test_a_row_is_the_same_in_any_company(target: str, bits: int) -> None:
    weight = NarrowLinear(quantize(random(50, 160), bits))
    x = random(37, 160, seed=1)
    assert torch.equal(weight(x), torch.cat([weight(x[row : row + 1]) for row in range(37)]))


def test_steps_may_fall(target: str) -> None:
    """ggml's Q4_0 has scales below zero; groups of very different sizes share an output's unit."""
    q = torch.randint(0, 16, (20, 96), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    scale = (random(20, 3, seed=1) * torch.tensor([1e-3, 0.1, 1.0])).half()
    groups = Groups(4, q, scale, scale * -8)
    x = random(9, 96, seed=2)
    assert relative(NarrowLinear(groups)(x), rounded(x, 4).double() @ groups.dense().double().T) < 1e-3


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_damaged_weight_is_not_hidden(target: str, value: float) -> None:
    groups = quantize(random(32, 64), 4)
    groups.scale[3, 1] = value
    y = NarrowLinear(groups)(random(2, 64, seed=1))
    assert y[:, 3].isnan().all() and y[:, torch.arange(32) != 3].isfinite().all()


@pytest.mark.parametrize("bits", [4, 8])
def test_extremes_do_not_overflow(target: str, bits: int) -> None:
    """The largest integers on both sides, the smallest scales."""
    q = torch.full((16, 64), 2**bits - 1, dtype=torch.uint8)
    scale = torch.full((16, 2), 2.0**-24, dtype=torch.float16)  # the least float16 above zero
    shift = torch.full((16, 2), -1.5, dtype=torch.float16)
    groups = Groups(bits, q, scale, shift)
    x = torch.full((2, 64), 127.0)
    assert relative(NarrowLinear(groups)(x), x.double() @ groups.dense().double().T) < 1e-6


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("shape", [(64, 96), (50, 33), (7, 160)])
def test_bfloat16_weights(target: str, shape: tuple[int, int], rows: int) -> None:
    weight, x = random(*shape).bfloat16(), random(rows, shape[1], seed=1).bfloat16()
    assert relative(NarrowLinear(weight)(x), x.double() @ weight.double().T) < 1e-6


@pytest.mark.parametrize("bits", [4, 8, 16])
def test_nan_is_not_hidden(target: str, bits: int) -> None:
    weight = random(32, 64)
    x = random(3, 64, seed=1)
    x[1, 5] = float("nan")
    y = NarrowLinear(weight.bfloat16() if bits == 16 else quantize(weight, bits))(x)
    assert y[1].isnan().all() and not y[[0, 2]].isnan().any()


@pytest.mark.parametrize(("bits", "most"), [(8, 0.006), (4, 0.09)])
def test_quantize_is_near(bits: int, most: float) -> None:
    weight = random(40, 128)
    weight[3, 32:64] = 0
    weight[4, :32] = 2.5
    groups = quantize(weight, bits)
    assert relative(groups.dense(), weight) < most
    torch.testing.assert_close(groups.dense()[3, 32:64], torch.zeros(32))
