"""Where packed weights are kept: hashed once, ahead of who needs the hash, and never in the way of a start."""

from __future__ import annotations

import hashlib
import threading
from pathlib import Path

import pytest

from radixrt.checkpoint import open_checkpoint
from radixrt.runner import packed
from tests.waiting import HANG_S


def test_weights_are_hashed_once_and_whoever_needs_it_waits(
    tiny_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RADIXRT_HOME", str(tmp_path))
    checkpoint = open_checkpoint(tiny_path)
    begun, go_on, hashed = threading.Event(), threading.Event(), []
    real = hashlib.file_digest

    def slow(stream, name):  # type: ignore[no-untyped-def]
        begun.set()
        assert go_on.wait(HANG_S)
        hashed.append(stream.name)
        return real(stream, name)

    monkeypatch.setattr(hashlib, "file_digest", slow)
    packed.hash_ahead(checkpoint)
    assert begun.wait(HANG_S)
    found: list[object] = []
    asks = threading.Thread(target=lambda: found.append(packed.packed_file(checkpoint, "int8")))
    asks.start()
    assert not found
    go_on.set()
    asks.join(HANG_S)
    assert found[0] is not None and sorted(hashed) == sorted(str(file) for file in packed.weight_files(checkpoint))


def test_without_a_directory_nothing_is_kept_and_that_is_said(
    tiny_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("no directory")
    monkeypatch.setenv("RADIXRT_HOME", str(tmp_path / "file"))
    checkpoint = open_checkpoint(tiny_path)
    packed.hash_ahead(checkpoint)
    assert packed.packed_file(checkpoint, "int8") is None
    assert "packed weights cannot be kept" in caplog.text
