"""What --dtype, --weights and --kv-dtype come to, every combination of them, and the line that says so."""

from __future__ import annotations

import logging
from collections.abc import Callable
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch

from radixrt.checkpoint import Checkpoint, dummy_directory, open_checkpoint
from radixrt.config import RunnerConfig
from radixrt.errors import StartupError
from radixrt.kernels import instruction_sets
from radixrt.kernels import torch as plain
from radixrt.kernels.cpu import native
from radixrt.messages import RowOpen, RunnerReady
from radixrt.models import narrow
from radixrt.models.narrow import Obstacle
from radixrt.runner import precision
from radixrt.runner.load import load
from radixrt.runner.precision import KV_TYPES, choose, slow_path
from radixrt.runner.step import Stepper

from .fakes import plan

CPU = torch.device("cpu")
PROMPT = [17, 4051, 388, 20_000, 9, 31_337, 250]
compiled = pytest.mark.skipif(not native.available(), reason="there is no C++ compiler")


def config_of(path: Path | str = "", **fields: object) -> RunnerConfig:
    base: dict[str, object] = {
        "model_path": str(path), "dtype": "auto", "threads": torch.get_num_threads(), "context_length": None,
        "kv_tokens": 256, "runner_address": "", "ipc_dir": "", "log_level": "warning",
    }  # fmt: skip
    return RunnerConfig(**(base | fields))  # type: ignore[arg-type]


@pytest.fixture
def rung(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Take this machine for one of the named instruction set, with compiled kernels."""
    monkeypatch.setattr(narrow, "obstacle", lambda *_: None)
    rungs = {rung.name: rung for ladder in instruction_sets.LADDERS.values() for rung in ladder}

    def take(name: str) -> None:
        monkeypatch.setattr(instruction_sets, "current", lambda: rungs[name])
        monkeypatch.setattr(precision, "kernels_rung", lambda: rungs[name])

    return take


@pytest.fixture
def files(smollm2_path: Path, tiny_path: Path) -> dict[str, Checkpoint]:
    """A checkpoint by how its matrices are stored."""
    return {
        "quantized": open_checkpoint(smollm2_path),
        "bfloat16": open_checkpoint(dummy_directory("llama-3-8b")),
        "float32": open_checkpoint(tiny_path),
    }


@pytest.mark.parametrize(
    ("cpu", "file", "dtype", "expected"),
    [
        ("avx2", "quantized", "auto", ("float32", "float16", "auto")),
        ("avx2", "quantized", "float32", ("float32", "float32", "auto")),
        ("avx2", "quantized", "bfloat16", ("bfloat16", "float16", "auto")),
        ("avx2", "bfloat16", "auto", ("float32", "float16", "bf16")),
        ("avx2", "bfloat16", "float32", ("float32", "float32", "float32")),
        ("avx2", "bfloat16", "bfloat16", ("bfloat16", "float16", "bf16")),
        ("avx2", "float32", "auto", ("float32", "float32", "float32")),
        ("avx2", "float32", "bfloat16", ("bfloat16", "float16", "bf16")),
        ("avx512_bf16", "quantized", "auto", ("bfloat16", "bfloat16", "auto")),
        ("avx512_bf16", "quantized", "float32", ("float32", "float32", "auto")),
        ("avx512_bf16", "bfloat16", "auto", ("bfloat16", "bfloat16", "bf16")),
        ("avx512_bf16", "float32", "auto", ("bfloat16", "bfloat16", "bf16")),
        ("neon_i8mm", "quantized", "auto", ("float32", "float16", "auto")),
        ("neon_bf16", "quantized", "auto", ("bfloat16", "bfloat16", "auto")),
    ],
)
def test_auto(cpu, file, dtype, expected, rung, files):
    rung(cpu)
    found = choose(config_of(dtype=dtype), files[file], CPU)
    assert (found.dtype, found.kv, found.weights) == (getattr(torch, expected[0]), KV_TYPES[expected[1]], expected[2])
    assert (found.obstacle is not None) == (expected[2] == "float32")


@pytest.mark.parametrize("cpu", ["avx2", "avx512_bf16"])
def test_each_is_chosen_without_the_others(cpu, rung, files):
    rung(cpu)
    for dtype, kv, weights in product(["float32", "bfloat16"], KV_TYPES, ["bf16", "int8", "int4"]):
        found = choose(config_of(dtype=dtype, kv_dtype=kv, weights=weights), files["quantized"], CPU)
        assert (found.dtype, found.kv, found.weights) == (getattr(torch, dtype), KV_TYPES[kv], weights)
        assert found.obstacle is None and slow_path(found, CPU) == ""
    found = choose(config_of(weights="float32"), files["quantized"], CPU)
    assert (found.dtype, found.kv, found.weights) == (torch.float32, torch.float32, "float32")


@pytest.mark.parametrize(
    ("fields", "obstacle", "words"),
    [
        ({"dtype": "float16"}, "", "dtype must be auto, float32 or bfloat16"),
        ({"kv_dtype": "int4"}, "", "kv_dtype must be auto, float32, bfloat16, float16, int8"),
        ({"dtype": "bfloat16", "weights": "float32"}, "", "leave out --dtype bfloat16, or choose --weights bf16"),
        ({"weights": "int4"}, "there is no compiler", "weights=int4 needs the compiled decoder.*there is no compiler"),
        ({"dtype": "float32", "weights": "bf16"}, "it is of stone", "weights=bf16 needs .*--dtype float32, but it is"),
        ({"load_format": "dummy", "weights": "int8"}, "", "leave out --load-format dummy"),
        ({"attention": "triton", "dtype": "float32", "kv_dtype": "int8"}, "", "choose --kv-dtype float32"),
        ({"attention": "torch", "weights": "int8"}, "", "needs the compiled decoder.*choose --attention auto"),
    ],
)
def test_what_cannot_be_had_is_refused_with_what_to_choose(fields, obstacle, words, rung, files, monkeypatch):
    rung("avx512_bf16")
    if obstacle:
        monkeypatch.setattr(narrow, "obstacle", lambda *_: Obstacle(obstacle))
    ops = plain if "attention" in fields else None
    with pytest.raises(StartupError, match=words):
        choose(config_of(**fields), files["quantized"], CPU, ops)


def test_a_gpu_keeps_keys_in_the_type_of_activations(files, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda **_: True)
    gpu = torch.device("cuda", 0)
    found = choose(config_of(), files["quantized"], gpu)
    assert (found.dtype, found.kv, found.weights) == (torch.bfloat16, torch.bfloat16, "bf16")
    assert slow_path(found, gpu) == ""
    assert choose(config_of(kv_dtype="bfloat16"), files["quantized"], gpu).kv == torch.bfloat16
    with pytest.raises(StartupError, match=r"Triton's kernels .* choose --kv-dtype bfloat16"):
        choose(config_of(kv_dtype="int8"), files["quantized"], gpu)
    with pytest.raises(StartupError, match=r"weights=int8 needs the compiled decoder.*is for CPUs"):
        choose(config_of(weights="int8"), files["quantized"], gpu)


@pytest.mark.parametrize(
    ("fields", "file", "reason", "advice"),
    [
        ({"weights": "float32"}, "quantized", "--weights float32", "leave it out"),
        ({"dtype": "float32"}, "float32", "--dtype float32 keeps them so", "choose --weights bf16 or int8"),
        ({"attention": "torch"}, "quantized", "--attention torch", "choose --attention auto"),
    ],
)
def test_a_slow_path_is_explained(fields, file, reason, advice, rung, files):
    rung("avx2")
    said = slow_path(choose(config_of(**fields), files[file], CPU, plain if "attention" in fields else None), CPU)
    assert said.startswith("the model runs slowly") and reason in said and said.endswith(advice)


def test_obstacles_are_named(files, monkeypatch):
    facts = files["quantized"].config
    assert "for CPUs" in str(narrow.obstacle(facts, torch.device("cuda", 0)))
    assert "leave out --tp" in str(narrow.obstacle(facts, CPU, 2))
    moe = open_checkpoint(dummy_directory("qwen3-30b-a3b")).config
    assert "experts" in str(narrow.obstacle(moe, CPU))
    monkeypatch.setattr(native, "available", lambda: False)
    monkeypatch.delenv("RADIXRT_NATIVE_KERNELS", raising=False)
    assert "install a C++ compiler" in str(narrow.obstacle(facts, CPU))
    monkeypatch.setenv("RADIXRT_NATIVE_KERNELS", "0")
    assert "unset it" in str(narrow.obstacle(facts, CPU))


def greedy(stepper: Stepper, count: int = 6) -> list[int]:
    """What follows PROMPT, and nothing of a step that is not computed from the pool."""
    n, tokens = len(PROMPT), []
    for i in range(count):
        at = n + i - 1
        entry: dict[str, object] = {"row": 0, "tokens": PROMPT, "at": 0, "slots": range(n)}
        if i:
            entry = {"row": 0, "tokens": [-1], "at": at, "slots": [at], "private": range(at)}
        opens = [] if i else [RowOpen(row=0, temperature=0.0)]
        with torch.inference_mode():
            tokens.append(int(stepper.run(plan(i, [entry], opens=opens), _no_masks).tokens[0]))
    return tokens


def _no_masks() -> None:
    raise AssertionError("nobody is masked")


def start(path: Path, **fields: object) -> tuple[Stepper, RunnerReady]:
    stepper, ready, _ = load(config_of(path, **fields), lambda *_: None)
    return stepper, ready


@pytest.fixture
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Packed weights of tiny models are not kept with those of the user."""
    native.available()
    monkeypatch.setattr(torch, "set_num_interop_threads", lambda count: None)  # once a process
    monkeypatch.setenv("RADIXRT_HOME", str(tmp_path / "home"))


def expected(tiny_path: Path, count: int = 6) -> list[int]:
    from transformers import LlamaForCausalLM

    model = LlamaForCausalLM.from_pretrained(tiny_path, dtype=torch.float32)
    tokens = list(PROMPT)
    with torch.no_grad():
        for _ in range(count):
            tokens.append(int(model(torch.tensor([tokens])).logits[0, -1].argmax()))
    return tokens[len(PROMPT) :]


@compiled
@pytest.mark.parametrize("dtype", ["auto", "float32", "bfloat16"])
@pytest.mark.parametrize("weights", ["auto", "float32", "bf16", "int8", "int4"])
def test_every_combination_generates(dtype, weights, tiny_path, own_home, caplog):
    if weights == "float32" and dtype == "bfloat16":
        return  # refused, see above
    found = {}
    for kv in ("auto", *KV_TYPES):
        with caplog.at_level(logging.WARNING):
            stepper, ready = start(tiny_path, dtype=dtype, weights=weights, kv_dtype=kv)
        found[kv] = greedy(stepper)
        assert all(0 <= token < 49152 for token in found[kv])
        assert kv in ("auto", ready.kv_dtype) and (dtype in ("auto", ready.dtype))
        name, *_, pool, threads = ready.description.split(", ")
        assert name == instruction_sets.current().name and pool == f"{ready.kv_dtype} KV" and "thread" in threads
        form = {"float32": "float32 weights by torch", "bf16": "bfloat16 weights", "int8": "8-bit weights",
                "int4": "4-bit weights"}.get(weights, "weights")  # fmt: skip
        assert form in ready.description
        assert bool(ready.slow) == ("by torch" in ready.description) and ready.slow in caplog.text
    # Of keys and values, rounding to 16 bits tips none of these choices.
    assert found["float16"] == found["float32"] == found["bfloat16"]
    if weights == "float32":
        assert found["auto"] == found["float32"] == expected(tiny_path)


@compiled
def test_keys_and_values_of_bytes_are_near_those_of_float32(tiny_path, own_home):
    """Slots of the first layer, whose inputs do not depend on the pool: max|x| / 127 a head, rounded to the nearest."""
    pools = {}
    for kv in ("float32", "int8"):
        stepper, _ = start(tiny_path, dtype="float32", weights="int8", kv_dtype=kv)
        greedy(stepper, 1)
        pools[kv] = stepper._kv[0, :, :, : len(PROMPT)].numpy()
    line = pools["int8"]
    q, scale = line[..., :-4].astype(np.float64), np.ascontiguousarray(line[..., -4:]).view(np.float32)
    exact = pools["float32"].astype(np.float64)
    np.testing.assert_allclose(scale[..., 0], abs(exact).max(-1) / 127, rtol=1e-5)
    assert (abs(q * scale - exact) <= scale * 0.501).all()
