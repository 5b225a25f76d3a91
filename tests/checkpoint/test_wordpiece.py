"""BERT's tokenizer from both formats, against transformers' own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from radixrt.checkpoint import Vocabulary, open_checkpoint
from radixrt.errors import ModelError
from tests.tiny_bert import SPECIAL, WORDS, bert_tokenizer, tiny_bert, write_gguf, write_tiny_bert

TEXTS = [
    "Hello, world!", "The CAT sat on the mat.", "unbelievable", "walking   walked\twalks\n", "Café naïve",
    "你好世界 abc",
    "привет", "€ 2026!?", "", "   ", "x" * 101, "x" * 100, "a\u0301 e\u0308\u200d", "\x00\ufffd\u00ad", "#@[unused0]",
    "don't (stop)", "ÄÖÜ ß ẞ", "🦀 ok", "ﬁ ½", "\ud800 half",
]  # fmt: skip


@pytest.fixture(scope="module")
def truth() -> Any:
    return bert_tokenizer()


@pytest.fixture(scope="module")
def vocabularies(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Vocabulary]:
    folder = tmp_path_factory.mktemp("bert")
    model = tiny_bert()
    paths = {"directory": write_tiny_bert(folder / "dir", model), "gguf": write_gguf(folder / "bert.gguf", model)}
    return {name: open_checkpoint(path).vocabulary() for name, path in paths.items()}


def embedded(vocabulary: Vocabulary, text: str) -> list[int]:
    return [*vocabulary.encode(text, add_bos=vocabulary.adds_bos), *vocabulary.suffix_ids]


def reference(truth: Any, text: str) -> list[int]:
    ids: list[int] = truth(
        text.encode("utf-8", "replace").decode() if "\ud800" not in text else "\ufffd half"
    ).input_ids
    return ids


@pytest.mark.parametrize("form", ["directory", "gguf"])
@pytest.mark.parametrize("text", TEXTS)
def test_texts_have_the_ids_of_transformers(
    vocabularies: dict[str, Vocabulary], truth: Any, form: str, text: str
) -> None:
    assert embedded(vocabularies[form], text) == reference(truth, text)


@given(st.text(st.sampled_from("abz AZé.,!#世你ß🦀\u0301\t[]▁€01и"), max_size=30))
@settings(max_examples=150, deadline=None)
def test_any_text_has_the_ids_of_transformers(vocabularies: dict[str, Vocabulary], truth: Any, text: str) -> None:
    if any(special in text for special in SPECIAL):
        return
    expected = reference(truth, text)
    assert embedded(vocabularies["directory"], text) == embedded(vocabularies["gguf"], text) == expected


@pytest.mark.parametrize("form", ["directory", "gguf"])
def test_a_text_never_becomes_a_special_token(vocabularies: dict[str, Vocabulary], form: str) -> None:
    vocabulary = vocabularies[form]
    special = {WORDS.index(text) for text in SPECIAL if text != "[UNK]"}
    assert not special & set(vocabulary.encode("a [SEP] b [CLS] [MASK]"))
    assert vocabulary.special_tokens["[SEP]"] in vocabulary.encode("a [SEP] b", allow_special=True)
    assert vocabulary.eos_ids == () and vocabulary.size == len(WORDS)


@pytest.mark.parametrize("form", ["directory", "gguf"])
def test_tokens_are_words_again(vocabularies: dict[str, Vocabulary], form: str) -> None:
    vocabulary = vocabularies[form]
    assert vocabulary.decode(vocabulary.encode("Hello, walking world")) == "hello , walking world"


def test_a_cased_vocabulary_keeps_case(tmp_path: Path) -> None:
    words = [*WORDS, "Hello", "##A"]
    model = tiny_bert(vocab_size=len(words))
    vocabulary = open_checkpoint(write_gguf(tmp_path / "cased.gguf", model, words=words)).vocabulary()
    truth = bert_tokenizer(words, do_lower_case=False)
    for text in ("Hello café aA", "hello HELLO"):
        assert embedded(vocabulary, text) == truth(text).input_ids


def test_a_vocabulary_without_its_markers_is_refused(tmp_path: Path) -> None:
    model = tiny_bert()
    path = write_gguf(tmp_path / "bert.gguf", model)
    checkpoint = open_checkpoint(path)
    assert checkpoint.gguf is not None
    metadata = checkpoint.gguf.metadata
    metadata["tokenizer.ggml.tokens"] = [t for t in metadata["tokenizer.ggml.tokens"] if t != "[CLS]"]
    metadata["tokenizer.ggml.token_type"] = metadata["tokenizer.ggml.token_type"][1:]
    with pytest.raises(ModelError, match=r"no \[CLS\] token"):
        checkpoint.vocabulary()


def test_truncation_that_a_file_asks_for_is_not_done(tmp_path: Path) -> None:
    folder = write_tiny_bert(tmp_path / "dir", tiny_bert())
    spec = json.loads((folder / "tokenizer.json").read_text())
    spec["truncation"] = {"max_length": 4, "strategy": "LongestFirst", "stride": 0, "direction": "Right"}
    spec["padding"] = {
        "strategy": {"Fixed": 8}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0, "pad_type_id": 0,
        "pad_token": "[PAD]",
    }  # fmt: skip
    (folder / "tokenizer.json").write_text(json.dumps(spec))
    assert len(open_checkpoint(folder).vocabulary().encode("a b c d e f g h i j")) == 10
