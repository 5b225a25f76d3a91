"""Sockets of engines that run side by side on one machine."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from radixrt.transport import private_directory


def test_two_engines_share_no_socket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has a directory of its own, which nobody else may enter, and whose sockets' paths the system can hold."""
    for folder in (tmp_path, tmp_path / ("long" * 40)):
        folder.mkdir(exist_ok=True)
        monkeypatch.setenv("TMPDIR", str(folder))
        monkeypatch.setattr("tempfile.tempdir", None)
        made = [Path(private_directory()) for _ in range(2)]
        try:
            assert made[0] != made[1]
            for directory in made:
                assert stat.S_IMODE(directory.stat().st_mode) == 0o700 and directory.stat().st_uid == os.getuid()
                assert len(os.fsencode(directory / "scheduler-out")) < 108
        finally:
            for directory in made:
                directory.rmdir()
