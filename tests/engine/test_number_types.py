"""Whole engines under other number types than the tests' usual float32: what is said of them, and what is computed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from radixrt import Engine, SamplingParams
from radixrt.errors import StartupError
from radixrt.kernels import instruction_sets
from radixrt.kernels.cpu import native

pytestmark = pytest.mark.skipif(not native.available(), reason="there is no C++ compiler")

PROMPTS = ["The capital of France is", "def fibonacci(n):\n", "1, 2, 3, 4,", "Water boils at"]
GREEDY = SamplingParams(max_tokens=16, temperature=0, logprobs=1)


@pytest.fixture(scope="module")
def bytes_engine(smollm2_path: Path) -> Iterator[Engine]:
    with Engine(str(smollm2_path), kv_dtype="int8", kv_tokens=2048, threads=1, check=True, max_drafts=0) as engine:
        yield engine


def test_the_description_names_what_is_used(bytes_engine: Engine, engine: Engine) -> None:
    rung = instruction_sets.current().name
    info = bytes_engine.info
    assert info.description == f"{rung}, 4-bit weights as the file, 8-bit head, int8 KV, 1 thread"
    assert (info.kv_dtype, info.slow) == ("int8", "")
    assert engine.info.description.startswith(f"{rung}, float32 weights by torch, float32 KV, ")
    assert (engine.info.dtype, engine.info.kv_dtype) == ("float32", "float32")
    assert "--weights float32" in engine.info.slow and engine.info.slow.endswith("leave it out")


def test_warm_equals_cold_with_keys_and_values_of_bytes(bytes_engine: Engine) -> None:
    for prompt in PROMPTS:
        bytes_engine.flush()
        cold = bytes_engine.generate(prompt, GREEDY)
        warm = bytes_engine.generate(prompt, GREEDY)
        assert warm.usage.cached_tokens == warm.usage.prompt_tokens - 1
        assert cold.token_ids == warm.token_ids
        both = zip(cold.choices[0].logprobs or (), warm.choices[0].logprobs or (), strict=True)
        assert all(one.logprob == pytest.approx(other.logprob, abs=0.02) for one, other in both)


def test_a_combination_that_cannot_be_had_ends_the_start(tiny_path: Path) -> None:
    with pytest.raises(StartupError, match="choose --weights bf16"):
        Engine(str(tiny_path), weights="float32", dtype="bfloat16")
