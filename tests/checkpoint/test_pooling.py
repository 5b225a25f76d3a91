"""What a model's files say of embeddings, and which encoders are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from radixrt.checkpoint import open_checkpoint
from radixrt.errors import ModelError
from tests.tiny_bert import POSITIONS, tiny_bert, write_gguf, write_tiny_bert


@pytest.fixture(scope="module")
def model() -> Any:
    return tiny_bert()


@pytest.fixture
def folder(model: Any, tmp_path: Path) -> Path:
    return write_tiny_bert(tmp_path / "dir", model)


def change(folder: Path, file: str = "config.json", **changes: Any) -> Path:
    path = folder / file
    path.write_text(json.dumps((json.loads(path.read_text()) if path.exists() else {}) | changes))
    return folder


@pytest.mark.parametrize("pooling", ["mean", "cls", "last"])
def test_pooling_of_a_directory(model: Any, tmp_path: Path, pooling: str) -> None:
    checkpoint = open_checkpoint(write_tiny_bert(tmp_path, model, pooling=pooling, tokens=20))
    assert checkpoint.embedding.pooling == pooling and checkpoint.embedding.fault is None
    assert checkpoint.encoder is not None and not checkpoint.generates
    assert (checkpoint.encoder.context_length, checkpoint.encoder.positions) == (20, POSITIONS)


@pytest.mark.parametrize(("number", "pooling"), [(1, "mean"), (2, "cls"), (3, "last"), (0, None), (None, None)])
def test_pooling_of_a_gguf_file(model: Any, tmp_path: Path, number: int | None, pooling: str | None) -> None:
    checkpoint = open_checkpoint(write_gguf(tmp_path / "bert.gguf", model, pooling=number))
    assert checkpoint.embedding.pooling == pooling and checkpoint.embedding.fault is None
    assert checkpoint.encoder is not None and checkpoint.encoder.context_length == POSITIONS


def test_a_ranking_gguf_file_has_a_fault(model: Any, tmp_path: Path) -> None:
    assert "ranks" in (open_checkpoint(write_gguf(tmp_path / "b.gguf", model, pooling=4)).embedding.fault or "")


def test_nothing_said(model: Any, tmp_path: Path) -> None:
    facts = open_checkpoint(write_tiny_bert(tmp_path, model, pooling=None)).embedding
    assert (facts.pooling, facts.fault, facts.sizes) == (None, None, None)


def test_newer_spelling_of_the_pooling(folder: Path) -> None:
    (folder / "1_Pooling" / "config.json").write_text('{"embedding_dimension": 32, "pooling_mode": "lasttoken"}')
    assert open_checkpoint(folder).embedding.pooling == "last"


@pytest.mark.parametrize(
    ("config", "words"),
    [({"pooling_mode_max_tokens": True}, "max_tokens"), ({"pooling_mode_mean_tokens": True, "pooling_mode_cls_token":
      True}, "one at a time"), ({}, "not said")],
)  # fmt: skip
def test_other_poolings_are_a_fault(folder: Path, config: dict[str, Any], words: str) -> None:
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(config))
    assert words in (open_checkpoint(folder).embedding.fault or "")


def test_modules_that_are_not_known_are_a_fault(folder: Path) -> None:
    modules = json.loads((folder / "modules.json").read_text())
    modules.append({"idx": 3, "name": "3", "path": "3_Dense", "type": "sentence_transformers.models.Dense"})
    (folder / "modules.json").write_text(json.dumps(modules))
    assert "Dense" in (open_checkpoint(folder).embedding.fault or "")


@pytest.mark.parametrize("path", ["/etc", "../other"])
def test_modules_do_not_lead_out_of_the_directory(folder: Path, path: str) -> None:
    (folder / "modules.json").write_text(json.dumps([{"type": "x.Pooling", "path": path}]))
    with pytest.raises(ModelError, match="outside"):
        open_checkpoint(folder)


@pytest.mark.parametrize("text", ["{}", "[1]", "["])
def test_broken_modules(folder: Path, text: str) -> None:
    (folder / "modules.json").write_text(text)
    with pytest.raises(ModelError, match=r"modules\.json"):
        open_checkpoint(folder)


def test_sizes_that_a_vector_may_be_cut_to(folder: Path) -> None:
    assert open_checkpoint(change(folder, is_matryoshka=True)).embedding.sizes == ()
    assert open_checkpoint(change(folder, matryoshka_dimensions=[16, 8])).embedding.sizes == (8, 16)


def test_a_default_cut_of_the_library_says_that_it_may_be_cut(folder: Path) -> None:
    change(folder, "config_sentence_transformers.json", truncate_dim=16)
    assert open_checkpoint(folder).embedding.sizes == ()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"architectures": ["BertForSequenceClassification"]}, "no encoder"),
        ({"is_decoder": True}, "decode"),
        ({"position_embedding_type": "relative_key"}, "relative_key"),
        ({"hidden_act": "swish"}, "swish"),
        ({"num_attention_heads": 5}, "equal heads"),
        ({"num_hidden_layers": "two"}, "num_hidden_layers"),
        ({"vocab_size": 0}, "vocab_size"),
    ],
)
def test_encoders_that_differ_are_refused(folder: Path, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ModelError, match=words):
        open_checkpoint(change(folder, **changes))


def test_an_encoder_is_no_decoder(folder: Path) -> None:
    with pytest.raises(ModelError, match="encoder"):
        _ = open_checkpoint(folder).config


def test_other_architectures_are_told_what_there_is(folder: Path) -> None:
    with pytest.raises(ModelError, match="bert"):
        open_checkpoint(change(folder, model_type="nomic_bert"))
