"""Packed weights kept on disk: the same numbers, made again when they are damaged, any number of makers at once."""

from __future__ import annotations

import logging
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Type
from models_steps import Pool
from models_tiny import random_tokens, save, tiny
from test_models_gguf import LLAMA, llama_tensors, quantized, write

from radixrt.checkpoint import open_checkpoint, read_gguf
from radixrt.config import Weights
from radixrt.kernels.cpu import native
from radixrt.models import load_model, packed_file
from radixrt.models.blocks import Decoder
from radixrt.models.gguf_weights import GgufWeights
from radixrt.models.packed_file import PackedFile

pytestmark = pytest.mark.skipif(not native.available(), reason="there is no C++ compiler")

GROUPED = {"hidden_size": 96, "intermediate_size": 160, "head_dim": 32}
HASH = "0123456789abcdef" * 2


def file_at(directory: Path, form: str) -> PackedFile:
    return PackedFile(directory, HASH, form)


def load(path: Path, directory: Path | None, weights: Weights = "auto") -> Decoder:
    where = None if directory is None else lambda form: file_at(directory, form)
    model = load_model(open_checkpoint(path), dtype=torch.bfloat16, weights=weights, packed_file=where)
    assert isinstance(model, Decoder) and model.narrow is not None
    return model


@pytest.fixture
def gguf(tmp_path: Path) -> Path:
    return write(tmp_path / "model.gguf", llama_tensors(Type.Q4_1), LLAMA)


def names_in(directory: Path) -> list[str]:
    """All files but those that say which file has been verified."""
    return sorted(entry.name for entry in directory.iterdir() if entry.suffix != ".checked")


def logits(model: Decoder) -> torch.Tensor:
    return Pool(model, 64).logits(random_tokens(9, seed=5))


@pytest.mark.parametrize("weights", ["auto", "int8", "int4"])
def test_first_second_and_without_a_file_are_equal(gguf: Path, weights: Weights, tmp_path: Path) -> None:
    without = logits(load(gguf, None, weights))
    kept = tmp_path / "kept"
    first = logits(load(gguf, kept, weights))
    path = file_at(kept, weights).path
    written = path.stat()
    second = logits(load(gguf, kept, weights))
    assert torch.equal(first, without) and torch.equal(second, without)
    assert (path.stat().st_ino, path.stat().st_mtime_ns) == (written.st_ino, written.st_mtime_ns)
    assert names_in(kept) == [path.name]


@pytest.mark.parametrize("name", ["llama, tied", "qwen2"])
def test_tied_and_untied_models_from_safetensors(name: str, tmp_path: Path) -> None:
    path = save(tiny(name, **GROUPED), tmp_path)
    kept = tmp_path / "kept"
    without = load(path, None, "int8")
    load(path, kept, "int8")
    assert torch.equal(logits(load(path, kept, "int8")), logits(without))


def test_nothing_dense_stays_beside_what_is_packed(gguf: Path, tmp_path: Path) -> None:
    model = load(gguf, tmp_path / "kept")
    assert all(linear.weight.device.type == "meta" for layer in model.layers for linear, _ in layer.linears().values())


def test_long_way_round_uses_the_packed_form_too(gguf: Path, tmp_path: Path) -> None:
    """Steps that the decoder in one call does not take (trees of drafts) go through the same packed products."""
    model = load(gguf, tmp_path / "kept")
    expected = logits(model)
    whole, model.narrow = model.narrow, None
    hidden = torch.randn(2, model.config.hidden_size, dtype=torch.bfloat16)
    assert model.layers[0].qkv(hidden).shape[1] == model.layers[0].qkv.weight.shape[0]
    model.narrow = whole
    assert torch.equal(logits(model), expected)


@pytest.mark.parametrize("damage", ["a bit", "cut", "empty", "end", "other model"])
def test_a_damaged_file_is_made_again(
    damage: str, gguf: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    kept = tmp_path / "kept"
    expected = logits(load(gguf, kept))
    path = file_at(kept, "auto").path
    good = path.read_bytes()
    match damage:
        case "a bit":
            middle = len(good) // 2
            path.write_bytes(good[:middle] + bytes([good[middle] ^ 1]) + good[middle + 1 :])
        case "cut":
            path.write_bytes(good[: len(good) // 2])
        case "empty":
            path.write_bytes(b"")
        case "end":
            path.write_bytes(good[:-30] + bytes(30))
        case "other model":
            other = file_at(kept, "int8").path
            load(gguf, kept, "int8")
            path.write_bytes(other.read_bytes())
    with caplog.at_level(logging.WARNING):
        again = logits(load(gguf, kept))
    assert "made again" in caplog.text and str(path) in caplog.text
    assert torch.equal(again, expected) and path.read_bytes() == good


def test_many_make_it_at_once(gguf: Path, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    with ThreadPoolExecutor(4) as pool:
        models = list(pool.map(lambda _: load(gguf, kept), range(4)))
    expected = logits(load(gguf, None))
    assert all(torch.equal(logits(model), expected) for model in models)
    assert names_in(kept) == [file_at(kept, "auto").path.name]


def test_earlier_versions_are_removed(gguf: Path, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    old, other = kept / f"{HASH}-auto-0.0.weights", kept / f"{HASH}-int8-0.0.weights"
    old.write_bytes(b"old")
    other.write_bytes(b"another form")
    load(gguf, kept)
    assert not old.exists() and other.exists()


def test_a_directory_that_cannot_be_written_to(gguf: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("not a directory")
    with caplog.at_level(logging.WARNING):
        model = load(gguf, tmp_path / "file")
    assert "cannot be kept" in caplog.text or "cannot be used" in caplog.text
    assert torch.equal(logits(model), logits(load(gguf, None)))


def test_checksums_are_looked_at_once(gguf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    verified: list[Path] = []
    monkeypatch.setattr(packed_file, "_verify", lambda path, blobs: verified.append(path))
    kept = tmp_path / "kept"
    load(gguf, kept)
    path = file_at(kept, "auto").path
    assert not verified, "what has just been written is not read again"
    for thread in threading.enumerate():
        if thread.name == "fsync":
            thread.join()
    path.touch()
    load(gguf, kept)
    load(gguf, kept)
    assert verified == [path]
    path.write_bytes(path.read_bytes())
    load(gguf, kept)
    assert verified == [path, path]


def test_a_disk_without_room_is_left_alone(
    gguf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(total=2**40, used=0, free=2**30))
    expected = logits(load(gguf, None))
    with caplog.at_level(logging.WARNING):
        assert torch.equal(logits(load(gguf, tmp_path / "kept")), expected)
    assert "cannot be kept" in caplog.text and "1.0 GiB are free" in caplog.text
    assert names_in(tmp_path / "kept") == []


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="there is no /proc")
@pytest.mark.parametrize("grouped", [False, True], ids=["dense", "groups"])
def test_pages_of_the_file_that_were_read_are_given_back(grouped: bool, tmp_path: Path) -> None:
    rows, width = 12288, 1024  # the kernel maps what lies around a page, too, a megabyte or two
    data = quantized((rows, width), Type.Q8_0, np.random.default_rng(0))
    path = write(tmp_path / "model.gguf", {"token_embd.weight": (data, Type.Q8_0)}, LLAMA)
    source = GgufWeights(read_gguf(path), interleaved_heads={})
    for first in range(0, rows, 256):
        if grouped:
            source.groups("model.embed_tokens.weight", first, first + 256)
        else:
            source.read("model.embed_tokens.weight", torch.empty(256, width), first)
    mapped = Path("/proc/self/smaps").read_text().split(str(path), 1)[1]
    assert int(mapped.split("Rss:", 1)[1].split()[0]) * 1024 < path.stat().st_size / 4
    source.close()
