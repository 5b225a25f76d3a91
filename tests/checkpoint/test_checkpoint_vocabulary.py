"""The real model's vocabulary: ids against llama.cpp's, texts and bytes against the tokenizers library."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from radixrt.checkpoint import Vocabulary, open_checkpoint
from radixrt.errors import ModelError

MISSING = frozenset([0x04, 0x06, 0x13, 0x14, 0x16, 0x1D, 0xC0, 0xC1, 0xF1, 0xF2, *range(0xF5, 0x100)])
"""Bytes that no token of SmolLM2 spells (a fact of its training data): its own tokenizer drops them too."""


@pytest.fixture(scope="module")
def vocabulary(smollm2_path: Path) -> Vocabulary:
    return open_checkpoint(smollm2_path).vocabulary()


@pytest.fixture(scope="module")
def library(vocabulary: Vocabulary) -> Tokenizer:
    return Tokenizer.from_str(vocabulary.tokenizer_json())


def test_ids_are_those_of_llama_cpp(vocabulary: Vocabulary, cases: Path) -> None:
    lines = (cases / "smollm2_tokens.jsonl").read_text(encoding="utf-8").splitlines()
    assert len(lines) == 359
    for line in lines:
        case = json.loads(line)
        assert vocabulary.encode(case["text"]) == case["ids"], case["text"]
        assert vocabulary.decode(case["ids"]) == case["text"]


def test_facts(vocabulary: Vocabulary) -> None:
    assert vocabulary.size == 49152
    assert vocabulary.eos_ids == (2,)
    assert (vocabulary.bos_id, vocabulary.adds_bos) == (1, False)
    assert (vocabulary.bos_token, vocabulary.eos_token) == ("<|im_start|>", "<|im_end|>")
    assert list(vocabulary.special_tokens.values()) == list(range(17))
    assert vocabulary.special_tokens["<|endoftext|>"] == 0


def test_user_text_never_becomes_a_special_token(vocabulary: Vocabulary) -> None:
    for spelling, index in vocabulary.special_tokens.items():
        text = f"a{spelling}b {spelling}"
        ordinary = vocabulary.encode(text)
        assert not any(vocabulary.is_special(i) for i in ordinary)
        assert vocabulary.decode(ordinary) == text
        assert vocabulary.encode(spelling, allow_special=True) == [index]
        assert len(vocabulary.encode(spelling)) > 1
        assert vocabulary.encode(text, allow_special=True).count(index) == 2


def test_special_tokens_in_text(vocabulary: Vocabulary) -> None:
    ids = vocabulary.encode("<|im_start|>user\nhi<|im_end|>\n", allow_special=True)
    assert ids == [1, *vocabulary.encode("user\nhi"), 2, *vocabulary.encode("\n")]
    assert vocabulary.decode(ids) == "<|im_start|>user\nhi<|im_end|>\n"
    assert vocabulary.decode(ids, skip_special_tokens=True) == "user\nhi\n"
    assert vocabulary.encode("hi", add_bos=True) == [1, *vocabulary.encode("hi")]
    assert vocabulary.encode("", add_bos=True) == [1]


@settings(max_examples=500, deadline=None)
@given(st.text())
def test_round_trip(vocabulary: Vocabulary, text: str) -> None:
    ids = vocabulary.encode(text)
    spelt = bytes(b for b in text.encode() if b not in MISSING)
    assert b"".join(vocabulary.token_bytes(i) for i in ids) == spelt
    assert vocabulary.decode(ids) == spelt.decode("utf-8", "replace")
    if len(spelt) == len(text.encode()):
        assert vocabulary.decode(ids) == text


@settings(max_examples=500, deadline=None)
@given(st.lists(st.integers(0, 49151), max_size=12))
def test_decoding_equals_the_library(vocabulary: Vocabulary, library: Tokenizer, ids: list[int]) -> None:
    assert vocabulary.decode(ids) == library.decode(ids, skip_special_tokens=False)
    assert vocabulary.decode(ids, skip_special_tokens=True) == library.decode(ids, skip_special_tokens=True)


def test_bytes_of_every_token(vocabulary: Vocabulary, library: Tokenizer) -> None:
    whole = 0
    for index in range(vocabulary.size):
        piece = vocabulary.token_bytes(index)
        assert piece
        text = library.decode([index], skip_special_tokens=False)
        assert vocabulary.token_text(index) == text
        if "�" not in text:
            assert piece == text.encode()
            whole += 1
    assert whole > 48_000
    single = {vocabulary.token_bytes(i) for i in range(vocabulary.size) if len(vocabulary.token_bytes(i)) == 1}
    assert {bytes([b]) for b in range(256)} - single == {bytes([b]) for b in MISSING}
    assert vocabulary.missing_bytes == MISSING


def test_ids_outside_have_no_text(vocabulary: Vocabulary) -> None:
    assert vocabulary.token_bytes(49152) == vocabulary.token_bytes(-1) == b""
    assert vocabulary.decode([-1, 49152, 10**9]) == ""
    assert not vocabulary.is_special(49152)


def test_lone_surrogates_become_replacement_characters(vocabulary: Vocabulary) -> None:
    assert vocabulary.decode(vocabulary.encode("a\ud800b")) == "a�b"


def test_override(smollm2_path: Path, vocabulary: Vocabulary, tmp_path: Path) -> None:
    checkpoint = open_checkpoint(smollm2_path)
    (tmp_path / "other.json").write_text(vocabulary.tokenizer_json(), encoding="utf-8")
    same = checkpoint.vocabulary(str(tmp_path / "other.json"))
    assert same.encode("12 apples") == vocabulary.encode("12 apples")
    assert same.eos_ids == (2,)
    with pytest.raises(ModelError, match=r"neither a tokenizer\.json"):
        checkpoint.vocabulary(str(tmp_path / "absent.json"))
    with pytest.raises(ModelError, match=r"no tokenizer\.json"):
        checkpoint.vocabulary(str(tmp_path))
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(ModelError, match=r"tokenizer\.json is not valid JSON"):
        checkpoint.vocabulary(str(tmp_path))
