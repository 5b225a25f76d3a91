"""The pool in e4m3, its slots moved between tiers, and the configurations that are kept on disk."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import triton
import triton.language as tl
from kernels_close import DTYPES, Guards, assert_near, poisoned_outputs, random
from kernels_trees import Inputs, inputs
from test_triton_attention import make, truth

from radixrt.kernels import triton as ops
from radixrt.kernels.triton import tiers, tuning
from radixrt.kernels.triton.fp8 import decode, encode

pytestmark = pytest.mark.filterwarnings("ignore:overflow encountered", "ignore:invalid value")


@triton.jit
def _round_trip(x, bits, back, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    code = encode(tl.load(x + at))
    tl.store(bits + at, code)
    tl.store(back + at, decode(code).to(tl.float32) * 256.0)


def round_trip(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    bits, back = torch.zeros(len(x), dtype=torch.uint8), torch.zeros(len(x))
    _round_trip[(1,)](x, bits, back, BLOCK=len(x))
    return bits, back


def test_e4m3_is_that_of_torch() -> None:
    """Every number that it has, the middles between neighbours (ties to even), just beside them, and random ones."""
    codes = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    exact = codes[~codes.isnan()].sort().values
    middles = (exact[1:] + exact[:-1]) / 2
    x = torch.cat([exact, middles, middles * 1.0001, middles * 0.9999, random(1024) * 0.01, random(1024) * 100])
    x = torch.nn.functional.pad(x, (0, 4096 - len(x)))
    bits, back = round_trip(x)
    expected = x.to(torch.float8_e4m3fn)
    assert torch.equal(back, expected.float())
    assert torch.equal(bits & 0x7F, expected.view(torch.uint8) & 0x7F)


def test_e4m3_saturates_and_keeps_nan() -> None:
    _, back = round_trip(torch.tensor([1e9, -1e9, float("inf"), float("nan")]))
    assert back[:3].tolist() == [448.0, -448.0, 448.0] and back[3].isnan()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_attention_over_a_pool_in_fp8(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exact for what the pool holds: the truth reads the numbers that e4m3 and the scales stand for."""
    tree = make([(9, 1), (3, 4)], [(70, 0, 2)])
    x = inputs(tree, 4, 2, 64, dtype, 0)
    k_scale, v_scale = torch.tensor([0.01, 0.02]), torch.tensor([0.03, 0.005])
    guards = Guards()
    stored = [
        guards.put((pool.float() / scale[:, None, None]).to(torch.float8_e4m3fn))
        for pool, scale in ((x.keys, k_scale), (x.values, v_scale))
    ]
    with poisoned_outputs(monkeypatch, guards):
        out = ops.tree_attention(x.q, x.k, x.v, *stored, tree.layout(), 0.125, k_scale=k_scale, v_scale=v_scale)
    guards.check()
    meant = [s.float() * scale[:, None, None] for s, scale in zip(stored, (k_scale, v_scale), strict=True)]
    assert_near(out, truth(tree.layout(), Inputs(x.q, x.k, x.v, *meant), 0.125))


@pytest.mark.parametrize("fused", [False, True])
def test_writes_to_a_pool_in_fp8(fused: bool) -> None:
    k_scale, v_scale = torch.tensor([0.01, 0.02]), torch.tensor([0.03, 0.005])
    qkv, slots = random(3, 8, 16), torch.tensor([4, 0, 2])
    pool = torch.zeros(2, 2, 6, 16).to(torch.float8_e4m3fn)
    if fused:
        ones, zeros = torch.ones(3, 1, 16), torch.zeros(3, 1, 16)
        ops.rope_write(qkv, ones, zeros, pool[0], pool[1], slots, k_scale=k_scale, v_scale=v_scale)
    else:
        ops.write_kv(qkv[:, 4:6], qkv[:, 6:], pool[0], pool[1], slots, k_scale, v_scale)
    for part, scale, new in ((pool[0], k_scale, qkv[:, 4:6]), (pool[1], v_scale, qkv[:, 6:])):
        expected = (new.transpose(0, 1) / scale[:, None, None]).to(torch.float8_e4m3fn)
        assert torch.equal(part.view(torch.uint8)[:, slots], expected.view(torch.uint8))
        assert not part.view(torch.uint8)[:, [1, 3, 5]].any()


def test_scales_and_pools_go_together() -> None:
    pool, new = torch.zeros(2, 2, 6, 16), random(3, 2, 16)
    with pytest.raises(ValueError, match="scale"):
        ops.write_kv(new, new, *pool.to(torch.float8_e4m3fn), torch.arange(3))
    with pytest.raises(ValueError, match="scale"):
        ops.write_kv(new, new, *pool, torch.arange(3), torch.ones(2), torch.ones(2))


@pytest.mark.parametrize("dtype", [*DTYPES, torch.float8_e4m3fn], ids=str)
@pytest.mark.parametrize("slots", [[], [5], [8, 0, 3, 7, 1]], ids=len)
def test_tiers(dtype: torch.dtype, slots: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    guards, index = Guards(), torch.tensor(slots, dtype=torch.int64)
    pool = guards.put(random(3, 2, 2, 9, 80).to(dtype))
    bits = pool.view(torch.uint8) if dtype == torch.float8_e4m3fn else pool
    before = bits.clone()
    with poisoned_outputs(monkeypatch, guards):
        staged = tiers.gather_kv(pool, guards.put(index))
    assert torch.equal(staged.view(bits.dtype), before[:, :, :, index])
    bits.zero_()
    tiers.scatter_kv(staged, guards.put(index), pool)
    kept = torch.zeros_like(before)
    kept[:, :, :, index] = before[:, :, :, index]
    assert torch.equal(bits, kept)
    others = torch.tensor([2, 4, 6])[: len(slots)]
    tiers.copy_kv(pool, index[: len(others)], others)
    kept[:, :, :, others] = kept[:, :, :, index[: len(others)]]
    assert torch.equal(bits, kept)
    guards.check()


CONFIGS = [tuning.Config({"keys": size}) for size in (16, 32, 64)]


def test_the_fastest_configuration_is_kept_on_disk(tmp_path: Path) -> None:
    path, launched = tmp_path / "new" / "device.json", []

    def measure(call: object) -> float:
        call()  # type: ignore[operator]
        if launched[-1].sizes["keys"] == 16:
            raise RuntimeError("out of shared memory")
        return float(launched[-1].sizes["keys"])

    assert tuning.Choices(path).choose("attention 16", CONFIGS, launched.append, measure) == CONFIGS[1]
    assert launched == CONFIGS and json.loads(path.read_text()) == {"attention 16": str(CONFIGS[1])}
    # A new process reads it, and measures what it does not know.
    again = tuning.Choices(path)
    assert again.choose("attention 16", CONFIGS, launched.append, measure) == CONFIGS[1] and len(launched) == 3
    again.choose("product", CONFIGS[1:], launched.append, measure)
    assert len(launched) == 5 and len(json.loads(path.read_text())) == 2


@pytest.mark.parametrize("content", ["", "{", "[1]", '{"attention 16": 3}', '{"attention 16": "keys=7"}'])
def test_a_broken_file_is_measured_anew(tmp_path: Path, content: str) -> None:
    path = tmp_path / "device.json"
    path.write_text(content)
    assert tuning.Choices(path).choose("attention 16", CONFIGS, lambda config: None, lambda call: 1.0) == CONFIGS[0]


def test_a_device_that_refuses_everything_says_why(tmp_path: Path) -> None:
    def refuse(call: object) -> float:
        raise RuntimeError("out of shared memory")

    with pytest.raises(RuntimeError, match="shared memory"):
        tuning.Choices(tmp_path / "device.json").choose("x", CONFIGS, lambda config: None, refuse)
