"""How fast each Triton kernel is, in the shapes of an 8B model, beside ceilings measured on the same machine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from time import perf_counter
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from radixrt.kernels import AttentionLayout
from radixrt.kernels import triton as ops
from radixrt.kernels.triton import packed
from radixrt.kernels.triton.sampling import Rules


def clock(work: Callable[[], Any], device: str) -> float:
    """Seconds of one call: the median of many, the cache flushed in between; on a CPU one call."""
    if device == "cpu":
        begin = perf_counter()
        work()
        return perf_counter() - begin
    from triton.testing import do_bench

    return float(do_bench(work, warmup=10, rep=50, return_mode="median")) / 1e3


def measure(device: str, small: bool) -> tuple[dict[str, float], list[dict[str, Any]]]:
    """({copy GB/s, product TFLOP/s}, one entry a kernel)."""
    dtype = torch.bfloat16
    ceilings = _ceilings(device, small)
    lines: list[dict[str, Any]] = []

    def add(kernel: str, work: Callable[[], Any], size: float, flops: float = 0.0,
            instead: Callable[[], Any] | None = None,
            flashinfer: Callable[[], Any] | None = None) -> float:  # fmt: skip
        seconds = clock(work, device)
        gbps, tflops = size / seconds / 1e9, flops / seconds / 1e12
        lines.append({
            "kernel": kernel, "ms": seconds * 1e3, "gbps": gbps, "tflops": tflops,
            "share": max(gbps / ceilings["copy GB/s"], tflops / ceilings["bf16 product TFLOP/s"]),
            "torch_ms": None if instead is None else clock(instead, device) * 1e3,
            "flashinfer_ms": None if flashinfer is None else clock(flashinfer, device) * 1e3,
        })  # fmt: skip
        return seconds

    hidden, heads, kv_heads, width = (32, 4, 2, 16) if small else (4096, 32, 8, 128)
    rows, context, inner, many = (2, 70, 32, 4) if small else (64, 4096, 14336, 512)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, device=device, dtype=dtype)

    x, residual, weight = random(many, hidden), random(many, hidden), random(hidden)
    add("rms_norm", lambda: ops.rms_norm(x, weight, 1e-6), 2 * x.nbytes, 0.0,
        lambda: F.rms_norm(x, (hidden,), weight, 1e-6))  # fmt: skip
    add("add_rms_norm", lambda: ops.add_rms_norm(x, residual, weight, 1e-6), 4 * x.nbytes)
    wide = random(many, 2 * inner)
    add("silu_mul", lambda: ops.silu_mul(wide), 1.5 * wide.nbytes)
    add("gelu_mul", lambda: ops.gelu_mul(wide), 1.5 * wide.nbytes)
    qkv, turn = random(many, heads + 2 * kv_heads, width), random(many, 1, width)
    pool = [random(kv_heads, many, width) for _ in range(2)]
    places = torch.arange(many, device=device)
    add("rope_write", lambda: ops.rope_write(qkv, turn, turn, *pool, places), 2 * qkv.nbytes)

    add("rope", lambda: ops.rope(qkv[:, : heads + kv_heads], turn, turn), 2 * qkv[:, : heads + kv_heads].nbytes)
    k, v = qkv[:, heads : heads + kv_heads], qkv[:, heads + kv_heads :]
    add("write_kv", lambda: ops.write_kv(k, v, *pool, places), 2 * (k.nbytes + v.nbytes))

    _attention(add, random, device, rows, context, heads, kv_heads, width, small)

    matrix = random(inner, hidden)
    for count in (1, 16):
        y = random(count, hidden)
        size = {"int4": 0.625, "int8": 1.125, "fp8": 1.0}
        forms = {"int4": packed.quantize_int(matrix, 4), "int8": packed.quantize_int(matrix, 8),
                 "fp8": packed.quantize_fp8(matrix)}  # fmt: skip
        for form, held in forms.items():
            add(f"product {form}, {count} rows", lambda y=y, held=held: ops.packed_product(y, held),
                size[form] * matrix.numel(), 2 * count * matrix.numel(), lambda y=y: F.linear(y, matrix))  # fmt: skip
    experts, k, narrow, outer = (4, 2, 32, 64) if small else (128, 8, 768, 2048)
    gate_up, down = random(experts, 2 * narrow, outer), random(experts, outer, narrow)
    for count in (1, rows):
        z, router = random(count, outer), random(count, experts)
        read = experts * (1 - (1 - k / experts) ** count)  # experts that somebody chose, as expected
        add(f"moe_mlp, {count} rows", lambda z=z, router=router: ops.moe_mlp(z, router, gate_up, down, k),
            read * 3 * narrow * outer * 2, 6 * count * k * narrow * outer)  # fmt: skip
    logits = torch.randn(rows, 300 if small else 128256, device=device)
    fill = {"temperature": 0.8, "top_k": 50, "top_p": 0.9, "min_p": 0.0, "uniforms": 0.5}
    kinds = {"top_k": torch.int32, "top_p": torch.float64, "uniforms": torch.float64}
    rules = Rules(**{name: torch.full((rows,), value, dtype=kinds.get(name, torch.float32), device=device)
                     for name, value in fill.items()})  # fmt: skip
    add("sample, top_k and top_p", lambda: ops.sample(logits, rules), logits.nbytes,
        0.0, lambda: torch.multinomial(torch.softmax(logits, -1), 1))  # fmt: skip
    numbers = torch.arange(rows, device=device)
    noisy = replace(rules, uniforms=None, top_k=torch.zeros_like(rules.top_k), top_p=torch.ones_like(rules.top_p),
                    seeds=numbers, positions=numbers)  # fmt: skip
    add("sample, Gumbel", lambda: ops.sample(logits, noisy), logits.nbytes)
    cache = random(2 if small else 32, 2, kv_heads, 100 if small else 8192, width)
    held = torch.randperm(cache.shape[3], device=device)[: cache.shape[3] // 4]
    moved = cache.nbytes / 2
    add("gather_kv", lambda: ops.gather_kv(cache, held), moved, 0.0, lambda: cache[:, :, :, held])
    staged, half = ops.gather_kv(cache, held), len(held) // 2
    add("scatter_kv", lambda: ops.scatter_kv(staged, held, cache), moved)
    add("copy_kv", lambda: ops.copy_kv(cache, held[:half], held[half : 2 * half]), moved / 2)
    return ceilings, lines


def _ceilings(device: str, small: bool) -> dict[str, float]:
    block = torch.empty(1 << (16 if small else 30), dtype=torch.uint8, device=device)
    other = torch.empty_like(block)
    side = 64 if small else 8192
    a, b = (torch.randn(side, side, device=device).to(torch.bfloat16) for _ in range(2))
    return {
        "copy GB/s": 2 * block.numel() / clock(lambda: other.copy_(block), device) / 1e9,
        "bf16 product TFLOP/s": 2 * side**3 / clock(lambda: a @ b, device) / 1e12,
    }


def _attention(add: Callable[..., float], random: Callable[..., torch.Tensor], device: str, rows: int, context: int,
               heads: int, kv_heads: int, width: int, small: bool) -> None:  # fmt: skip
    """Decode over contexts of one's own, over one that is shared, and prefill."""
    token = 2 * kv_heads * width * 2  # bytes of one slot, keys and values
    scale = width**-0.5
    total = rows * (context + 1)
    keys, values = random(kv_heads, total, width), random(kv_heads, total, width)
    q = random(rows, heads, width)
    new = [random(rows, kv_heads, width) for _ in range(2)]

    def layout(**arrays: np.ndarray) -> AttentionLayout:
        given = {"new_lens": np.ones(rows, np.int64), "slots": np.arange(rows) + rows * context,
                 "positions": np.full(rows, context), "private_lens": np.zeros(rows, np.int64),
                 "private_slots": np.zeros(0, np.int64), "spans": np.zeros((0, 4), np.int64),
                 "span_slots": np.zeros(0, np.int64)}  # fmt: skip
        return AttentionLayout(**(given | arrays), device=device)

    own = layout(private_lens=np.full(rows, context), private_slots=np.arange(rows * context))
    dense = [part[:, : rows * context].view(kv_heads, rows, context, width).transpose(0, 1) for part in (keys, values)]
    queries = q[:, :, None]
    work = 4 * rows * context * heads * width
    add(f"decode attention, {rows} x {context}", lambda: ops.decode_attention(q, keys, values, own, scale),
        rows * context * token, work,
        lambda: F.scaled_dot_product_attention(queries, *dense, enable_gqa=True, scale=scale),
        _flashinfer(q, *new, keys, values, own, scale))  # fmt: skip
    one = layout(private_lens=np.full(rows, context), private_slots=np.tile(np.arange(context), rows))
    scales = {name: torch.full((kv_heads,), 0.02, device=device) for name in ("k_scale", "v_scale")}
    narrow = [(part.float() / 0.02).to(torch.float8_e4m3fn) for part in (keys, values)]
    add(f"decode attention, fp8 pool, {rows} x {context}",
        lambda: ops.decode_attention(q, *narrow, own, scale, **scales), rows * context * token / 2, work)  # fmt: skip
    each = add(f"one prefix, row by row, {rows} x {context}",
               lambda: ops.decode_attention(q, keys, values, one, scale), rows * context * token, work, None,
               _flashinfer(q, *new, keys, values, one, scale))  # fmt: skip
    shared = layout(spans=np.array([[0, context, 0, rows]]), span_slots=np.arange(context))
    tree = add(f"one prefix, tree attention, {rows} x {context}",
               lambda: ops.tree_attention(q, *new, keys, values, shared, scale), context * token, work, None,
               _flashinfer(q, *new, keys, values, shared, scale))  # fmt: skip
    print(f"tree attention over one prefix is {each / tree:.1f} times as fast as row by row", flush=True)
    leaves = 4 if small else 64  # options of one row, each a chain of four tokens: a trie of a select
    parents = np.arange(-1, 4 * leaves - 1)
    parents[::4] = -1
    trie = layout(new_lens=np.array([4 * leaves]), slots=np.arange(4 * leaves) + context,
                  positions=np.tile(np.arange(context, context + 4), leaves), private_lens=np.array([context]),
                  private_slots=np.arange(context), parents=parents)  # fmt: skip
    many, own_kv = random(4 * leaves, heads, width), [random(4 * leaves, kv_heads, width) for _ in range(2)]
    add(f"tree attention, {leaves} options of 4 below {context}",
        lambda: ops.tree_attention(many, *own_kv, keys, values, trie, scale),
        context * token, 4 * 4 * leaves * context * heads * width)  # fmt: skip
    count = 16 if small else 2048
    prompt = layout(new_lens=np.array([count]), slots=np.arange(count), positions=np.arange(count),
                    private_lens=np.zeros(1, np.int64))  # fmt: skip
    long, fresh = random(count, heads, width), [part[:, :count].transpose(0, 1) for part in (keys, values)]
    wide = [part[None] for part in (long.transpose(0, 1), keys[:, :count], values[:, :count])]
    add(f"extend attention, prompt of {count}",
        lambda: ops.tree_attention(long, *fresh, keys, values, prompt, scale),
        count * token, 2 * count * count * heads * width,
        lambda: F.scaled_dot_product_attention(*wide, is_causal=True, enable_gqa=True, scale=scale),
        _flashinfer(long, *fresh, keys, values, prompt, scale))  # fmt: skip


def _flashinfer(*arguments: Any) -> Callable[[], Any] | None:
    """FlashInfer's tree attention, planned, where it is installed and runs."""
    if find_spec("flashinfer") is None:
        return None
    try:
        from radixrt.kernels import flashinfer

        flashinfer.tree_attention(*arguments)
    except Exception as problem:  # noqa: BLE001  what it cannot do here must not end the measurement
        print(f"FlashInfer does not run here: {type(problem).__name__}: {str(problem)[:300]}", flush=True)
        return None
    return lambda: flashinfer.tree_attention(*arguments)
