"""How a model's hidden states become one vector a text: what its files say of it.

Directories: modules.json and the files it names, as the sentence-transformers library writes them, and vLLM's keys of
config.json for vectors that may be cut. GGUF: `ARCHITECTURE.pooling_type` (llama.cpp's enum of the same name).
"""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from typing import Any, Literal, TypeAlias

import msgspec

from radixrt.checkpoint.directory import read_json
from radixrt.errors import ModelError

Pooling: TypeAlias = Literal["mean", "cls", "last"]
"""Of a text's hidden states: their mean, the first one, or the last one."""

_MODES: dict[str, Pooling] = {"mean_tokens": "mean", "cls_token": "cls", "lasttoken": "last"}
_NAMES: dict[str, Pooling] = {"mean": "mean", "cls": "cls", "lasttoken": "last"}
_TYPES: dict[int, Pooling] = {1: "mean", 2: "cls", 3: "last"}
_RANK = 4
_KNOWN_MODULES = ("Transformer", "Pooling", "Normalize")


class EmbeddingFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What the files say. `fault`: why their way to a vector is not one that radixrt knows."""

    pooling: Pooling | None = None
    """None: nothing is said."""
    fault: str | None = None
    max_tokens: int | None = None
    """Tokens of a text that the model was made for, where that is less than its context."""
    sizes: tuple[int, ...] | None = None
    """Lengths that a vector may be cut to (Matryoshka representations, arXiv 2205.13147); (): any; None: none."""


def embedding_facts_of_directory(folder: Path, config: dict[str, Any]) -> EmbeddingFacts:
    """Of a directory whose config.json is `config`. ModelError where one of the files is broken."""
    pooling, fault = _pooling(folder)
    longest = read_json(folder / "sentence_bert_config.json").get("max_seq_length")
    return EmbeddingFacts(
        pooling=pooling,
        fault=fault,
        max_tokens=longest if type(longest) is int and longest > 0 else None,
        sizes=_sizes(config, read_json(folder / "config_sentence_transformers.json")),
    )


def embedding_facts_of_gguf(metadata: dict[str, Any], architecture: str) -> EmbeddingFacts:
    """Of a GGUF file's metadata."""
    kind = metadata.get(f"{architecture}.pooling_type")
    if kind == _RANK:
        return EmbeddingFacts(fault="it ranks pairs of texts (pooling type 4), which is not supported")
    return EmbeddingFacts(pooling=_TYPES.get(kind) if isinstance(kind, int) else None)


class _Module(msgspec.Struct):
    type: str
    path: str = ""


def _pooling(folder: Path) -> tuple[Pooling | None, str | None]:
    try:
        modules = msgspec.json.decode((folder / "modules.json").read_bytes(), type=list[_Module])
    except FileNotFoundError:
        return None, None
    except (msgspec.MsgspecError, UnicodeDecodeError, OSError) as error:
        raise ModelError("modules.json cannot be read as a list of modules: fetch the model again") from error
    for module in modules:
        kind = module.type.rsplit(".", 1)[-1]
        if kind not in _KNOWN_MODULES:
            return None, f"its modules.json names a {kind} module; these are known: {', '.join(_KNOWN_MODULES)}"
    path = next((module.path for module in modules if module.type.endswith("Pooling")), None)
    if path is None:
        return None, "its modules.json names no Pooling module"
    parts = PurePosixPath(path)
    if parts.is_absolute() or ".." in parts.parts:
        raise ModelError("modules.json names a file outside the model's directory")
    return _mode(read_json(folder / path / "config.json"))


def _mode(config: dict[str, Any]) -> tuple[Pooling | None, str | None]:
    names = config.get("pooling_mode")
    if names is not None:
        given = names if isinstance(names, list) else [names]
        table = _NAMES
    else:
        given = [key.removeprefix("pooling_mode_") for key, value in config.items() if value is True]
        given = [name for name in given if name not in ("include_prompt",)]
        table = _MODES
    if len(given) != 1 or given[0] not in table:
        known = ", ".join(table)
        return (
            None,
            f"its pooling is {', '.join(map(str, given)) or 'not said'}; these are known, one at a time: {known}",
        )
    return table[given[0]], None


def _sizes(config: dict[str, Any], library: dict[str, Any]) -> tuple[int, ...] | None:
    listed = config.get("matryoshka_dimensions")
    if isinstance(listed, list) and listed and all(type(size) is int and size > 0 for size in listed):
        return tuple(sorted(set(listed)))
    if config.get("is_matryoshka") is True or type(library.get("truncate_dim")) is int:
        return ()
    return None
