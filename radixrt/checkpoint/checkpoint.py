"""A model's files as one object: its config, tokenizer, chat template and end tokens."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Literal

from radixrt.checkpoint.config import ModelConfig
from radixrt.checkpoint.config_gguf import config_from_gguf
from radixrt.checkpoint.gguf_file import GgufFile, read_gguf
from radixrt.checkpoint.tokenizer_gguf import gguf_eos_ids, tokenizer_from_gguf
from radixrt.checkpoint.vocabulary import Vocabulary
from radixrt.errors import ModelError


class Checkpoint:
    """What `open_checkpoint` found. Weights are read by the models room from `gguf` or `safetensors_files`."""

    def __init__(
        self,
        *,
        path: Path,
        format: Literal["gguf", "safetensors"],
        config: ModelConfig,
        chat_template: str | None,
        eos_token_ids: tuple[int, ...],
        gguf: GgufFile | None = None,
        safetensors_files: tuple[Path, ...] = (),
    ) -> None:
        self.path = path
        self.format: Literal["gguf", "safetensors"] = format
        self.config = config
        self.chat_template = chat_template
        self.eos_token_ids = eos_token_ids
        """Every token that ends a generation, the tokenizer's own end token first."""
        self.gguf = gguf
        """The parsed header (where each tensor lies), for GGUF."""
        self.safetensors_files = safetensors_files

    @property
    def gguf_path(self) -> Path | None:
        return self.gguf.path if self.gguf is not None else None

    def vocabulary(self, override: str | None = None) -> Vocabulary:
        """The tokenizer: the model's own, or that of `override` (a tokenizer.json, or a directory that holds one)."""
        return self._own_vocabulary

    @cached_property
    def _own_vocabulary(self) -> Vocabulary:
        facts = tokenizer_from_gguf(self.gguf.metadata)
        return Vocabulary(facts.json, bos_id=facts.bos_id, eos_ids=facts.eos_ids, adds_bos=facts.adds_bos)


def open_checkpoint(path: Path) -> Checkpoint:
    """The checkpoint at `path`: a .gguf file, or a directory with config.json and safetensors.

    Raises ModelError when files are missing, broken or truncated, or the architecture is not supported.
    """
    path = Path(path)
    if path.suffix == ".gguf":
        file = read_gguf(path)
        template = file.metadata.get("tokenizer.chat_template")
        return Checkpoint(
            path=path,
            format="gguf",
            config=config_from_gguf(file),
            chat_template=template if isinstance(template, str) and template else None,
            eos_token_ids=gguf_eos_ids(file.metadata),
            gguf=file,
        )
    raise ModelError(f"{path.name} is neither a GGUF file nor a directory with config.json")
