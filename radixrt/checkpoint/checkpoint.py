"""A model's files as one object: its config, tokenizer, chat template and end tokens."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal, Protocol

from radixrt.checkpoint.config import ModelConfig
from radixrt.checkpoint.config_gguf import config_from_gguf
from radixrt.checkpoint.config_hf import config_from_hf
from radixrt.checkpoint.directory import chat_template, configured_eos_ids, read_json, tokenizer_facts
from radixrt.checkpoint.encoder import ENCODERS, EncoderConfig, encoder_from_gguf, encoder_from_hf
from radixrt.checkpoint.gguf_file import GgufFile, read_gguf
from radixrt.checkpoint.pooling import EmbeddingFacts, embedding_facts_of_directory, embedding_facts_of_gguf
from radixrt.checkpoint.safetensors_file import read_safetensors_header, safetensors_files
from radixrt.checkpoint.tokenizer_gguf import TokenizerFacts, gguf_eos_ids, tokenizer_from_gguf
from radixrt.checkpoint.vocabulary import Vocabulary
from radixrt.checkpoint.vocabulary_size import size_from_gguf, size_from_json
from radixrt.errors import ModelError


class Checkpoint:
    """What `open_checkpoint` found. Weights are read by the models room from `gguf` or `safetensors_files`."""

    def __init__(
        self,
        *,
        path: Path,
        format: Literal["gguf", "safetensors"],
        config: ModelConfig | EncoderConfig,
        embedding: EmbeddingFacts,
        chat_template: str | None,
        gguf: GgufFile | None = None,
        safetensors_files: tuple[Path, ...] = (),
    ) -> None:
        self.path = path
        self.format: Literal["gguf", "safetensors"] = format
        self._config = config
        self.embedding = embedding
        """What the files say of embeddings."""
        self.chat_template = chat_template
        self.gguf = gguf
        """The parsed header (where each tensor lies), for GGUF."""
        self.safetensors_files = safetensors_files

    @property
    def config(self) -> ModelConfig:
        """A decoder's numbers. ModelError where the model is an encoder."""
        if isinstance(self._config, EncoderConfig):
            raise ModelError(f"the model is an encoder ({self._config.architecture}): it embeds and generates no text")
        return self._config

    @property
    def encoder(self) -> EncoderConfig | None:
        """An encoder's numbers; None where the model is a decoder."""
        return self._config if isinstance(self._config, EncoderConfig) else None

    @property
    def generates(self) -> bool:
        """It can say what comes next; else it only embeds."""
        return isinstance(self._config, ModelConfig) and self._config.generates

    @property
    def gguf_path(self) -> Path | None:
        return self.gguf.path if self.gguf is not None else None

    def vocabulary(self, override: str | None = None) -> Vocabulary:
        """The tokenizer: the model's own, or that of `override` (a tokenizer.json, or a directory that holds one).

        BOS and end tokens that the override does not name are the model's own ids. ModelError when the tokenizer is
        missing, broken or of a kind that cannot be rebuilt exactly.
        """
        if override is None:
            return self._own_vocabulary
        path = Path(override).expanduser()
        if path.is_dir():
            facts = tokenizer_facts(path)
        elif path.is_file():
            facts = tokenizer_facts(path.parent, path.name)
        else:
            raise ModelError(f"{override!r} is neither a tokenizer.json nor a directory that holds one")
        return Vocabulary(
            facts.json,
            bos_id=facts.bos_id,
            eos_ids=(*facts.eos_ids, *self.eos_token_ids),
            adds_bos=facts.adds_bos,
            suffix_ids=facts.suffix_ids,
        )

    def token_ids(self, override: str | None = None) -> TokenIds:
        """What `vocabulary(override)` says of ids alone: of a GGUF file's own tokenizer without building it, and the
        tokenizer.json is made when it is asked for. ModelError as there, or from `tokenizer_json`."""
        if override is not None or self.gguf is None:
            return self.vocabulary(override)
        try:
            size = size_from_gguf(self.gguf.metadata)
        except ModelError:
            return self.vocabulary()  # which says what can be done
        return _IdsOfGguf(self, size, tuple(index for index in self.eos_token_ids if index < size))

    def vocabulary_size(self, override: str | None = None) -> int:
        """`vocabulary(override).size` at a fraction of its cost. ModelError when there is no tokenizer to count."""
        if override is None and self.gguf is not None:
            return size_from_gguf(self.gguf.metadata)
        path = self.path if override is None else Path(override).expanduser()
        return size_from_json(path / "tokenizer.json" if path.is_dir() else path)

    @cached_property
    def eos_token_ids(self) -> tuple[int, ...]:
        """Every token that ends a generation, the tokenizer's own end token first.

        From GGUF: the end of sequence, of turn and of message. From a directory: the tokenizer's eos_token and those of
        generation_config.json (config.json where that names none).
        """
        if self.gguf is not None:
            return gguf_eos_ids(self.gguf.metadata)
        if not (self.path / "tokenizer.json").is_file():
            return configured_eos_ids(self.path)
        return self._facts.eos_ids

    @cached_property
    def _facts(self) -> TokenizerFacts:
        return tokenizer_facts(self.path) if self.gguf is None else tokenizer_from_gguf(self.gguf.metadata)

    @cached_property
    def _own_vocabulary(self) -> Vocabulary:
        facts = self._facts
        return Vocabulary(
            facts.json,
            bos_id=facts.bos_id,
            eos_ids=facts.eos_ids,
            adds_bos=facts.adds_bos,
            suffix_ids=facts.suffix_ids,
        )


class TokenIds(Protocol):
    """What there is to know of a tokenizer without text."""

    @property
    def eos_ids(self) -> tuple[int, ...]:
        """Tokens that end a generation."""
        ...

    @property
    def size(self) -> int:
        """Ids 0..size-1 exist."""
        ...

    def tokenizer_json(self) -> str: ...


@dataclass(frozen=True)
class _IdsOfGguf:
    checkpoint: Checkpoint
    size: int
    eos_ids: tuple[int, ...]

    def tokenizer_json(self) -> str:
        return self.checkpoint._facts.json.decode()


def open_checkpoint(path: Path) -> Checkpoint:
    """The checkpoint at `path`: a .gguf file, or a directory with config.json and safetensors.

    Raises ModelError when files are missing, broken or truncated, or the model is not one that radixrt runs.
    """
    path = Path(path)
    if path.is_dir():
        return _open_directory(path)
    if path.suffix == ".gguf":
        return _open_gguf(path)
    raise ModelError(f"{path.name} is neither a .gguf file nor a directory with config.json")


def _open_gguf(path: Path) -> Checkpoint:
    file = read_gguf(path)
    template = file.metadata.get("tokenizer.chat_template")
    architecture = str(file.metadata.get("general.architecture"))
    return Checkpoint(
        path=path,
        format="gguf",
        config=encoder_from_gguf(file) if architecture in ENCODERS else config_from_gguf(file),
        embedding=embedding_facts_of_gguf(file.metadata, architecture),
        chat_template=template if isinstance(template, str) and template else None,
        gguf=file,
    )


def _open_directory(path: Path) -> Checkpoint:
    raw = read_json(path / "config.json")
    if not raw:
        raise ModelError(f"the directory {path.name} holds no config.json")
    files = safetensors_files(path)
    if not files:
        raise ModelError(f"the directory {path.name} holds no .safetensors files")
    tensors = {name: entry for file in files for name, entry in read_safetensors_header(file).items()}
    facts = embedding_facts_of_directory(path, raw)
    encodes = raw.get("model_type") in ENCODERS
    return Checkpoint(
        path=path,
        format="safetensors",
        config=encoder_from_hf(raw, tensors, facts) if encodes else config_from_hf(raw, tensors),
        embedding=facts,
        chat_template=chat_template(path),
        safetensors_files=files,
    )
