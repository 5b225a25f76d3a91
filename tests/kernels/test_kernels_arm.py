"""The library for 64-bit Arm, cross-compiled and run under an emulator: against float64.

Skipped where there is no aarch64-linux-gnu-g++ or no qemu-aarch64 (Debian: g++-aarch64-linux-gnu and qemu-user).
"""

from __future__ import annotations

import ctypes
import mmap
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from kernels_trees import Tree, expected, inputs

from radixrt.kernels import compiler, instruction_sets
from radixrt.kernels.cpu.native.binding import Choice, Heads, Linear, Reads
from radixrt.kernels.cpu.native.packed import Groups, packed_bytes, quantize
from radixrt.kernels.cpu.native.reads import StepReads

COMPILER, EMULATOR = shutil.which("aarch64-linux-gnu-g++"), shutil.which("qemu-aarch64")
PREFIX = Path("/usr/aarch64-linux-gnu")
ADDRESS, SIZE = 0x4100000000, 1 << 22
"""Where the emulated process has the memory that it shares with the test."""
RUNGS = [rung.name for rung in instruction_sets.LADDERS["arm64"]]

pytestmark = pytest.mark.skipif(
    COMPILER is None or EMULATOR is None or not PREFIX.is_dir(), reason="no compiler or emulator for 64-bit Arm"
)


@pytest.fixture(scope="session")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("arm") / "call_library"
    source = Path(__file__).with_name("call_library.c")
    subprocess.run([str(COMPILER), "-x", "c", "-O1", "-o", str(path), str(source), "-ldl"], check=True)
    return path


@pytest.fixture(scope="session", params=RUNGS)
def arm(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library for a rung of the Arm ladder."""
    (rung,) = [rung for rung in instruction_sets.LADDERS["arm64"] if rung.name == request.param]
    path = tmp_path_factory.mktemp("arm") / f"{rung.name}.so"
    compiler.compile_to(path, str(COMPILER), rung)
    return path


class Emulated:
    """Memory that calls of the library under the emulator read and write."""

    def __init__(self, library: Path, driver: Path, path: Path) -> None:
        self._command = [
            str(EMULATOR),
            "-cpu",
            "max",
            "-L",
            str(PREFIX),
            str(driver),
            str(library),
            str(path),
            str(ADDRESS),
        ]
        self._file = path.open("w+b")
        self._file.truncate(SIZE)
        self._memory = mmap.mmap(self._file.fileno(), SIZE)
        self._used = 0

    def put(self, array: np.ndarray | torch.Tensor | ctypes.Structure | None) -> int:
        """Its bytes in the shared memory -> the emulated process's address of them; 0 for None."""
        if array is None:
            return 0
        if isinstance(array, torch.Tensor):
            array = array.contiguous().view(torch.uint8).numpy()
        data = bytes(array) if isinstance(array, ctypes.Structure) else array.tobytes()
        address = self.room(len(data))
        self._memory[address - ADDRESS : address - ADDRESS + len(data)] = data
        return address

    def room(self, length: int) -> int:
        """Address of `length` bytes."""
        at = self._used
        self._used = -(-(at + length) // 64) * 64
        if self._used > SIZE:
            raise ValueError("the shared memory is full")
        return ADDRESS + at

    def get(self, address: int, shape: tuple[int, ...], dtype: Any = np.float32) -> np.ndarray:
        count = int(np.prod(shape))
        return np.frombuffer(self._memory, dtype, count, address - ADDRESS).reshape(shape).copy()

    def call(self, *calls: tuple[Any, ...]) -> list[int]:
        """Each call: the function's name and its arguments. The results."""
        words = [
            word for call in calls for word in ("call", *(f"f{a}" if isinstance(a, float) else str(a) for a in call))
        ]
        done = subprocess.run([*self._command, *words], capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        return [int(line) for line in done.stdout.split()]


@pytest.fixture
def emulated(arm: Path, driver: Path, tmp_path: Path) -> Emulated:
    return Emulated(arm, driver, tmp_path / "memory")


def test_features(emulated: Emulated, arm: Path) -> None:
    (bits,) = emulated.call(("radixrt_features",))
    assert bits >> 5 == {"neon": 1, "neon_dotprod": 3, "neon_i8mm": 7, "neon_bf16": 15}[arm.stem]


def drawn(bits: int, outputs: int, inputs: int) -> Groups:
    draw = torch.Generator().manual_seed(outputs * inputs + bits)
    return quantize(torch.randn(outputs, inputs, generator=draw), bits)


def weight(
    emulated: Emulated, bits: int, outputs: int, inputs: int
) -> tuple[Linear, torch.Tensor, list[tuple[Any, ...]]]:
    """A product, its dense weight, and the calls that make it ready."""
    if bits == 16:
        dense = torch.randn(outputs, inputs, generator=torch.Generator().manual_seed(inputs)).bfloat16()
        return Linear(bits=16, outputs=outputs, inputs=inputs, weight=emulated.put(dense)), dense.double(), []
    groups = drawn(bits, outputs, inputs)
    at = emulated.room(packed_bytes(bits, outputs, inputs))
    parts = (emulated.put(part) for part in (groups.q, groups.scale, groups.shift))
    made = Linear(bits=bits, outputs=outputs, inputs=inputs, weight=at)
    return made, groups.dense().double(), [("radixrt_pack", bits, outputs, inputs, *parts, at)]


@pytest.mark.parametrize("bits", [4, 8, 16])
@pytest.mark.parametrize(("outputs", "inputs"), [(48, 96), (21, 160), (16, 32)])
def test_products(emulated: Emulated, bits: int, outputs: int, inputs: int) -> None:
    linear, dense, calls = weight(emulated, bits, outputs, inputs)
    made = emulated.put(linear)
    truths = {}
    for rows in (1, 3, 4, 13):
        x = torch.randn(rows, inputs, generator=torch.Generator().manual_seed(rows))
        if bits != 16:  # integers up to 127 in each group of inputs are their own 8-bit form
            x = torch.randint(-127, 128, (rows, inputs), generator=torch.Generator().manual_seed(rows)).float()
            x[:, ::32] = 127
        for half in (0, 1):
            x = x.bfloat16() if half else x
            y = emulated.room(4 * rows * outputs)
            calls.append(("radixrt_linear", made, emulated.put(x), half, rows, y))
            truths[y] = (x.double() @ dense.T).numpy()
    emulated.call(*calls)
    for y, truth in truths.items():
        error = np.abs(emulated.get(y, truth.shape) - truth)
        assert error.max() < 2e-3 * np.abs(truth).max()


@pytest.mark.parametrize("bits", [4, 8, 16])
def test_the_choice_is_the_largest_output_that_is_allowed(emulated: Emulated, bits: int) -> None:
    outputs, inputs, rows = 75, 96, 5
    linear, dense, calls = weight(emulated, bits, outputs, inputs)
    x = torch.randn(rows, inputs, generator=torch.Generator().manual_seed(1))
    masks = np.random.default_rng(0).integers(-(2**31), 2**31, (2, 3)).astype(np.int32)
    mask_of, logits_of = np.array([-1, 0, 1, 0, -1]), np.array([-1, -1, -1, -1, 0])
    chosen, logits = emulated.room(8 * rows), emulated.room(4 * outputs)
    y = emulated.room(4 * rows * outputs)
    choice = Choice(
        rows=rows, allowed=70, words=3, masks=emulated.put(masks), mask_of=emulated.put(mask_of),
        logits_of=emulated.put(logits_of), logits=logits, chosen=chosen,
    )  # fmt: skip
    made = emulated.put(linear)
    choice.head = ctypes.cast(made, type(choice.head))
    at = emulated.put(x)
    calls += [("radixrt_linear", made, at, 0, rows, y), ("radixrt_choose", emulated.put(choice), at, 0)]
    emulated.call(*calls)
    all_outputs = emulated.get(y, (rows, outputs))
    truth = (x.double() @ dense.T).numpy()
    assert np.linalg.norm(all_outputs - truth) < (0.01 if bits != 16 else 0.002) * np.linalg.norm(truth)
    for row, found in enumerate(emulated.get(chosen, (rows,), np.int64)):
        allowed = np.arange(outputs) < 70
        if mask_of[row] >= 0:
            allowed &= np.unpackbits(masks[mask_of[row]].view(np.uint8), bitorder="little")[:outputs].astype(bool)
        assert found == (-1 if logits_of[row] >= 0 else int(np.where(allowed, all_outputs[row], -np.inf).argmax()))
    assert np.array_equal(emulated.get(logits, (outputs,)), all_outputs[4])


@pytest.mark.parametrize("window", [None, 20])
def test_attention_in_float32(emulated: Emulated, window: int | None) -> None:
    """Two chunks and a decode row over a shared span of 150 scattered slots."""
    heads, kv_heads, width = 6, 2, 32
    slots = np.random.default_rng(0).permutation(400)
    span, rest = slots[:150], slots[150:]
    new, private = [rest[:9], rest[9:10], rest[10:13]], [rest[20:21], rest[30:107], rest[110:110]]
    reads = [np.concatenate([span, part]) for part in private]
    tree = Tree([9, 1, 3], new, reads, private, [(span, 0, 3)], 400)
    x = inputs(tree, heads, kv_heads, width, torch.float32, 0)
    step = StepReads(tree.layout(), window)
    out = emulated.room(x.q.numel() * 4)
    who = Reads(
        tokens=len(x.q), segments_count=len(step.segments), window=window or 0, segments=emulated.put(step.segments),
        slots=emulated.put(step.slots), positions=emulated.put(step.positions), visible=emulated.put(step.visible),
        visible_words=step.visible.shape[1],
    )  # fmt: skip
    what = Heads(
        q=emulated.put(x.q), keys=emulated.put(x.keys), values=emulated.put(x.values), out=out, q_stride=heads * width,
        pool=x.keys.shape[1], kv_heads=kv_heads, group=heads // kv_heads, width=width, scale=0.2,
    )  # fmt: skip
    emulated.call(("radixrt_attention", emulated.put(who), emulated.put(what)))
    truth = expected(tree, x, 0.2, window).numpy()
    np.testing.assert_allclose(emulated.get(out, truth.shape), truth, atol=1e-5)


def test_pointwise(emulated: Emulated) -> None:
    rows, width, eps = 3, 36, 1e-5
    draw = torch.Generator().manual_seed(0)
    x, residual = torch.randn(2, rows, width, generator=draw)
    scale = torch.randn(width, generator=draw)
    both = torch.randn(rows, 2 * width, generator=draw)
    normed, gated, sums = emulated.room(4 * rows * width), emulated.room(4 * rows * width), emulated.put(residual)
    emulated.call(
        ("radixrt_add_norm", emulated.put(x), sums, emulated.put(scale), eps, rows, width, normed, 0),
        ("radixrt_silu_mul", emulated.put(both), rows, width, gated, 0),
    )
    total = (x + residual).double()
    normal = total / (total.pow(2).mean(-1, keepdim=True) + eps).sqrt() * scale.double()
    np.testing.assert_allclose(emulated.get(normed, (rows, width)), normal.numpy(), rtol=1e-5, atol=1e-5)
    gate, up = both.double().split(width, dim=1)
    product = torch.nn.functional.silu(gate) * up
    np.testing.assert_allclose(emulated.get(gated, (rows, width)), product.numpy(), rtol=1e-5, atol=1e-5)
