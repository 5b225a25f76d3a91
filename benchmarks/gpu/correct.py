"""Every Triton kernel against plain float64, on random ragged shapes, its outputs poisoned first."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from gpu.variants import Variants
from radixrt.kernels import AttentionLayout
from radixrt.kernels import torch as plain
from radixrt.kernels import triton as ops
from radixrt.kernels.triton import packed
from radixrt.kernels.triton.moe import route
from radixrt.kernels.triton.sampling import Rules
from radixrt.runner.sampler import Draw, sample

MOST_S = 120.0
LIMIT = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1e-2}


@contextmanager
def poisoned() -> Iterator[None]:
    """New memory is full of NaN: what a kernel does not write shows."""
    real = torch.empty

    def empty(*args: Any, **options: Any) -> torch.Tensor:
        made = real(*args, **options)
        return made.fill_(float("nan")) if made.is_floating_point() else made.fill_(-77)

    torch.empty = empty  # type: ignore[assignment]
    try:
        yield
    finally:
        torch.empty = real


def error(out: torch.Tensor, truth: torch.Tensor) -> float:
    """|out - truth| / |truth|; infinite where a shape is wrong or a number is none."""
    if out.shape != truth.shape:
        return float("inf")
    value = float((out.double() - truth.double()).norm() / truth.double().norm().clamp(min=1e-30))
    return value if value == value else float("inf")


def layout(rng: np.random.Generator, rows: int, longest: int, new: int, device: str, shared: int) -> AttentionLayout:
    """Ragged rows over a shared span, each with up to `longest` private slots and `new` new tokens."""
    news = rng.integers(1, new + 1, rows)
    private = rng.integers(0, longest + 1, rows)
    private[0] = 0
    slots = rng.permutation(shared + int(private.sum() + news.sum()))
    spans, own, fresh = np.split(slots, [shared, shared + int(private.sum())])
    first = shared if rows > 1 else 0
    positions = np.concatenate([first + p + np.arange(n) for p, n in zip(private, news, strict=True)])
    return AttentionLayout(
        new_lens=news, slots=fresh, positions=positions, private_lens=private, private_slots=own,
        spans=np.array([[0, shared, 0, rows]] if rows > 1 and shared else [], np.int64).reshape(-1, 4),
        span_slots=spans, device=device,
    )  # fmt: skip


def attention(q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, step: AttentionLayout, scale: float,
              window: int | None, cap: float | None) -> torch.Tensor:  # fmt: skip
    """The definition, a row at a time in float64."""
    group = q.shape[1] // keys.shape[0]
    out = torch.zeros(q.shape, dtype=torch.float64, device=q.device)
    for row in range(step.num_rows):
        first, end = int(step.starts[row]), int(step.starts[row + 1])
        seen = torch.from_numpy(np.concatenate([step.context(row), step.new_slots(row)])).to(q.device)
        k, v = (x[:, seen].double().repeat_interleave(group, 0) for x in (keys, values))
        scores = torch.einsum("thd,hnd->htn", q[first:end].double(), k) * scale
        if cap is not None:
            scores = cap * torch.tanh(scores / cap)
        place = torch.arange(len(seen), device=q.device)[None]
        own = len(seen) - (end - first) + torch.arange(end - first, device=q.device)[:, None]
        allowed = (place <= own) & (place > own - (window or 1 << 40))
        weights = torch.softmax(scores.masked_fill(~allowed, -torch.inf), -1)
        out[first:end] = torch.einsum("htn,hnd->thd", weights, v)
    return out


def cases(device: str, dtype: torch.dtype, small: bool, seed: int) -> Iterator[tuple[str, Callable[[], float]]]:
    """(name, what runs it and gives its relative error)."""
    rng, generator = np.random.default_rng(seed), torch.Generator(device).manual_seed(seed)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, device=device).to(dtype)

    tokens, hidden = (5, 48) if small else (int(rng.integers(1, 300)), 4096)
    x, residual, weight = random(tokens, hidden), random(tokens, hidden), random(hidden)
    wide = [t.double() for t in (x, residual, weight)]
    yield "rms_norm", lambda: error(ops.rms_norm(x, weight, 1e-6), plain.rms_norm(wide[0], wide[2], 1e-6))

    def add_norm() -> float:
        normed, total = ops.add_rms_norm(x, residual.clone(), weight, 1e-6)
        truth = x.double() + residual.double()
        return max(error(normed, plain.rms_norm(truth, wide[2], 1e-6)), error(total, truth))

    yield "add_rms_norm", add_norm
    yield "silu_mul", lambda: error(ops.silu_mul(x), plain.silu_mul(wide[0]))
    gate, up = wide[0].chunk(2, -1)
    yield "gelu_mul", lambda: error(ops.gelu_mul(x), F.gelu(gate, approximate="tanh") * up)

    heads, kv_heads, width = (4, 2, 16) if small else (32, 8, 128)
    angles = torch.rand(tokens, width // 2, generator=generator, device=device) * 6
    cos, sin = torch.cat([angles.cos()] * 2, -1)[:, None], torch.cat([-angles.sin(), angles.sin()], -1)[:, None]
    turn = cos.to(dtype), sin.to(dtype)
    qkv, norms = random(tokens, heads + 2 * kv_heads, width), (random(width), random(width))
    pool = [random(kv_heads, tokens + 3, width) for _ in range(2)]
    places = torch.randperm(tokens + 3, generator=generator, device=device)[:tokens]

    def rope_write() -> float:
        q, k, v = (part.double() for part in qkv.split([heads, kv_heads, kv_heads], 1))
        q, k = plain.rms_norm(q, norms[0].double(), 1e-6), plain.rms_norm(k, norms[1].double(), 1e-6)
        q, k = (plain.rope(part, turn[0].double(), turn[1].double()) for part in (q, k))
        found = ops.rope_write(qkv.clone(), *turn, *pool, places, q_norm=norms[0], k_norm=norms[1], eps=1e-6)
        kept = error(pool[0][:, places].transpose(0, 1), k), error(pool[1][:, places].transpose(0, 1), v)
        return max(error(found[0], q), *kept)

    yield "rope_write", rope_write

    variants: list[tuple[str, int, int, int | None, float | None]] = [
        ("tree_attention", 3, 3, None, None), ("decode_attention", 3, 1, None, None),
        ("extend_attention", 2, 9, None, None), ("attention, window", 3, 3, 7, None),
        ("attention, soft cap", 3, 3, None, 20.0), ("attention, one row", 1, 1, None, None),
    ]  # fmt: skip
    for name, rows, new, window, cap in variants:
        rows, new = (rows, new) if small or rows == 1 else (rows * 8, 1 if new == 1 else new * 13)
        step = layout(rng, rows, 9 if small else 900, new, device, 66 if small else 1500)
        used = len(step.slots) + len(step.private_slots) + len(step.span_slots)
        q, k, v = random(step.num_tokens, heads, width), *(random(step.num_tokens, kv_heads, width) for _ in "kv")
        keys, values = random(kv_heads, used, width), random(kv_heads, used, width)

        def attend(name: str = name, step: AttentionLayout = step, q: torch.Tensor = q, k: torch.Tensor = k,
                   v: torch.Tensor = v, keys: torch.Tensor = keys, values: torch.Tensor = values,
                   window: int | None = window, cap: float | None = cap) -> float:  # fmt: skip
            scale, options = width**-0.5, {"soft_cap": cap}
            if name == "decode_attention":
                out = ops.decode_attention(q, keys, values, step, scale, window, **options)
            elif name == "extend_attention":
                out = ops.extend_attention(q, keys, values, step, scale, window, **options)
            else:
                out = ops.tree_attention(q, k, v, keys, values, step, scale, window, **options)
            return error(out, attention(q, keys, values, step, scale, window, cap))

        yield name, attend

    matrix = random(96 if small else 4096, 64 if small else 4096)
    for rows in (1, 5) if small else (1, 17, 200):
        y = random(rows, matrix.shape[1])
        forms = {"int4": packed.quantize_int(matrix, 4), "int8": packed.quantize_int(matrix, 8),
                 "fp8": packed.quantize_fp8(matrix), "fp8, blocks": packed.quantize_fp8(matrix, 32, 32)}  # fmt: skip
        for form, held in forms.items():
            yield (
                f"product, {form}, {rows} rows",
                lambda y=y, held=held: error(ops.packed_product(y, held), y.double() @ packed.dense(held).double().T),
            )

    experts, k, inner, outer = (4, 2, 32, 32) if small else (32, 8, 768, 2048)
    gate_up, down = random(experts, 2 * inner, outer) * 0.1, random(experts, outer, inner) * 0.1
    z, router = random(tokens, outer), random(tokens, experts)

    def moe() -> float:
        chosen, weights = route(router, k)
        truth = torch.zeros(z.shape, dtype=torch.float64, device=device)
        for token, (line, shares) in enumerate(zip(chosen.tolist(), weights.double(), strict=True)):
            for expert, share in zip(line, shares, strict=True):
                hidden_ = plain.silu_mul((gate_up[expert].double() @ z[token].double())[None])
                truth[token] += share * (hidden_ @ down[expert].double().T)[0]
        # The sums in between are rounded, so the limit is that of two roundings.
        return error(ops.moe_mlp(z, router, gate_up, down, k), truth) / 2

    yield "moe_mlp", moe

    lines, vocabulary = (3, 300) if small else (64, 128256)
    logits = random(lines, vocabulary) * 3
    draw = Draw(np.linspace(0, 1.2, lines).astype(np.float32), np.arange(lines) % 3 * 20, np.full(lines, 0.9),
                np.zeros(lines), rng.random(lines))  # fmt: skip

    def sampled() -> float:
        rules = Rules(
            *(
                torch.from_numpy(a).to(device)
                for a in (
                    draw.temperature,
                    draw.top_k.astype(np.int32),
                    draw.top_p,
                    draw.min_p.astype(np.float32),
                    draw.uniforms,
                )
            )
        )
        found = ops.sample(logits, rules)
        truth = sample(logits.float().cpu(), draw)
        # Sums round otherwise: at most one in 32 draws may fall on the other side of an edge.
        wrong = int((found.tokens.cpu() != truth).sum())
        lse = error(found.lse, torch.logsumexp(logits.double(), -1))
        return float("inf") if wrong > -(-lines // 32) else lse

    yield "sample", sampled

    cache, held = random(2, 2, kv_heads, 40, width).view(2, 2, kv_heads, 40, width), torch.randperm(40)[:9].to(device)
    yield "gather_kv", lambda: error(ops.gather_kv(cache, held), cache[:, :, :, held])

    def scatter() -> float:
        staged, target = ops.gather_kv(cache, held), torch.zeros_like(cache)
        ops.scatter_kv(staged, held, target)
        return error(target[:, :, :, held], cache[:, :, :, held])

    yield "scatter_kv", scatter
    yield from Variants(device, dtype, small, random, layout, error, attention, seed).cases()


def check(device: str, small: bool, dtypes: list[torch.dtype], rounds: int) -> list[dict[str, Any]]:
    """One entry a kernel and dtype: the worst error of all rounds, of which no new one begins after MOST_S."""
    began = perf_counter()
    worst: dict[tuple[str, str], float] = {}
    limits: dict[tuple[str, str], float] = {}
    for seed in range(rounds):
        if seed and perf_counter() - began > MOST_S:
            break
        for dtype in dtypes:
            for name, run in cases(device, dtype, small, seed):
                key = name, str(dtype).removeprefix("torch.")
                try:
                    with poisoned():
                        found = run()
                except Exception as problem:  # noqa: BLE001  one kernel that does not run must not hide the others
                    print(f"{name} {dtype}: {type(problem).__name__}: {str(problem)[:300]}", flush=True)
                    found = float("inf")
                worst[key] = max(worst.get(key, 0.0), found)
                limits[key] = LIMIT[dtype]
    return [
        {
            "kernel": name,
            "dtype": dtype,
            "error": value,
            "limit": limits[name, dtype],
            "ok": value < limits[name, dtype],
        }
        for (name, dtype), value in worst.items()
    ]
