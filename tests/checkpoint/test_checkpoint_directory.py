"""Model directories: safetensors headers, chat templates, end tokens, tokenizers; whole, broken and truncated."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from radixrt.checkpoint import open_checkpoint
from radixrt.checkpoint.safetensors_file import read_safetensors_header
from radixrt.errors import ModelError

CONFIG = {
    "model_type": "llama", "hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 1,
    "num_attention_heads": 2, "num_key_value_heads": 1, "vocab_size": 300, "max_position_embeddings": 64,
    "bos_token_id": 0, "eos_token_id": 2,
}  # fmt: skip


def write(folder: Path, name: str, value: Any) -> None:
    (folder / name).write_text(json.dumps(value), encoding="utf-8")


def tokenizer() -> Tokenizer:
    """Byte-level, ids 0..2 special, 3 not special, a BOS template as Llama 3 has it."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=280, special_tokens=["<s>", "</s>", "<|eot|>"], initial_alphabet=alphabet, show_progress=False
    )
    made.train_from_iterator(["one two three"], trainer)
    made.add_tokens([AddedToken("<think>", special=False, normalized=False)])
    made.post_processor = processors.TemplateProcessing(single="<s> $A", pair="<s> $A $B", special_tokens=[("<s>", 0)])
    return made


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(tmp_path, "config.json", CONFIG)
    weights = {"model.embed_tokens.weight": np.zeros((300, 8), np.float16), "norm": np.zeros(8, np.float32)}
    save_file(weights, tmp_path / "model.safetensors")
    tokenizer().save(str(tmp_path / "tokenizer.json"))
    write(tmp_path, "tokenizer_config.json", {"bos_token": "<s>", "eos_token": {"content": "</s>"}})
    return tmp_path


def test_a_whole_directory(folder: Path) -> None:
    checkpoint = open_checkpoint(folder)
    assert checkpoint.format == "safetensors"
    assert checkpoint.safetensors_files == (folder / "model.safetensors",)
    assert checkpoint.gguf_path is None and checkpoint.gguf is None
    assert checkpoint.config.dtype == "float16"
    assert checkpoint.chat_template is None
    assert checkpoint.eos_token_ids == (1, 2)
    vocabulary = checkpoint.vocabulary()
    assert checkpoint.vocabulary() is vocabulary
    assert (vocabulary.bos_id, vocabulary.adds_bos, vocabulary.eos_ids) == (0, True, (1, 2))
    assert vocabulary.special_tokens == {"<s>": 0, "</s>": 1, "<|eot|>": 2}
    # The template that puts BOS in front is applied only where it is asked for.
    text = "one <think> two</s>"
    ids = vocabulary.encode(text)
    assert 0 not in ids and 1 not in ids and vocabulary.decode(ids) == text
    think = tokenizer().token_to_id("<think>")
    assert ids.count(think) == 1 and not vocabulary.is_special(think)
    assert vocabulary.encode("one", add_bos=True) == [0, *vocabulary.encode("one")]
    assert vocabulary.size == tokenizer().get_vocab_size()


def test_end_tokens_of_generation_config(folder: Path) -> None:
    write(folder, "generation_config.json", {"eos_token_id": [2, 7, 2]})
    assert open_checkpoint(folder).eos_token_ids == (1, 2, 7)
    (folder / "tokenizer.json").unlink()
    checkpoint = open_checkpoint(folder)
    assert checkpoint.eos_token_ids == (2, 7)
    with pytest.raises(ModelError, match=r"no tokenizer\.json.*--tokenizer"):
        checkpoint.vocabulary()


def test_a_null_bos_is_an_answer(folder: Path) -> None:
    write(folder, "tokenizer_config.json", {"bos_token": None, "eos_token": "</s>"})
    vocabulary = open_checkpoint(folder).vocabulary()
    assert (vocabulary.bos_id, vocabulary.adds_bos) == (None, False)
    assert vocabulary.encode("one", add_bos=True) == vocabulary.encode("one")
    write(folder, "tokenizer_config.json", {"bos_token": "<s>", "add_bos_token": False})
    vocabulary = open_checkpoint(folder).vocabulary()
    assert (vocabulary.bos_id, vocabulary.adds_bos) == (0, False)


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"tokenizer_config.json": {"chat_template": "A"}}, "A"),
        ({"tokenizer_config.json": {"chat_template": [{"name": "tool_use", "template": "B"},
                                                      {"name": "default", "template": "A"}]}}, "A"),
        ({"tokenizer_config.json": {"chat_template": [{"name": "tool_use", "template": "B"}]}}, None),
        ({"chat_template.json": {"chat_template": "A"}}, "A"),
        ({"chat_template.json": {"chat_template": "B"}, "tokenizer_config.json": {"chat_template": "A"}}, "A"),
        ({"chat_template.jinja": "A", "tokenizer_config.json": {"chat_template": "B"}}, "A"),
    ],
)  # fmt: skip
def test_chat_templates(folder: Path, files: dict[str, Any], expected: str | None) -> None:
    for name, value in files.items():
        if name.endswith(".jinja"):
            (folder / name).write_text(value)
        else:
            write(folder, name, value)
    assert open_checkpoint(folder).chat_template == expected


def test_sharded_weights(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "model-00001-of-00002.safetensors")
    save_file({"lm_head.weight": np.zeros((300, 8), np.float32)}, folder / "model-00002-of-00002.safetensors")
    names = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    save_file({"x": np.zeros(1, np.float32)}, folder / "unused.safetensors")
    write(folder, "model.safetensors.index.json", {"weight_map": {"a": names[0], "lm_head.weight": names[1]}})
    checkpoint = open_checkpoint(folder)
    assert [file.name for file in checkpoint.safetensors_files] == names
    (folder / names[1]).unlink()
    with pytest.raises(ModelError, match=f"lacks the files {names[1]}"):
        open_checkpoint(folder)
    write(folder, "model.safetensors.index.json", {"weight_map": {"a": "../outside.safetensors"}})
    with pytest.raises(ModelError, match="lacks the files"):
        open_checkpoint(folder)


def test_what_is_missing_or_broken(folder: Path) -> None:
    (folder / "tokenizer.json").write_text('{"model": {"type": "Nonsense"}}')
    with pytest.raises(ModelError, match=r"tokenizer\.json is broken"):
        open_checkpoint(folder).vocabulary()
    (folder / "config.json").write_text("{")
    with pytest.raises(ModelError, match=r"config\.json is not valid JSON"):
        open_checkpoint(folder)
    (folder / "config.json").unlink()
    with pytest.raises(ModelError, match=r"holds no config\.json"):
        open_checkpoint(folder)
    write(folder, "config.json", CONFIG)
    (folder / "model.safetensors").unlink()
    with pytest.raises(ModelError, match=r"holds no \.safetensors"):
        open_checkpoint(folder)
    with pytest.raises(ModelError, match=r"neither a \.gguf file nor a directory"):
        open_checkpoint(folder / "absent")


def test_other_kinds_of_tokenizer_are_refused(folder: Path) -> None:
    words = Tokenizer(models.WordLevel({"a": 0, "<unk>": 1}, unk_token="<unk>"))
    words.save(str(folder / "tokenizer.json"))
    with pytest.raises(ModelError, match="no byte-level or sentencepiece-like BPE and no WordPiece"):
        open_checkpoint(folder).vocabulary()


def test_safetensors_headers(folder: Path) -> None:
    entries = read_safetensors_header(folder / "model.safetensors")
    assert {name: (entry.dtype, entry.shape, entry.nbytes) for name, entry in entries.items()} == {
        "model.embed_tokens.weight": ("F16", (300, 8), 4800),
        "norm": ("F32", (8,), 32),
    }


def test_truncated_safetensors_are_refused(folder: Path) -> None:
    file = folder / "model.safetensors"
    whole = file.read_bytes()
    for length in [*range(0, 200), len(whole) // 2, len(whole) - 1]:
        file.write_bytes(whole[:length])
        with pytest.raises(ModelError, match=r"model\.safetensors is not a usable"):
            open_checkpoint(folder)
    file.write_bytes((2**62).to_bytes(8, "little") + whole[8:])
    with pytest.raises(ModelError, match="reaches past its end"):
        open_checkpoint(folder)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_damaged_files_never_raise_anything_else(folder: Path, data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(["model.safetensors", "config.json", "tokenizer_config.json", "tokenizer.json"]))
    file = folder / name
    whole = file.read_bytes()
    damaged = bytearray(whole)
    for _ in range(data.draw(st.integers(1, 3))):
        damaged[data.draw(st.integers(0, min(len(damaged), 600) - 1))] = data.draw(st.integers(0, 255))
    try:
        file.write_bytes(damaged)
        checkpoint = open_checkpoint(folder)
        _ = checkpoint.eos_token_ids, checkpoint.chat_template
        checkpoint.vocabulary()
    except ModelError:
        return
    finally:
        file.write_bytes(whole)
