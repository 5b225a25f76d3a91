"""Text as it streams against the text of all ids at once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from radixrt.checkpoint import Vocabulary
from radixrt.tokenizer.detokenize import Detokenizer, adds_space

HARD = ["👩‍🚀 ď 漢字 🇨🇭", "👨‍👩‍👧‍👦", "é e\u0301", "नमस्ते", "  two  spaces\n\n\ttab", "a\u200db", "🏳️‍🌈!", ""]


def stream(detokenizer: Detokenizer, ids: list[int]) -> list[str]:
    return [*(detokenizer.push(i) for i in ids), detokenizer.flush()]


@pytest.mark.parametrize("text", HARD)
def test_no_half_character_is_shown(vocabulary: Vocabulary, text: str) -> None:
    ids = vocabulary.encode(text)
    parts = stream(Detokenizer(vocabulary), ids)
    assert "".join(parts) == text
    assert all("\ufffd" not in part for part in parts)
    # Every character is there as soon as its last byte is.
    shown = 0
    for n, part in enumerate(parts[:-1], start=1):
        shown += len(part)
        whole = b"".join(vocabulary.token_bytes(i) for i in ids[:n]).decode("utf-8", "ignore")
        assert shown == len(whole)


@given(ids=st.lists(st.integers(0, 270), max_size=30), skip=st.booleans())
def test_any_ids_stream_to_their_text(vocabulary: Vocabulary, ids: list[int], skip: bool) -> None:
    text = "".join(stream(Detokenizer(vocabulary, skip_special_tokens=skip), ids))
    assert text == vocabulary.decode(ids, skip_special_tokens=skip)


def test_an_incomplete_character_is_flushed_once(vocabulary: Vocabulary) -> None:
    ids = vocabulary.encode("a🇨")[:-1]
    parts = stream(Detokenizer(vocabulary), ids)
    assert parts[0] == "a" and "".join(parts[1:-1]) == "" and parts[-1] == "\ufffd"


def test_special_tokens_are_shown_or_skipped(vocabulary: Vocabulary) -> None:
    ids = [2, *vocabulary.encode("hi"), 3]
    assert "".join(stream(Detokenizer(vocabulary, skip_special_tokens=True), ids)) == "hi"
    assert "".join(stream(Detokenizer(vocabulary, skip_special_tokens=False), ids)) == "<|im_start|>hi<|im_end|>"


def test_the_space_of_a_sentencepiece_token_is_kept_in_a_continuation(spaced: Vocabulary) -> None:
    assert adds_space(spaced)
    ids = spaced.encode("ab x")
    assert "".join(stream(Detokenizer(spaced), ids)) == " ab x"
    assert "".join(stream(Detokenizer(spaced, strip_space=True), ids)) == spaced.decode(ids) == "ab x"


def test_a_byte_level_tokenizer_adds_no_space(vocabulary: Vocabulary) -> None:
    assert not adds_space(vocabulary)


@settings(deadline=None)
@given(text=st.text(max_size=40))
def test_any_text_comes_back(vocabulary: Vocabulary, text: str) -> None:
    ids = vocabulary.encode(text)
    assert "".join(stream(Detokenizer(vocabulary), ids)) == text


def test_real_tokenizer(smollm2: Any, cases: Path) -> None:
    vocabulary = smollm2.vocabulary(None)
    lines = (cases / "smollm2_tokens.jsonl").read_text(encoding="utf-8").splitlines()
    assert len(lines) > 300
    for line in lines:
        case = json.loads(line)
        parts = stream(Detokenizer(vocabulary), case["ids"])
        assert "".join(parts) == case["text"]
        if "\ufffd" not in case["text"]:
            assert all("\ufffd" not in part for part in parts)
