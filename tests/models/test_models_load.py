"""Checkpoints as people have them: tied or not, sharded, half precision, with tensors missing, extra or misshapen."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest
import torch
from models_steps import Pool, max_difference
from models_tiny import random_tokens, save, tiny, truth
from safetensors.torch import load_file, save_file
from transformers import LlamaForCausalLM

from radixrt.checkpoint import open_checkpoint
from radixrt.errors import ModelError
from radixrt.models import load_model
from radixrt.models.blocks import Decoder

HEAD, EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"


@pytest.fixture
def tied(tmp_path: Path) -> Path:
    return save(tiny("llama, tied"), tmp_path)


def load(path: Path, dtype: torch.dtype = torch.float32) -> Decoder:
    model = load_model(open_checkpoint(path), dtype=dtype)
    assert isinstance(model, Decoder)
    return model


def change(path: Path, tensors: dict[str, torch.Tensor | None], **config: object) -> None:
    """Put tensors into the only file, take out those that are None, and set config fields (None: take out)."""
    file = path / "model.safetensors"
    held = load_file(file) | tensors
    save_file({name: tensor.contiguous() for name, tensor in held.items() if tensor is not None}, file)
    read = json.loads((path / "config.json").read_text()) | config
    (path / "config.json").write_text(json.dumps({key: value for key, value in read.items() if value is not None}))


def test_a_tied_head_shares_its_storage(tied: Path) -> None:
    assert HEAD not in load_file(tied / "model.safetensors")
    model = load(tied)
    assert model.head.data_ptr() == model.embedding.data_ptr()


def test_an_explicit_head_gives_the_same_logits(tied: Path) -> None:
    tokens = random_tokens(20)
    before = Pool(load(tied), 30).logits(tokens)
    embedding = load_file(tied / "model.safetensors")[EMBEDDING]
    change(tied, {HEAD: embedding.clone()}, tie_word_embeddings=False)
    model = load(tied)
    assert model.head.data_ptr() != model.embedding.data_ptr()
    assert torch.equal(Pool(model, 30).logits(tokens), before)


def test_an_equal_head_beside_a_tied_config_is_not_kept(tied: Path, caplog: pytest.LogCaptureFixture) -> None:
    change(tied, {HEAD: load_file(tied / "model.safetensors")[EMBEDDING].clone()})
    model = load(tied)
    assert model.head.data_ptr() == model.embedding.data_ptr()
    assert not caplog.records


def test_another_head_beside_a_tied_config_is_used_with_a_warning(tied: Path, caplog: pytest.LogCaptureFixture) -> None:
    head = torch.randn_like(load_file(tied / "model.safetensors")[EMBEDDING])
    change(tied, {HEAD: head})
    assert torch.equal(load(tied).head, head)
    assert HEAD in caplog.text


def test_an_untied_model_without_its_head_is_refused(tmp_path: Path) -> None:
    path = save(tiny("llama, untied, llama3 rope"), tmp_path)
    change(path, {HEAD: None})
    with pytest.raises(ModelError, match=r"lack.*lm_head\.weight"):
        load(path)


def test_missing_tensors_are_named(tied: Path) -> None:
    gone = ["model.layers.1.mlp.up_proj.weight", "model.layers.2.self_attn.k_proj.weight", "model.norm.weight"]
    change(tied, dict.fromkeys(gone))
    with pytest.raises(ModelError) as raised:
        load(tied)
    assert all(name in raised.value.message for name in gone)


def test_unknown_tensors_are_named_in_a_warning(tied: Path, caplog: pytest.LogCaptureFixture) -> None:
    before = Pool(load(tied), 30).logits(random_tokens(9))
    assert not caplog.records
    change(tied, {"model.layers.0.self_attn.q_proj.lora_a": torch.ones(3)})
    with caplog.at_level(logging.WARNING):
        model = load(tied)
    assert "model.layers.0.self_attn.q_proj.lora_a" in caplog.text
    assert torch.equal(Pool(model, 30).logits(random_tokens(9)), before)


def test_buffers_that_follow_from_the_config_are_no_surprise(tied: Path, caplog: pytest.LogCaptureFixture) -> None:
    change(tied, {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4)})
    load(tied)
    assert not caplog.records


def test_a_wrong_shape_is_told_with_both_shapes(tied: Path) -> None:
    change(tied, {"model.layers.1.mlp.down_proj.weight": torch.zeros(48, 79)})
    with pytest.raises(ModelError, match=r"layers\.1\.mlp\.down_proj.*\[48, 79\].*\[48, 80\]"):
        load(tied)


def test_a_transposed_matrix_does_not_pass(tied: Path) -> None:
    change(tied, {"model.layers.1.mlp.down_proj.weight": torch.zeros(80, 48)})
    with pytest.raises(ModelError, match=r"\[80, 48\]"):
        load(tied)


def test_shards(tmp_path: Path) -> None:
    reference = tiny("qwen2")
    path = save(reference, tmp_path, max_shard_size="60KB")
    assert len(list(path.glob("*.safetensors"))) > 2
    tokens = random_tokens(20)
    assert max_difference(Pool(load(path), 30).logits(tokens), truth(reference, tokens)) < 1e-4


@pytest.mark.parametrize("stored", [torch.float16, torch.bfloat16])
def test_half_precision_files(stored: torch.dtype, tmp_path: Path) -> None:
    path = save(tiny("llama, tied").to(stored), tmp_path)
    reference = LlamaForCausalLM.from_pretrained(path, dtype=torch.float32)
    tokens = random_tokens(20)
    assert max_difference(Pool(load(path), 30).logits(tokens), truth(reference, tokens)) < 1e-4


def test_progress_goes_from_little_to_all(tied: Path) -> None:
    seen: list[tuple[str, float]] = []
    load_model(open_checkpoint(tied), dtype=torch.float32, progress=lambda stage, done: seen.append((stage, done)))
    fractions = [done for _, done in seen]
    assert {stage for stage, _ in seen} == {"weights"}
    assert fractions == sorted(fractions) and fractions[0] < 0.5 and fractions[-1] == 1.0


@pytest.mark.parametrize("bare", [True, False])
def test_an_embedding_model_that_was_saved_without_its_head(tmp_path: Path, bare: bool) -> None:
    """Names have no "model." in front; its class says whether it generates all the same (Qwen3-Embedding's does)."""
    theirs = tiny("qwen3")
    tokens = random_tokens(20)
    save(theirs.model, tmp_path)
    if not bare:
        change(tmp_path, {}, architectures=["Qwen3ForCausalLM"])
    checkpoint = open_checkpoint(tmp_path)
    assert checkpoint.generates is not bare
    names = load_file(tmp_path / "model.safetensors")
    assert "embed_tokens.weight" in names and HEAD not in names
    assert max_difference(Pool(load(tmp_path), 30).logits(tokens), truth(theirs, tokens)) < 1e-3
