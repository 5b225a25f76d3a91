"""A model that cannot fit is refused before it is loaded, with the numbers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from radixrt.checkpoint import open_checkpoint
from radixrt.config import RunnerConfig, Weights
from radixrt.errors import StartupError
from radixrt.runner import load
from radixrt.runner.precision import Precision
from radixrt.runner.room import check_room

MIB = 1 << 20
PARAMETERS = 134_515_008
"""Of SmolLM2-135M, by its card and by adding up its tensors."""


@pytest.mark.parametrize(
    ("weights", "kv", "least", "line"),
    [
        ("float32", torch.float32, 4 * PARAMETERS, 256), ("bf16", torch.bfloat16, 2 * PARAMETERS, 128),
        ("int8", torch.float16, PARAMETERS, 128), ("int4", torch.int8, PARAMETERS // 2, 64 + 4),
    ],
)  # fmt: skip
def test_a_model_needs_its_parameters(
    smollm2_path: Path, weights: Weights, kv: torch.dtype, least: int, line: int
) -> None:
    checkpoint = open_checkpoint(smollm2_path)
    precision = Precision(torch.float32, kv, weights, None)
    pool = 30 * 2 * 3 * line * 64
    check_room(checkpoint, precision, free_bytes=least + pool, kv_tokens=None)
    with pytest.raises(
        StartupError, match=rf"134,515,008 parameters take at least {least / MIB:.0f} MiB .* 64 KV tokens"
    ):
        check_room(checkpoint, precision, free_bytes=least + pool - 1, kv_tokens=None)
    check_room(checkpoint, precision, free_bytes=(least + pool) // 2, ranks=2, kv_tokens=None)


def test_what_the_file_has_quantized_counts_as_it_is(smollm2_path: Path) -> None:
    precision = Precision(torch.float32, torch.float16, "auto", None)
    check_room(open_checkpoint(smollm2_path), precision, free_bytes=smollm2_path.stat().st_size, kv_tokens=64)


def test_a_pool_that_was_asked_for_counts(tiny_path: Path) -> None:
    checkpoint = open_checkpoint(tiny_path)
    precision = Precision(torch.float32, torch.float32, "float32", None)
    check_room(checkpoint, precision, free_bytes=64 * MIB, kv_tokens=1000)
    with pytest.raises(StartupError, match=r"1,000,000 KV tokens .* and 64 MiB are free"):
        check_room(checkpoint, precision, free_bytes=64 * MIB, kv_tokens=1_000_000)


def test_nothing_is_loaded_where_there_is_no_room(tiny_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "free_memory", lambda device: MIB)
    monkeypatch.setattr(load, "load_model", lambda *arguments, **options: pytest.fail("it was loaded"))
    config = RunnerConfig(
        model_path=str(tiny_path),
        ipc_dir="",
        runner_address="",
        threads=torch.get_num_threads(),
        dtype="float32",
        context_length=None,
        kv_tokens=None,
        log_level="warning",
    )
    with pytest.raises(StartupError, match=r"does not fit.* 1 MiB are free"):
        load.load_part(config, lambda stage, fraction: None)
