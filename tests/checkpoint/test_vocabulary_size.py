"""Counting ids agrees with building the tokenizer."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from radixrt.checkpoint import open_checkpoint
from radixrt.checkpoint.tokenizer_gguf import tokenizer_from_gguf
from radixrt.checkpoint.vocabulary import Vocabulary
from radixrt.checkpoint.vocabulary_size import size_from_gguf, size_from_json
from radixrt.errors import ModelError


def test_smollm2(smollm2_path: Path) -> None:
    checkpoint = open_checkpoint(smollm2_path)
    assert checkpoint.vocabulary_size() == checkpoint.vocabulary().size


def test_token_ids_are_those_of_the_tokenizer(smollm2_path: Path, tiny_path: Path) -> None:
    for path in (smollm2_path, tiny_path):
        checkpoint = open_checkpoint(path)
        ids, whole = checkpoint.token_ids(), open_checkpoint(path).vocabulary()
        assert (ids.size, ids.eos_ids, ids.tokenizer_json()) == (whole.size, whole.eos_ids, whole.tokenizer_json())
    override = checkpoint.token_ids(str(tiny_path / "tokenizer.json"))
    assert override.size == whole.size


@pytest.mark.parametrize(
    ("tokens", "types"),
    [
        (["a", "b", "ab", "<end>"], [1, 1, 1, 3]),
        (["a", "b", "ab", "<unused>", "<hole>"], [1, 1, 1, 5, 5]),
        (["a", "b", "ab", "b"], [1, 1, 1, 1]),
    ],
)
def test_small_vocabularies(tokens: list[str], types: list[int], tmp_path: Path) -> None:
    metadata = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.merges": ["a b"],
    }
    facts = tokenizer_from_gguf(metadata)
    size = Vocabulary(facts.json, bos_id=None, eos_ids=(), adds_bos=False).size
    assert size_from_gguf(metadata) == size
    (tmp_path / "tokenizer.json").write_bytes(facts.json)
    assert size_from_json(tmp_path / "tokenizer.json") == size


def test_no_vocabulary(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no vocabulary"):
        size_from_gguf({})
    with pytest.raises(ModelError, match="cannot be read"):
        size_from_json(tmp_path / "tokenizer.json")
    (tmp_path / "tokenizer.json").write_text(json.dumps({"model": {"vocab": []}}))
    with pytest.raises(ModelError, match="cannot be read"):
        size_from_json(tmp_path / "tokenizer.json")
