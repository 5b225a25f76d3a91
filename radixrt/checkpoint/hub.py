"""Models of the Hugging Face hub: `org/name`, `org/name:FILE.gguf`, either with `@revision`."""

from __future__ import annotations

import os
import re
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import msgspec

from radixrt.checkpoint.download import Progress
from radixrt.errors import ModelError

_NAME = re.compile(
    r"(?P<repo>[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)"
    r"(?:@(?P<rev1>[^:@]+))?(?::(?P<file>[^:@]+\.gguf))?(?:@(?P<rev2>[^:@]+))?"
)
_WANTED = ("*.json", "*.safetensors", "*.jinja")
_UNWANTED = ("*/*", "consolidated*.safetensors")
"""Folders hold other formats; Mistral's consolidated files hold the same weights a second time."""
_POOLING = "*_Pooling/config.json"
"""How an embedding model's hidden states become a vector: the one file in a folder that counts."""


class HubName(msgspec.Struct, frozen=True):
    repo: str
    file: str | None
    revision: str | None

    @staticmethod
    def parse(text: str) -> HubName | None:
        """None when `text` is not the name of a hub model."""
        match = _NAME.fullmatch(text)
        if match is None or ".." in text or (match["rev1"] and match["rev2"]):
            return None
        return HubName(match["repo"], match["file"], match["rev1"] or match["rev2"])


def hub_cache_dir() -> Path:
    """The hub library's own cache, which other programs share (found without importing the library)."""
    if cache := os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE"):
        return Path(cache).expanduser()
    root = os.environ.get("HF_HOME")
    base = Path(root).expanduser() if root else Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")) / "huggingface"
    return base.expanduser() / "hub"


def fetch_hub_model(name: HubName, progress: Progress, *, download: bool) -> Path:
    """A directory with config.json and safetensors, or a GGUF file, in the hub's cache.

    No code and no pickled weights are downloaded. A model that is in the cache is used when the hub cannot be reached.
    Raises ModelError.
    """
    from huggingface_hub import errors

    try:
        files = _list_files(name) if download else None
        if files is None:
            return _from_cache(name)
        return _download(name, files, progress)
    except errors.GatedRepoError as error:
        raise ModelError(
            f"{name.repo} asks for consent before it may be downloaded: give it on the hub's page, then set HF_TOKEN"
        ) from error
    except errors.RevisionNotFoundError as error:
        raise ModelError(f"{name.repo} has no revision {name.revision or 'main'!r} on the hub") from error
    except errors.RepositoryNotFoundError as error:
        raise ModelError(
            f"the hub has no model {name.repo} (or it is private: set HF_TOKEN). Check the spelling."
        ) from error
    except (errors.EntryNotFoundError, errors.HFValidationError, OSError) as error:
        raise ModelError(
            f"{name.repo} could not be downloaded from the hub ({type(error).__name__}): check the network, "
            "HF_ENDPOINT and the space on disk, then try again"
        ) from error


def _list_files(name: HubName) -> list[str] | None:
    """The repository's files; None when the hub cannot be reached (then the cache may help)."""
    from huggingface_hub import HfApi, errors

    try:
        info = HfApi().model_info(name.repo, revision=name.revision, timeout=15)
    except errors.OfflineModeIsEnabled:
        return None
    except errors.HfHubHTTPError:
        raise
    except OSError:
        return None
    except Exception as error:
        # Transport errors come from the HTTP library that huggingface_hub was built on, which changed over time.
        if type(error).__module__.partition(".")[0] in ("httpx", "httpx2", "httpcore", "requests"):
            return None
        raise
    return [sibling.rfilename for sibling in info.siblings or []]


def _download(name: HubName, files: list[str], progress: Progress) -> Path:
    from huggingface_hub import hf_hub_download, snapshot_download

    bar = _progress_bar(name.repo, progress)
    file = name.file or _only_gguf(name, files)
    if file is not None:
        if file not in files:
            raise ModelError(f"{name.repo} has no file {file}.{_gguf_hint(name, files)}")
        return Path(hf_hub_download(name.repo, file, revision=name.revision, tqdm_class=bar))
    folder = snapshot_download(
        name.repo, revision=name.revision, allow_patterns=[file for file in files if _wanted(file)], tqdm_class=bar
    )
    return Path(folder)


def _wanted(file: str) -> bool:
    if fnmatch(file, _POOLING):
        return file.count("/") == 1
    return any(fnmatch(file, pattern) for pattern in _WANTED) and not any(fnmatch(file, p) for p in _UNWANTED)


def _only_gguf(name: HubName, files: list[str]) -> str | None:
    """None: the repository holds safetensors; the GGUF file where it is the only one; else ModelError."""
    top = [file for file in files if "/" not in file]
    if "config.json" in top and any(file.endswith(".safetensors") for file in top):
        return None
    ggufs = [file for file in files if file.endswith(".gguf")]
    if len(ggufs) == 1:
        return ggufs[0]
    raise ModelError(
        f"{name.repo} holds no config.json with .safetensors files, which radixrt needs.{_gguf_hint(name, files)}"
    )


def _gguf_hint(name: HubName, files: list[str]) -> str:
    ggufs = [file for file in files if file.endswith(".gguf")]
    return f" Choose one of its GGUF files: {', '.join(f'{name.repo}:{file}' for file in ggufs[:20])}" if ggufs else ""


def _from_cache(name: HubName) -> Path:
    """What the hub's cache holds of the model; ModelError when that is not enough to run it.

    Read from the cache's documented layout (refs/REVISION names a folder of snapshots/): the library's own offline call
    refuses a snapshot that was fetched in part on purpose.
    """
    missing = ModelError(
        f"{name.repo} is not on this machine, and the hub cannot be reached or was not to be asked: check the network "
        "and HF_ENDPOINT, or fetch it with `radixrt pull`"
    )
    root = hub_cache_dir() / f"models--{name.repo.replace('/', '--')}"
    revision = name.revision or "main"
    ref = root / "refs" / revision
    folder = root / "snapshots" / (ref.read_text().strip() if ref.is_file() else revision)
    if not folder.is_dir():
        raise missing
    if name.file is not None:
        if (folder / name.file).is_file():
            return folder / name.file
        raise missing
    if (folder / "config.json").is_file() and any(folder.glob("*.safetensors")):
        return folder
    ggufs = sorted(str(file.relative_to(folder)) for file in folder.glob("**/*.gguf"))
    if len(ggufs) == 1:
        return folder / ggufs[0]
    if ggufs:
        raise ModelError(f"{name.repo} is here as several files.{_gguf_hint(name, ggufs)}")
    raise missing


def _progress_bar(repo: str, progress: Progress) -> Any:
    """A bar class for huggingface_hub that draws nothing and reports bytes to `progress`."""
    from tqdm.auto import tqdm

    class Bar(tqdm):  # type: ignore[misc]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            kwargs.pop("name", None)
            self._counts_bytes = kwargs.get("unit") == "B"
            super().__init__(*args, **{**kwargs, "disable": True})
            self._done = int(kwargs.get("initial", 0) or 0)
            self.total = kwargs.get("total")

        def update(self, n: float | None = 1) -> bool | None:
            if self._counts_bytes and n:
                self._done += int(n)
                progress(f"downloading {repo}", self._done, int(self.total) if self.total else None)
            return None

    return Bar
