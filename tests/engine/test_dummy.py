"""Random weights from a configuration alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from radixrt import Engine, SamplingParams
from radixrt.checkpoint import dummy_directory, open_checkpoint
from radixrt.checkpoint.shapes import SHAPES
from radixrt.errors import ModelError

SMALL = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
         "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 1000}  # fmt: skip


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RADIXRT_HOME", str(tmp_path / "home"))


def test_an_engine_without_weights_or_tokenizer(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(SHAPES["qwen3-8b"] | SMALL))
    with Engine(str(tmp_path), load_format="dummy", kv_tokens=256, check=True) as engine:
        params = SamplingParams(max_tokens=12, temperature=0.0, ignore_eos=True)
        first = engine.generate("a é", params)
        assert first.usage.prompt_tokens == 4 and first.usage.completion_tokens == 12
        assert engine.generate("a é", params).choices[0].token_ids == first.choices[0].token_ids
        assert max(first.choices[0].token_ids) < 258  # what the stand-in tokenizer knows


@pytest.mark.parametrize(
    ("name", "layers", "width"), [("llama-3-8b", 32, 128256), ("Qwen3-8B", 36, 151936), ("qwen3-30b-a3b", 48, 151936)]
)
def test_shapes_that_are_known(name: str, layers: int, width: int) -> None:
    directory = dummy_directory(name)
    assert directory == dummy_directory(name)
    checkpoint = open_checkpoint(directory)
    assert (checkpoint.config.num_layers, checkpoint.config.vocab_size) == (layers, width)
    assert checkpoint.vocabulary().eos_ids == (257,)


def test_what_cannot_be_made_up() -> None:
    with pytest.raises(ModelError, match="or one of llama-3-8b"):
        dummy_directory("no-such-model")
