"""Norms, rotation, gating and cache writes in Triton, against float64."""

from __future__ import annotations

import pytest
import torch
from kernels_close import DTYPES, Guards, assert_near, poisoned_outputs, random

from radixrt import kernels
from radixrt.kernels import triton as ops

pytestmark = pytest.mark.filterwarnings("ignore:overflow encountered")  # exp() in numpy, where a GPU says inf


@pytest.fixture(params=DTYPES, ids=lambda dtype: str(dtype).removeprefix("torch."))
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    return request.param


@pytest.fixture
def guards(monkeypatch: pytest.MonkeyPatch):
    """Everything a kernel gets or makes lies between NaN; afterwards the NaN are still there."""
    guards = Guards()
    with poisoned_outputs(monkeypatch, guards):
        yield guards
    guards.check()


def norm64(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    x = x.double()
    return x / torch.sqrt((x**2).mean(-1, keepdim=True) + eps) * weight.double()


def rotate64(x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    """x [T, heads, D], angles float64[T, D / 2]."""
    half = x.shape[-1] // 2
    pairs = torch.complex(x.double()[..., :half], x.double()[..., half:])
    turned = pairs * torch.polar(torch.ones_like(angles), angles)[:, None]
    return torch.cat([turned.real, turned.imag], -1)


def turns(tokens: int, width: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(angles of which cos and sin are exact in `dtype` as far as the test goes, cos, sin) as `rope` takes them."""
    angles = torch.rand(tokens, width // 2, generator=torch.Generator().manual_seed(5), dtype=torch.float64) * 6
    cos, sin = angles.cos().to(dtype), angles.sin().to(dtype)
    return angles, torch.cat([cos, cos], -1)[:, None], torch.cat([-sin, sin], -1)[:, None]


def test_the_door_leads_here() -> None:
    assert kernels.select("cuda") is ops
    missing = [
        name for name in vars(kernels.Kernels) if not name.startswith("_") and not callable(getattr(ops, name, None))
    ]
    assert not missing


def test_without_triton_the_door_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    from radixrt.errors import StartupError

    monkeypatch.setattr(kernels, "find_spec", lambda name: None)
    with pytest.raises(StartupError, match="pip install"):
        kernels.select("cuda")


@pytest.mark.parametrize("shape", [(1, 48), (7, 576), (5, 3, 16), (2, 23), (1, 2049), (0, 8)])
def test_rms_norm(dtype: torch.dtype, shape: tuple[int, ...], guards: Guards) -> None:
    x, weight = guards.put(random(*shape, dtype=dtype) * 3), guards.put(random(shape[-1], dtype=dtype, seed=1))
    assert_near(ops.rms_norm(x, weight, 1e-5), norm64(x, weight, 1e-5))


def test_rms_norm_of_a_slice_of_heads(dtype: torch.dtype, guards: Guards) -> None:
    whole, weight = guards.put(random(5, 7, 80, dtype=dtype)), guards.put(random(80, dtype=dtype, seed=1))
    assert_near(ops.rms_norm(whole[:, 2:5], weight, 1e-6), norm64(whole[:, 2:5], weight, 1e-6))


@pytest.mark.parametrize("shape", [(1, 64), (9, 96), (0, 16)])
def test_add_rms_norm(dtype: torch.dtype, shape: tuple[int, int], guards: Guards) -> None:
    x, weight = guards.put(random(*shape, dtype=dtype)), guards.put(random(shape[1], dtype=dtype, seed=2))
    residual = guards.put(random(*shape, dtype=dtype, seed=1))
    total = x + residual
    normed, new_residual = ops.add_rms_norm(x, residual, weight, 1e-5)
    assert torch.equal(new_residual, total)
    assert_near(normed, norm64(total, weight, 1e-5))


@pytest.mark.parametrize(("tokens", "inner"), [(1, 24), (6, 1100), (0, 8)])
@pytest.mark.parametrize("gelu", [False, True])
def test_gates(dtype: torch.dtype, tokens: int, inner: int, gelu: bool, guards: Guards) -> None:
    gate_up = guards.put(random(tokens, 2 * inner, dtype=dtype) * 4)
    gate, up = gate_up.double().chunk(2, -1)
    if gelu:
        assert_near(ops.gelu_mul(gate_up), torch.nn.functional.gelu(gate, approximate="tanh") * up)
    else:
        assert_near(ops.silu_mul(gate_up), gate / (1 + torch.exp(-gate)) * up)


def test_gates_of_extreme_values() -> None:
    gate_up = torch.tensor([[-3e4, 3e4, 0.0, -90.0, 1.0, 2.0, 3.0, 4.0]])
    torch.testing.assert_close(ops.silu_mul(gate_up), torch.tensor([[0.0, 6e4, 0.0, 0.0]]))
    torch.testing.assert_close(ops.gelu_mul(gate_up), torch.tensor([[0.0, 6e4, 0.0, 0.0]]))


@pytest.mark.parametrize(("tokens", "heads", "width"), [(1, 1, 64), (5, 9, 80), (3, 2, 256), (0, 2, 8)])
def test_rope(dtype: torch.dtype, tokens: int, heads: int, width: int, guards: Guards) -> None:
    angles, cos, sin = turns(tokens, width, dtype)
    x = guards.put(random(tokens, heads + 2, width, dtype=dtype))[:, :heads]
    assert_near(ops.rope(x, guards.put(cos), guards.put(sin)), rotate64(x, angles))


def test_write_kv_touches_nothing_else(dtype: torch.dtype, guards: Guards) -> None:
    kv = guards.put(random(2, 3, 11, 96, dtype=dtype))
    before, new = kv.clone(), guards.put(random(4, 9, 96, dtype=dtype, seed=1))
    slots = guards.put(torch.tensor([10, 0, 3, 7]))
    ops.write_kv(new[:, 3:6], new[:, 6:], kv[0], kv[1], slots)
    before[0][:, slots], before[1][:, slots] = new[:, 3:6].transpose(0, 1), new[:, 6:].transpose(0, 1)
    assert torch.equal(kv, before)


@pytest.mark.parametrize("tokens", [0, 1, 5])
@pytest.mark.parametrize("normed", [False, True])
def test_rope_write(dtype: torch.dtype, tokens: int, normed: bool, guards: Guards) -> None:
    heads, kv_heads, width = 4, 2, 80
    angles, cos, sin = turns(tokens, width, dtype)
    qkv = guards.put(random(tokens, heads + 2 * kv_heads, width, dtype=dtype))
    norms = [guards.put(random(width, dtype=dtype, seed=seed)) if normed else None for seed in (1, 2)]
    kv = guards.put(random(2, kv_heads, 9, width, dtype=dtype, seed=3))
    slots = guards.put(torch.tensor([8, 0, 4, 2, 5])[:tokens])
    q, k, v = qkv.double().split([heads, kv_heads, kv_heads], 1)
    if normed:
        q, k = norm64(q, norms[0], 1e-6), norm64(k, norms[1], 1e-6)
    q, k, kept = rotate64(q, angles), rotate64(k, angles), kv.clone()
    out = ops.rope_write(
        qkv, guards.put(cos), guards.put(sin), kv[0], kv[1], slots, q_norm=norms[0], k_norm=norms[1], eps=1e-6
    )
    for found, truth in zip(out, (q, k, v), strict=True):
        assert_near(found, truth)
    kept[0][:, slots], kept[1][:, slots] = out[1].transpose(0, 1), out[2].transpose(0, 1)
    assert torch.equal(kv, kept)


def test_long_steps_take_several_tokens_a_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("radixrt.kernels.triton.rotary._LONG", 3)
    test_rope_write(torch.float32, 5, True, Guards())
    test_write_kv_touches_nothing_else(torch.float32, Guards())
