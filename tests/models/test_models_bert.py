"""BERT's hidden states against transformers', from each form of files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from radixrt.checkpoint import open_checkpoint
from radixrt.errors import ModelError
from radixrt.models.load_encoder import load_encoder
from tests.tiny_bert import POSITIONS, WORDS, tiny_bert, write_gguf, write_tiny_bert

LENGTHS = [5, 1, POSITIONS, 5, 17, 2]


@pytest.fixture(scope="module")
def model() -> Any:
    return tiny_bert()


@pytest.fixture(scope="module")
def folder(model: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_bert(tmp_path_factory.mktemp("bert") / "dir", model)


def texts() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(0, len(WORDS), (length,), generator=generator) for length in LENGTHS]


def check(path: Path, truth: Any, tolerance: float = 2e-5) -> None:
    ours = load_encoder(open_checkpoint(path), dtype=torch.float32)
    some = texts()
    with torch.inference_mode():
        hidden = ours.forward(torch.cat(some), LENGTHS)
        for part, ids in zip(torch.split(hidden, LENGTHS), some, strict=True):
            expected = truth(input_ids=ids[None]).last_hidden_state[0]
            assert (part - expected).abs().max() < tolerance


def test_safetensors(folder: Path, model: Any) -> None:
    check(folder, model)


def test_gguf(model: Any, tmp_path: Path) -> None:
    check(write_gguf(tmp_path / "bert.gguf", model), model)


@pytest.mark.parametrize("changes", [{"hidden_act": "gelu_new"}, {"hidden_act": "relu"}, {"type_vocab_size": 1}])
def test_other_configurations(tmp_path: Path, changes: dict[str, Any]) -> None:
    other = tiny_bert(3, **changes)
    check(write_tiny_bert(tmp_path / "dir", other), other)
    if "type_vocab_size" in changes:
        check(write_gguf(tmp_path / "bert.gguf", other), other)


def test_names_of_models_with_a_head_and_of_old_files(folder: Path, model: Any, tmp_path: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    spelt = {
        "bert." + name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): part
        for name, part in weights.items()
    }
    spelt |= {"cls.predictions.bias": torch.zeros(3), "bert.pooler.dense.weight": torch.zeros(2, 2)}
    for file in folder.iterdir():
        if file.is_file():
            (tmp_path / file.name).write_bytes(file.read_bytes())
    save_file(spelt, tmp_path / "model.safetensors")
    check(tmp_path, model)


def test_missing_and_misshapen_tensors_are_named(folder: Path, tmp_path: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    for file in folder.iterdir():
        if file.is_file():
            (tmp_path / file.name).write_bytes(file.read_bytes())
    name = "encoder.layer.1.attention.self.key.weight"
    save_file({key: part for key, part in weights.items() if key != name}, tmp_path / "model.safetensors")
    with pytest.raises(ModelError, match=name):
        load_encoder(open_checkpoint(tmp_path), dtype=torch.float32)
    save_file(weights | {name: torch.zeros(3, 3)}, tmp_path / "model.safetensors")
    with pytest.raises(ModelError, match=name):
        load_encoder(open_checkpoint(tmp_path), dtype=torch.float32)


def test_neighbours_change_nothing(folder: Path) -> None:
    ours = load_encoder(open_checkpoint(folder), dtype=torch.float32)
    some = texts()
    with torch.inference_mode():
        together = torch.split(ours.forward(torch.cat(some), LENGTHS), LENGTHS)
        for part, ids in zip(together, some, strict=True):
            assert (part - ours.forward(ids, [len(ids)])).abs().max() < 1e-5


def test_a_decoder_is_no_encoder(tiny_path: Path) -> None:
    with pytest.raises(ModelError, match="no encoder but a llama"):
        load_encoder(open_checkpoint(tiny_path), dtype=torch.float32)
