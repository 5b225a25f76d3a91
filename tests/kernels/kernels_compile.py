"""Compiles every kernel for a GPU that is not there: `python kernels_compile.py sm90 | sm80 | gfx942` (minutes).

A driver that only names its device stands in for the real one, and every launch compiles and stops there. What the
interpreter cannot see shows here: types that differ between branches, operations the compiler lacks, tiles that do not
fit into shared memory.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import torch
from triton.backends.compiler import GPUTarget
from triton.runtime import driver, jit

TARGETS = {
    "sm90": (GPUTarget("cuda", 90, 32), 227 * 1024),
    "sm80": (GPUTarget("cuda", 80, 32), 163 * 1024),
    "gfx942": (GPUTarget("hip", "gfx942", 64), 64 * 1024),
}


class NoDevice:
    """As much of a driver as compiling asks for."""

    def __init__(self, target: GPUTarget) -> None:
        self._target = target

    def get_current_target(self) -> GPUTarget:
        return self._target

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int = 0) -> int:
        return 0


def compile_all(name: str) -> dict[str, int]:
    """Kernel -> how many variants of it compiled. SystemExit where one needs more shared memory than the device has; of
    several configurations that is asked of the first, which must run anywhere (the others are passed over)."""
    target, shared = TARGETS[name]
    driver.set_active(NoDevice(target))
    launch, compiled = jit.JITFunction.run, {}
    others: list[None] = []

    def only_compile(self: Any, *args: Any, warmup: bool = False, **options: Any) -> Any:
        kernel = launch(self, *args, warmup=True, **options)
        if kernel.metadata.shared > shared and not others:
            raise SystemExit(f"{self.__name__} needs {kernel.metadata.shared} bytes of shared memory: {options}")
        compiled.setdefault(self.__name__, set()).add(kernel.hash)
        return kernel

    jit.JITFunction.run = only_compile
    call_all(others)
    return {kernel: len(variants) for kernel, variants in compiled.items()}


def call_all(others: list[None]) -> None:
    """Every operation in its variants; `others` is filled while a configuration that is not the first is launched."""
    from radixrt.kernels import triton as ops
    from radixrt.kernels.triton import moe, packed, plan, tuning

    def every(kernel: str, shapes: str, configs: Any, launch: Any) -> None:
        launch(configs[0])
        others.append(None)
        for config in configs[1:]:
            launch(config)
        others.clear()

    tuning.run = every
    plan.SHORTEST_CHUNK = 32
    for dtype, width in ((torch.bfloat16, 128), (torch.float16, 80), (torch.float32, 256)):
        x, weight = torch.randn(5, 96).to(dtype), torch.ones(width, dtype=dtype)
        ops.rms_norm(x, x[0], 1e-5), ops.add_rms_norm(x, x.clone(), x[0], 1e-5), ops.silu_mul(x), ops.gelu_mul(x)
        slots, scales = torch.arange(300), torch.ones(2)
        qkv, angles = torch.randn(300, 8, width).to(dtype), torch.randn(300, 1, width).to(dtype)
        pool = torch.zeros(2, 2, 700, width, dtype=dtype)
        for stored, extra in ((pool, {}), (pool.to(torch.float8_e4m3fn), {"k_scale": scales, "v_scale": scales})):
            for count in (300, 4):
                part, turn = qkv[:count], angles[:count]
                ops.rope(part, turn, turn)
                ops.write_kv(part[:, 4:6], part[:, 6:], *stored, slots[:count], **extra)
                ops.rope_write(part, turn, turn, *stored, slots[:count], q_norm=weight, k_norm=weight, **extra)
            for new, rows, tree in ((1, 1, False), (1, 9, False), (60, 2, False), (7, 1, True)):
                q = torch.randn(new * rows, 8, width).to(dtype)
                layout = step(rows, new, tree)
                ops.tree_attention(q, q, q, *stored, layout, 0.1, **extra)
                ops.tree_attention(q, q, q, *stored, layout, 0.1, 40, soft_cap=30.0, **extra)
        ops.scatter_kv(ops.gather_kv(pool[None], slots), slots, pool[None])
        matrix = torch.randn(128, 1024)
        for made in (
            packed.quantize_int(matrix, 8),
            packed.quantize_int(matrix, 4),
            packed.quantize_fp8(matrix, 64, 64),
        ):
            for rows in (1, 100):
                ops.packed_product(torch.randn(rows, 1024).to(dtype), made, matrix[:, 0].to(dtype))
        experts = [torch.randn(8, 128, 96), torch.randn(8, 96, 64)]
        ops.moe_mlp(x, torch.randn(5, 8), *(each.to(dtype) for each in experts), 2)
        stacked = [moe.Fp8Experts.stack([packed.quantize_fp8(one) for one in each]) for each in experts]
        ops.moe_mlp(x, torch.randn(5, 8), *stacked, 2)
        sample_all(torch.randn(3, 9000).to(dtype))


def step(rows: int, new: int, tree: bool) -> Any:
    """Rows of 70 private slots and `new` tokens under a span of 100."""
    from radixrt.kernels import AttentionLayout

    tokens = rows * new
    return AttentionLayout(
        new_lens=np.full(rows, new), slots=np.arange(tokens), positions=np.tile(np.arange(170, 170 + new), rows),
        private_lens=np.full(rows, 20), private_slots=np.arange(20 * rows) + tokens,
        spans=np.array([[0, 100, 0, rows]]), span_slots=np.arange(100) + 500,
        parents=np.tile(np.arange(-1, new - 1), rows) if tree else None,
    )  # fmt: skip


def sample_all(logits: torch.Tensor) -> None:
    from radixrt.kernels.triton.sampling import Rules, sample

    rows = len(logits)
    rules: dict[str, Any] = {
        "temperature": torch.ones(rows), "top_k": torch.ones(rows, dtype=torch.int32),
        "top_p": torch.ones(rows, dtype=torch.float64), "min_p": torch.zeros(rows),
        "bitmask": torch.zeros(2, 282, dtype=torch.int32), "mask_row": torch.zeros(rows, dtype=torch.int32),
    }  # fmt: skip
    numbers = torch.zeros(rows, dtype=torch.int64)
    sample(logits, Rules(**rules, uniforms=torch.rand(rows, dtype=torch.float64)), top=5)
    sample(logits, Rules(**rules, seeds=numbers, positions=numbers))


if __name__ == "__main__":
    print(compile_all(sys.argv[1]))
