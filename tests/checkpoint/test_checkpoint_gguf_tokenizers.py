"""Tokenizers rebuilt from GGUF metadata give the ids of the tokenizer that was written into the file.

The pre-tokenizers of the originals are spelt here as in the models' own tokenizer.json files.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import pytest
from checkpoint_stand_ins import write_gguf
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from radixrt.checkpoint import open_checkpoint
from radixrt.errors import ModelError

CORPUS = [
    "The quick brown fox doesn't jump over 12345 lazy dogs; it's 2024-02-30.",
    "naïve café 漢字 日本語 \U0001f469‍\U0001f680 e\u0301 Straße ďábel",
    "def f(x):\n\treturn x ** 2  # square\n\n\nclass A: pass\r\n",
    "I'LL we've THEY'RE don't 'tis 1,000,000 3.14159 ①②③ ५६७",
    "   leading, trailing   \n   and  double  spaces CamelCaseWords HTMLParser",
] * 4
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
QWEN2 = LLAMA3.replace("{1,3}", "")
TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}"
    r"\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def split(regex: str) -> pre_tokenizers.PreTokenizer:
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(regex), "isolated"), byte_level])


ORIGINALS: dict[str, pre_tokenizers.PreTokenizer] = {
    "gpt-2": pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
    "smollm": pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    ),
    "llama-bpe": split(LLAMA3),
    "qwen2": split(QWEN2),
    "tekken": split(TEKKEN),
}
ADDED = [("<|begin|>", True), ("<|end|>", True), ("<tool call>", False)]
BUILT: dict[str, tuple[Tokenizer, Path]] = {}


def byte_level(name: str, folder: Path) -> tuple[Tokenizer, Path]:
    """A small tokenizer of the kind, trained on the corpus, and a GGUF file that holds it."""
    original = Tokenizer(models.BPE(ignore_merges=name in ("llama-bpe", "tekken")))
    original.pre_tokenizer = ORIGINALS[name]
    original.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=420, show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    original.train_from_iterator(CORPUS, trainer)
    original.add_tokens([AddedToken(text, special=special, normalized=False) for text, special in ADDED])
    model = json.loads(original.to_str())["model"]
    tokens = [original.id_to_token(i) for i in range(original.get_vocab_size())]
    kinds = {text: 3 if special else 4 for text, special in ADDED}

    def fields(writer: gguf.GGUFWriter) -> None:
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre(name)
        writer.add_token_merges([" ".join(pair) for pair in model["merges"]])
        writer.add_bos_token_id(tokens.index("<|begin|>"))
        writer.add_eos_token_id(tokens.index("<|end|>"))

    path = write_gguf(
        folder / f"{name}.gguf", tokens=[*tokens, "[PAD0]"], types=[*(kinds.get(t, 1) for t in tokens), 5], extra=fields
    )
    return original, path


@pytest.mark.parametrize("name", list(ORIGINALS))
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.one_of(st.text(max_size=40), st.sampled_from([*CORPUS[:5], "a<tool call>b", "x<|end|>", ""])))
def test_byte_level_ids(name: str, text: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    if name not in BUILT:
        BUILT[name] = byte_level(name, tmp_path_factory.mktemp(name))
    original, path = BUILT[name]
    vocabulary = open_checkpoint(path).vocabulary()
    assert vocabulary.encode(text, allow_special=True) == original.encode(text, add_special_tokens=False).ids
    original.encode_special_tokens = True
    try:
        assert vocabulary.encode(text) == original.encode(text, add_special_tokens=False).ids
    finally:
        original.encode_special_tokens = False
    assert vocabulary.decode(vocabulary.encode(text)) == text


@pytest.mark.parametrize("name", list(ORIGINALS))
def test_byte_level_facts(name: str, tmp_path: Path) -> None:
    original, path = byte_level(name, tmp_path)
    vocabulary = open_checkpoint(path).vocabulary()
    begin, end, tool = (original.token_to_id(text) for text, _ in ADDED)
    assert vocabulary.special_tokens == {"<|begin|>": begin, "<|end|>": end}
    assert vocabulary.encode("<tool call>") == [tool]
    assert vocabulary.decode([tool], skip_special_tokens=True) == "<tool call>"
    assert vocabulary.bos_id == begin and vocabulary.eos_ids == (end,)
    assert vocabulary.adds_bos == (name in ("llama-bpe", "tekken"))
    # The padding token at the end is nothing that a text or the model could mean.
    assert vocabulary.size == original.get_vocab_size()


def sentencepiece(folder: Path, prefix: bool) -> tuple[Tokenizer, Path]:
    """A small sentencepiece-like BPE with byte fallback, as Llama 2's tokenizer.json spells it."""
    original = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    steps: list[Any] = [normalizers.Prepend("▁")] if prefix else []
    original.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", "▁")])
    ends: list[Any] = [decoders.Strip(" ", 1, 0)] if prefix else []
    original.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *ends])
    specials = ["<unk>", "<s>", "</s>"]
    fallback = [f"<0x{b:02X}>" for b in range(256)]
    trainer = trainers.BpeTrainer(
        vocab_size=560, show_progress=False, special_tokens=[*specials, *fallback], limit_alphabet=120
    )
    original.train_from_iterator(CORPUS, trainer)
    # The byte tokens were special only for the trainer.
    spec = json.loads(original.to_str())
    spec["added_tokens"] = [token for token in spec["added_tokens"] if token["content"] in specials]
    original = Tokenizer.from_str(json.dumps(spec))
    tokens = [original.id_to_token(i) for i in range(original.get_vocab_size())]
    ranks = {"".join(pair): rank for rank, pair in reversed(list(enumerate(spec["model"]["merges"])))}
    kinds = {"<unk>": 2, "<s>": 3, "</s>": 3} | dict.fromkeys(fallback, 6)

    def fields(writer: gguf.GGUFWriter) -> None:
        writer.add_tokenizer_model("llama")
        writer.add_token_scores([float(-ranks.get(token, 10**6)) for token in tokens])
        writer.add_bos_token_id(1)
        writer.add_eos_token_id(2)
        writer.add_add_space_prefix(prefix)

    path = write_gguf(folder / "spm.gguf", tokens=tokens, types=[kinds.get(t, 1) for t in tokens], extra=fields)
    return original, path


@pytest.mark.parametrize("prefix", [True, False])
def test_sentencepiece_ids(prefix: bool, tmp_path: Path) -> None:
    original, path = sentencepiece(tmp_path, prefix)
    vocabulary = open_checkpoint(path).vocabulary()
    lines = [line for text in CORPUS[:5] for line in (text, *text.split())]
    for text in [*lines, "", " ", "  two", "żółw \U0001f40b", "</s> is text"]:
        ids = vocabulary.encode(text)
        assert not set(ids) & {1, 2}
        assert vocabulary.decode(ids) == text
        if "</s>" not in text:
            assert ids == original.encode(text, add_special_tokens=False).ids, text
    assert vocabulary.encode("</s>", allow_special=True) == [2]
    assert vocabulary.adds_bos
    assert vocabulary.encode("a", add_bos=True)[0] == 1
    assert vocabulary.token_bytes(3 + 0xE2) == b"\xe2"
    whale = vocabulary.encode("\U0001f40b")
    assert b"".join(vocabulary.token_bytes(i) for i in whale).lstrip() == "\U0001f40b".encode()


def edited(tmp_path: Path, fields: Any, tokens: list[str] | None = None) -> Path:
    tokens = tokens or ["a", "b", "ab"]
    return write_gguf(tmp_path / "edited.gguf", tokens=tokens, types=[1] * len(tokens), extra=fields)


def test_unknown_kinds_ask_for_a_tokenizer(tmp_path: Path) -> None:
    def unknown_pre(writer: gguf.GGUFWriter) -> None:
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre("made-up")
        writer.add_token_merges(["a b"])

    with pytest.raises(ModelError, match=r"'made-up' is not known.*--tokenizer"):
        open_checkpoint(edited(tmp_path, unknown_pre)).vocabulary()
    with pytest.raises(ModelError, match=r"of kind 'rwkv'.*--tokenizer"):
        open_checkpoint(edited(tmp_path, lambda w: w.add_tokenizer_model("rwkv"))).vocabulary()

    def broken_merges(writer: gguf.GGUFWriter) -> None:
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre("gpt-2")
        writer.add_token_merges(["ab"])

    with pytest.raises(ModelError, match="merges are broken"):
        open_checkpoint(edited(tmp_path, broken_merges)).vocabulary()


def test_end_tokens_of_every_kind(tmp_path: Path) -> None:
    def fields(writer: gguf.GGUFWriter) -> None:
        writer.add_eos_token_id(2)
        writer.add_eot_token_id(1)
        writer.add_eom_token_id(2)

    assert open_checkpoint(edited(tmp_path, fields)).eos_token_ids == (2, 1)
