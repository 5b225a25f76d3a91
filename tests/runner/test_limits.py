"""Cores, memory, number types and pool sizes: what the machine allows, from files of other machines."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from radixrt.errors import StartupError
from radixrt.runner import cgroup
from radixrt.runner.pool import PoolShape, allocate_pool, pool_tokens
from radixrt.runner.threads import environment, usable_cores


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


@pytest.fixture
def host(tmp_path: Path):
    """A made-up machine: (membership, files) -> (root, membership file)."""

    def make(membership: str, files: dict[str, str]) -> tuple[Path, Path]:
        (tmp_path / "membership").write_text(membership)
        (tmp_path / "root").mkdir()
        return write(tmp_path / "root", files), tmp_path / "membership"

    return make


V2 = "0::/user/job\n"
V1 = "5:memory:/docker/abc\n4:cpu,cpuacct:/docker/abc\n1:name=systemd:/docker/abc\n"


@pytest.mark.parametrize(
    ("membership", "files", "quota"),
    [
        (V2, {"user/job/cpu.max": "150000 100000\n"}, 1.5),
        (V2, {"user/job/cpu.max": "max 100000\n"}, None),
        (V2, {"user/job/cpu.max": "400000 100000\n", "user/cpu.max": "200000 100000\n"}, 2.0),
        ("0::/\n", {"cpu.max": "50000 100000\n"}, 0.5),
        ("0::/not/mounted/here\n", {"cpu.max": "300000 100000\n"}, 3.0),
        ("0::/../../job\n", {"cpu.max": "300000 100000\n"}, 3.0),
        (V1, {"cpu/docker/abc/cpu.cfs_quota_us": "250000\n", "cpu/docker/abc/cpu.cfs_period_us": "100000\n"}, 2.5),
        (V1, {"cpu,cpuacct/cpu.cfs_quota_us": "100000\n", "cpu,cpuacct/cpu.cfs_period_us": "100000\n"}, 1.0),
        (V1, {"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, None),
        (V2, {"cpu.max": "rubbish\n"}, None),
        (V2, {}, None),
        ("", {"cpu.max": "100000 100000\n"}, None),
    ],
)
def test_cpu_quota(host, membership, files, quota):
    assert cgroup.cpu_quota(*host(membership, files)) == quota


@pytest.mark.parametrize(
    ("membership", "files", "left"),
    [
        (V2, {"user/job/memory.max": "1000\n", "user/job/memory.current": "400\n"}, 600),
        (V2, {"user/job/memory.max": "max\n", "user/job/memory.current": "400\n"}, None),
        (
            V2,
            {"user/job/memory.max": "1000\n", "user/job/memory.current": "400\n",
             "user/job/memory.stat": "anon 100\ninactive_file 250\n",
             "user/memory.max": "900\n", "user/memory.current": "500\n"},
            400,
        ),
        (V2, {"memory.max": "100\n", "memory.current": "400\n"}, 0),
        (V1, {"memory/docker/abc/memory.limit_in_bytes": "1000\n", "memory/docker/abc/memory.usage_in_bytes": "300\n",
              "memory/docker/abc/memory.stat": "total_inactive_file 100\n"}, 800),
        (V1, {"memory/memory.limit_in_bytes": "9223372036854771712\n", "memory/memory.usage_in_bytes": "3\n"}, None),
        (V2, {}, None),
    ],
)  # fmt: skip
def test_memory_left(host, membership, files, left):
    assert cgroup.memory_left(*host(membership, files)) == left


@pytest.mark.parametrize(("quota", "cores"), [("max", 8), ("1600000", 8), ("250000", 2), ("199000", 1), ("20000", 1)])
def test_usable_cores(host, monkeypatch, quota, cores):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    assert usable_cores(*host("0::/\n", {"cpu.max": f"{quota} 100000\n"})) == cores


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system has no CPU affinity")
def test_affinity_is_respected():
    one = min(os.sched_getaffinity(0))
    code = (
        f"import os; os.sched_setaffinity(0, {{{one}}});"
        "from radixrt.runner.threads import usable_cores; print(usable_cores())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "1"


def test_what_the_parent_imports_is_free_of_torch():
    code = "import sys, radixrt.runner.threads; print('torch' in sys.modules, 'numpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]


def test_environment_sets_threads_and_a_short_wait():
    env = environment(3, {})
    assert {env[name] for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")} == {"3"}
    assert env["OMP_WAIT_POLICY"] == "PASSIVE"
    assert int(env["GOMP_SPINCOUNT"]) <= 10_000


@pytest.mark.parametrize("name", ["OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME"])
def test_what_the_user_says_about_waiting_stands(name):
    env = environment(2, {name: "theirs", "MALLOC_TRIM_THRESHOLD_": "5"})
    assert not {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME", "MALLOC_TRIM_THRESHOLD_"} & set(env)


GIB = 1 << 30
SMALL = PoolShape(layers=30, kv_heads=3, head_dim=64, dtype=torch.bfloat16)  # SmolLM2-135M
LARGE = PoolShape(layers=32, kv_heads=8, head_dim=128, dtype=torch.bfloat16)  # an 8B model


def test_a_slot_is_keys_and_values_of_every_layer():
    assert SMALL.token_bytes == 30 * 2 * 3 * 64 * 2
    assert PoolShape(layers=1, kv_heads=2, head_dim=4, dtype=torch.float32).token_bytes == 64
    assert PoolShape(layers=1, kv_heads=2, head_dim=4, dtype=torch.int8).token_bytes == 4 * (4 + 4)


@pytest.mark.parametrize(
    ("shape", "context", "free", "tokens"),
    [
        (SMALL, 8192, 64 * GIB, 16 * 8192),  # contexts, not memory, bound a small model
        (SMALL, 512, 64 * GIB, 65_536),
        (SMALL, 8192, 2 * GIB, int(2 * GIB * 0.4) // SMALL.token_bytes),
        (LARGE, 131_072, 64 * GIB, int(64 * GIB * 0.4) // LARGE.token_bytes),
    ],
)
def test_the_size_of_the_pool_from_memory(shape, context, free, tokens):
    assert pool_tokens(shape, wanted=None, context_length=context, free_bytes=free) == tokens
    assert tokens * shape.token_bytes <= 0.4 * free


def test_a_size_that_was_asked_for_is_what_one_gets_or_an_error_with_the_numbers():
    assert pool_tokens(SMALL, wanted=1024, context_length=8192, free_bytes=GIB) == 1024
    with pytest.raises(StartupError, match=r"kv_tokens=1,000,000 .*21\.5 GiB.*1\.0 GiB.*at most 41,943"):
        pool_tokens(SMALL, wanted=1_000_000, context_length=8192, free_bytes=GIB)
    with pytest.raises(StartupError, match="1 or more"):
        pool_tokens(SMALL, wanted=0, context_length=8192, free_bytes=GIB)
    with pytest.raises(StartupError, match="no room"):
        pool_tokens(LARGE, wanted=None, context_length=8192, free_bytes=1 << 20)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.int8])
def test_the_pool_is_zero_writable_and_costs_nothing_until_it_is_used(dtype):
    import psutil

    shape = PoolShape(layers=4, kv_heads=2, head_dim=64, dtype=dtype)
    before = psutil.Process().memory_info().rss
    pool = allocate_pool(shape, (2 * GIB) // shape.token_bytes)
    assert psutil.Process().memory_info().rss - before < GIB // 4
    assert pool.shape[:3] == (4, 2, 2)
    assert pool.shape[4] == shape.line == (68 if dtype == torch.int8 else 64)
    assert pool.is_contiguous()
    assert pool.data_ptr() % 64 == 0
    assert (pool[3, 1, 1, -100:] == 0).all()
    pool[3, 1, 1, -1] = 2
    assert pool[3, 1, 1, -1].sum() == 2 * shape.line
