"""Products with packed weights, and experts' products, against float64 over what the packed weights stand for."""

from __future__ import annotations

import pytest
import torch
from kernels_close import DTYPES, Guards, assert_near, poisoned_outputs, random

from radixrt.kernels.triton import moe, products
from radixrt.kernels.triton.packed import Fp8Weight, IntWeight, dense, pack_int, quantize_fp8, quantize_int
from radixrt.kernels.triton.products import packed_product

N, K = 40, 288  # neither fills its tiles

WEIGHTS = {
    "int8": lambda w: quantize_int(w, 8),
    "int4": lambda w: quantize_int(w, 4),
    "fp8 by channel": quantize_fp8,
    "fp8 by block": lambda w: quantize_fp8(w, 16, 128),
}


@pytest.fixture(params=WEIGHTS)
def weight(request: pytest.FixtureRequest) -> IntWeight | Fp8Weight:
    w = random(N, K, seed=1)
    w[3, 32:64] = 0
    return WEIGHTS[request.param](w)


def guard(weight: IntWeight | Fp8Weight, guards: Guards) -> IntWeight | Fp8Weight:
    if isinstance(weight, Fp8Weight):
        return Fp8Weight(guards.put(weight.q), guards.put(weight.scale), weight.rows, weight.columns)
    return IntWeight(weight.bits, *(guards.put(part) for part in (weight.q, weight.scale, weight.shift)))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("rows", "split"), [(1, True), (5, False), (0, False), (17, False)])
def test_packed_product(
    weight: IntWeight | Fp8Weight, dtype: torch.dtype, rows: int, split: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With its inputs split among programs, and without; the weight itself is not rounded on the way to the truth."""
    monkeypatch.setattr(products, "multiprocessors", lambda device: 132 if split else 0)
    guards = Guards()
    x, bias = guards.put(random(rows, K, dtype=dtype)), guards.put(random(N, dtype=dtype, seed=2))
    truth = x.double() @ dense(weight).double().T
    held = guard(weight, guards)
    with poisoned_outputs(monkeypatch, guards):
        plain, biased = packed_product(x, held), packed_product(x, held, bias)
    guards.check()
    assert_near(plain, truth)
    assert_near(biased, truth + bias.double())


def test_quantizing_is_near(weight: IntWeight | Fp8Weight) -> None:
    w = random(N, K, seed=1)
    w[3, 32:64] = 0
    most = 0.09 if isinstance(weight, IntWeight) and weight.bits == 4 else 0.03
    assert weight.shape == (N, K)
    assert float((dense(weight) - w).norm() / w.norm()) < most
    assert not dense(weight)[3, 32:64].any()


def test_integers_of_a_file_are_kept_exactly() -> None:
    generator = torch.Generator().manual_seed(0)
    q = torch.randint(0, 16, (N, K), generator=generator, dtype=torch.uint8)
    scale, shift = random(N, K // 32).half(), random(N, K // 32, seed=1).half()
    groups = q.view(N, -1, 32).float() * scale.float()[..., None] + shift.float()[..., None]
    assert torch.equal(dense(pack_int(q, scale, shift, 4)), groups.view(N, K))


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="4 or 8 bits"):
        pack_int(torch.zeros(2, 32, dtype=torch.uint8), torch.ones(2, 1), torch.ones(2, 1), 3)
    with pytest.raises(ValueError, match="whole groups"):
        pack_int(torch.zeros(2, 40, dtype=torch.uint8), torch.ones(2, 1), torch.ones(2, 1), 8)
    with pytest.raises(ValueError, match="columns"):
        packed_product(torch.zeros(1, 64), quantize_int(torch.zeros(2, 32), 8))


def experts64(x, router, gate_up, down, k, normalize):
    """A token and an expert at a time."""
    out = torch.zeros(len(x), down.shape[1], dtype=torch.float64)
    for token in range(len(x)):
        p = torch.softmax(router[token].double(), -1)
        chosen = p.argsort(descending=True)[:k]
        total = p[chosen].sum() if normalize else 1.0
        for e in chosen.tolist():
            gate, up = (gate_up[e].double() @ x[token].double()).chunk(2)
            out[token] += p[e] / total * (down[e].double() @ (gate / (1 + torch.exp(-gate)) * up))
    return out


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("tokens", "count", "k", "normalize"), [(1, 8, 2, True), (9, 4, 2, False), (0, 4, 1, True), (24, 2, 1, True)]
)
def test_moe(
    tokens: int, count: int, k: int, normalize: bool, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Experts that nobody chose, one token, none, and more of an expert's than a tile holds."""
    guards = Guards()
    x, router = guards.put(random(tokens, 48, dtype=dtype)), random(tokens, count, seed=1) * 2
    gate_up = guards.put(random(count, 64, 48, dtype=dtype, seed=2) * 0.2)
    down = guards.put(random(count, 40, 32, dtype=dtype, seed=3) * 0.2)
    with poisoned_outputs(monkeypatch, guards):
        out = moe.moe_mlp(x, router, gate_up, down, k, normalize=normalize)
    guards.check()
    assert out.dtype == dtype
    assert_near(out, experts64(x, router, gate_up, down, k, normalize))


def test_moe_in_fp8() -> None:
    x, router = random(5, 64), random(5, 4, seed=1)
    packed = [
        [quantize_fp8(random(n, c, seed=s + e), 16, 32) for e in range(4)] for n, c, s in ((64, 64, 9), (40, 32, 19))
    ]
    out = moe.moe_mlp(x, router, moe.Fp8Experts.stack(packed[0]), moe.Fp8Experts.stack(packed[1]), 2)
    plain = [torch.stack([dense(weight) for weight in weights]) for weights in packed]
    assert_near(out, experts64(x, router, *plain, 2, True))


def test_a_tile_belongs_to_one_expert() -> None:
    experts = torch.randint(0, 5, (33, 3), generator=torch.Generator().manual_seed(0))
    routing = moe.group(experts, 5)
    lines = routing.order.view(-1, routing.height)
    assert sorted(lines[lines < 99].tolist()) == list(range(99))
    for line, expert in zip(lines, routing.expert.tolist(), strict=True):
        assert (experts.flatten()[line[line < 99]] == expert).all()
