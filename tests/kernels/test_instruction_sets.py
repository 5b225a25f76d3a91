"""Which instruction sets a CPU has, from what each operating system says of it; and the variable that caps them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from radixrt.errors import StartupError
from radixrt.kernels import instruction_sets
from radixrt.kernels.build import build
from radixrt.kernels.cpu.native import binding

V3 = "fpu sse4_2 avx avx2 bmi1 bmi2 f16c fma abm movbe"
V4 = f"{V3} avx512f avx512bw avx512cd avx512dq avx512vl"
ARM = "fp asimd crc32"


@pytest.fixture(autouse=True)
def _forget(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv(instruction_sets.VARIABLE, raising=False)
    instruction_sets.available.cache_clear()
    yield
    instruction_sets.available.cache_clear()


def linux(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, machine: str, *cores: str) -> None:
    """This machine is a Linux one whose cores have these flags."""
    name = "flags\t\t" if machine == "x86_64" else "Features\t"
    text = "\n\n".join(f"processor\t: {i}\nmodel name\t: with avx512f\n{name}: {c}" for i, c in enumerate(cores))
    (tmp_path / "cpuinfo").write_text(text + "\n")
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(instruction_sets, "CPUINFO", tmp_path / "cpuinfo")
    monkeypatch.setattr(instruction_sets.platform, "machine", lambda: machine)


def names() -> list[str]:
    return [rung.name for rung in instruction_sets.available()]


@pytest.mark.parametrize(
    ("machine", "flags", "expected"),
    [
        ("x86_64", "fpu sse2", ["portable"]),
        ("x86_64", "fpu sse2 avx avx2", ["portable"]),  # a virtual machine that hides FMA
        ("x86_64", V3, ["portable", "avx2"]),
        ("x86_64", f"{V3} avx_vnni", ["portable", "avx2", "avx_vnni"]),
        ("x86_64", f"{V3} avx512f avx512cd", ["portable", "avx2"]),  # Xeon Phi
        ("x86_64", V4, ["portable", "avx2", "avx512"]),
        ("x86_64", f"{V4} avx512_vnni", ["portable", "avx2", "avx512", "avx512_vnni"]),
        (
            "x86_64",
            f"{V4} avx512_vnni avx_vnni avx512_bf16 amx_int8",
            ["portable", "avx2", "avx_vnni", "avx512", "avx512_vnni", "avx512_bf16"],
        ),
        ("aarch64", ARM, ["neon"]),
        ("aarch64", f"{ARM} asimddp", ["neon", "neon_dotprod"]),
        ("aarch64", f"{ARM} asimddp i8mm bf16", ["neon", "neon_dotprod", "neon_i8mm", "neon_bf16"]),
        ("ppc64le", "", ["portable"]),
    ],
)
def test_linux(machine: str, flags: str, expected: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    linux(monkeypatch, tmp_path, machine, flags)
    assert names() == expected
    assert instruction_sets.current().name == expected[-1]
    assert instruction_sets.current().bf16 is expected[-1].endswith("bf16")


def test_of_unlike_cores_the_least_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    linux(monkeypatch, tmp_path, "aarch64", f"{ARM} asimddp i8mm", f"{ARM} asimddp")
    assert names() == ["neon", "neon_dotprod"]


def test_without_cpuinfo_the_lowest_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    linux(monkeypatch, tmp_path, "x86_64", V4)
    (tmp_path / "cpuinfo").unlink()
    assert names() == ["portable"]


APPLE = """machdep.cpu.brand_string: Apple M2
hw.optional.arm.FEAT_DotProd: 1
hw.optional.arm.FEAT_I8MM: 1
hw.optional.arm.FEAT_BF16: {bf16}
hw.optional.avx2_0: 0
"""
INTEL = """machdep.cpu.features: FPU SSE4.2 MOVBE F16C FMA AVX1.0
machdep.cpu.leaf7_features: BMI1 AVX2 BMI2 AVX512F AVX512CD AVX512DQ AVX512BW AVX512VL {more}
machdep.cpu.extfeatures: SYSCALL LZCNT
"""


@pytest.mark.parametrize(
    ("machine", "text", "expected"),
    [
        ("arm64", APPLE.format(bf16=1), "neon_bf16"),
        ("arm64", APPLE.format(bf16=0), "neon_i8mm"),
        ("arm64", "", "neon"),
        ("x86_64", INTEL.format(more=""), "avx512"),
        ("x86_64", INTEL.format(more="AVX512VNNI"), "avx512_vnni"),
        ("x86_64", INTEL.replace("AVX512F", "RDSEED").format(more=""), "avx2"),
    ],
)
def test_macos(machine: str, text: str, expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(instruction_sets.platform, "machine", lambda: machine)
    monkeypatch.setattr(instruction_sets, "_sysctl", lambda: text)
    assert instruction_sets.current().name == expected


@pytest.mark.parametrize(
    ("machine", "present", "expected"),
    [
        ("AMD64", {40, 41}, "avx2"),
        ("AMD64", {13}, "portable"),
        ("ARM64", {43}, "neon_dotprod"),
        ("ARM64", {43, 66, 68}, "neon_bf16"),
    ],
)
def test_windows(machine: str, present: set[int], expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setattr(instruction_sets.platform, "machine", lambda: machine)
    monkeypatch.setattr(instruction_sets, "_windows_has", present.__contains__)
    assert instruction_sets.current().name == expected


def test_the_variable_names_the_rung(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    linux(monkeypatch, tmp_path, "x86_64", f"{V4} avx512_vnni")
    assert instruction_sets.cap() is None
    assert instruction_sets.torch_environment() == {}
    monkeypatch.setenv(instruction_sets.VARIABLE, "avx2")
    assert instruction_sets.current().name == "avx2"
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "DEFAULT")
    limits = instruction_sets.torch_environment()
    assert limits["ATEN_CPU_CAPABILITY"] == "avx2" and "ONEDNN_MAX_CPU_ISA" not in limits


@pytest.mark.parametrize(
    ("name", "message"), [("avx512_bf16", "that this CPU has"), ("neon", "that this CPU has"), ("avx3", "known")]
)
def test_a_rung_that_cannot_be_used_is_an_error_that_lists_the_others(
    name: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    linux(monkeypatch, tmp_path, "x86_64", V3)
    monkeypatch.setenv(instruction_sets.VARIABLE, name)
    with pytest.raises(StartupError, match=f"RADIXRT_CPU={name} .*{message}.*portable, avx2$"):
        instruction_sets.current()
    with pytest.raises(StartupError):
        build(directory=tmp_path)


def test_the_flags_of_a_rung_turn_on_its_features_and_no_others() -> None:
    """What the compiler defines for the flags is what selects the code."""
    features = {
        "portable": [],
        "avx2": ["avx2"],
        "avx_vnni": ["avx2", "avx_vnni"],
        "avx512": ["avx2", "avx512"],
        "avx512_vnni": ["avx2", "avx512", "avx512_vnni"],
        "avx512_bf16": ["avx2", "avx512", "avx512_bf16", "avx512_vnni"],
        "neon": ["neon"],
        "neon_dotprod": ["neon", "dotprod"],
        "neon_i8mm": ["neon", "dotprod", "i8mm"],
        "neon_bf16": ["neon", "dotprod", "i8mm", "bf16"],
    }
    for rung in instruction_sets.available():
        if (path := build(rung)) is None:
            pytest.skip("there is no C++ compiler")
        assert binding.features(binding.load(path)) == features[rung.name]


@pytest.mark.skipif(instruction_sets.architecture() != "x86-64", reason="the variables are for x86-64")
def test_torch_is_held_to_the_rung_too() -> None:
    program = "import torch; print(torch.backends.cpu.get_cpu_capability())"
    limits = instruction_sets.torch_environment({instruction_sets.VARIABLE: "portable"})
    done = subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, **limits}, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "DEFAULT"
