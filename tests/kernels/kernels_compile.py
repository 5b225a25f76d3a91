"""Compiles every kernel for a GPU that is not there, and says what each takes of it.

    python kernels_compile.py sm90 | sm80 | gfx942 [bfloat16 | float16 | float32]       minutes, a dtype a third of them

A driver that only names its device stands in for the real one, and every launch compiles and stops there. What the
interpreter cannot see shows here: types that differ between branches, operations the compiler lacks, tiles that do not
fit into shared memory, registers that spill.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime import driver, jit

TARGETS = {
    "sm90": (GPUTarget("cuda", 90, 32), 227 * 1024),
    "sm80": (GPUTarget("cuda", 80, 32), 163 * 1024),
    "gfx942": (GPUTarget("hip", "gfx942", 64), 64 * 1024),
}


WIDTHS = {torch.bfloat16: 128, torch.float16: 80, torch.float32: 256}
"""The length of a head that each dtype is tried with."""


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


@dataclass
class Taken:
    """What a kernel's variants take, at most. `first`: of the first of several configurations, which must run."""

    variants: set[str] = field(default_factory=set)
    first_shared: int = 0
    shared: int = 0
    first_spills: int = 0
    spills: int = 0
    registers: int = 0
    over: int = 0
    """Variants that need more shared memory than there is: the tuner passes them over."""


def compile_all(name: str, only: str | None = None) -> dict[str, Taken]:
    """Kernel -> what became of it. SystemExit where a first configuration needs more shared memory than there is.

    `only`: a dtype's name, for a third of the work.
    """
    target, shared = TARGETS[name]
    driver.set_active(NoDevice(target))
    launch, compiled = jit.JITFunction.run, {}
    others: list[None] = []

    def only_compile(self: Any, *args: Any, warmup: bool = False, **options: Any) -> Any:
        kernel = launch(self, *args, warmup=True, **options)
        needs = kernel.metadata.shared
        if needs > shared and not others:
            raise SystemExit(f"{self.__name__} needs {needs} bytes of shared memory: {options}")
        taken = compiled.setdefault(self.__name__, Taken())
        if kernel.hash not in taken.variants:
            taken.variants.add(kernel.hash)
            registers, spills = usage(target, kernel)
            taken.over += needs > shared
            taken.shared, taken.registers = max(taken.shared, needs), max(taken.registers, registers)
            taken.spills = max(taken.spills, spills)
            if not others:
                taken.first_shared, taken.first_spills = max(taken.first_shared, needs), max(taken.first_spills, spills)
        return kernel

    jit.JITFunction.run = only_compile
    call_all(others, [getattr(torch, only)] if only else list(WIDTHS))
    return compiled


def usage(target: GPUTarget, kernel: Any) -> tuple[int, int]:
    """(registers of a thread, bytes of it that spill to memory)."""
    if target.backend == "hip":
        text = kernel.asm["amdgcn"]
        found = {key: int(value) for key, value in re.findall(r"\.(vgpr_count|vgpr_spill_count):\s+(\d+)", text)}
        return found["vgpr_count"], 4 * found["vgpr_spill_count"]
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(kernel.asm["cubin"])
        file.flush()
        done = subprocess.run(
            [triton.knobs.nvidia.cuobjdump.path, "-res-usage", file.name], capture_output=True, text=True, check=True
        )
    registers, stack = re.search(r"REG:(\d+) STACK:(\d+)", done.stdout).groups()
    return int(registers), int(stack)


def call_all(others: list[None], dtypes: list[torch.dtype]) -> None:
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
    for dtype in dtypes:
        width = WIDTHS[dtype]
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
    began = time.perf_counter()
    found = compile_all(*sys.argv[1:3])
    for kernel, taken in found.items():
        print(f"{kernel}: {len(taken.variants)} variants ({taken.over} too large), {taken.registers} registers; first "
              f"configurations: {taken.first_shared} bytes shared, {taken.first_spills} spilled; any: {taken.shared}, "
              f"{taken.spills}")  # fmt: skip
    count = sum(len(taken.variants) for taken in found.values())
    print(f"{' '.join(sys.argv[1:])}: {len(found)} kernels, {count} variants, {time.perf_counter() - began:.0f} s")
