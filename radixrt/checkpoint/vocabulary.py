"""Text <-> token ids, and the exact bytes of each id."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import msgspec

from radixrt.errors import ModelError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_SURROGATES = re.compile("[\ud800-\udfff]")
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class Vocabulary:
    """A model's tokenizer. Safe to share between threads: nothing changes after it is made.

    Ids 0..size-1 exist; an id in a hole of the vocabulary has no bytes. Special tokens are the control tokens
    (`<|im_end|>`): only `encode(..., allow_special=True)` ever gives their ids. Added tokens that are not special
    (Qwen's `<think>`) are one id wherever they are spelt, as in the model's training.
    """

    def __init__(
        self,
        tokenizer_json: bytes | str,
        *,
        bos_id: int | None,
        eos_ids: Sequence[int],
        adds_bos: bool,
        suffix_ids: Sequence[int] = (),
    ) -> None:
        """ModelError when `tokenizer_json` is broken, or no byte-level or sentencepiece-like BPE and no WordPiece."""
        self._json = tokenizer_json if isinstance(tokenizer_json, str) else tokenizer_json.decode("utf-8", "replace")
        self._ordinary = load_tokenizer(self._json)
        # Added special tokens are then encoded as the text they are.
        self._ordinary.encode_special_tokens = True
        added = self._ordinary.get_added_tokens_decoder()
        self._added = {index: token.content for index, token in added.items()}
        self._special = frozenset(index for index, token in added.items() if token.special)
        vocab = self._ordinary.get_vocab(with_added_tokens=True)
        self.size: int = max(vocab.values(), default=-1) + 1
        self._texts: list[str] = [""] * self.size
        for text, index in vocab.items():
            self._texts[index] = text
        self.special_tokens: dict[str, int] = {self._added[index]: index for index in sorted(self._special)}
        self.bos_id = bos_id if bos_id is not None and 0 <= bos_id < self.size else None
        self.eos_ids: tuple[int, ...] = tuple(index for index in dict.fromkeys(eos_ids) if 0 <= index < self.size)
        self.adds_bos: bool = adds_bos and self.bos_id is not None
        self.suffix_ids: tuple[int, ...] = tuple(index for index in suffix_ids if 0 <= index < self.size)
        """What stands behind a text that is embedded; `encode` never adds it."""
        self._style = _Style.of(msgspec.json.decode(self._json, type=_Parts))

    @cached_property
    def _whole(self) -> Tokenizer:
        """The tokenizer that takes special tokens as such."""
        return load_tokenizer(self._json)

    @cached_property
    def _bytes(self) -> list[bytes]:
        """[size] exact bytes of each id."""
        if self._style.byte_level:
            table = _BYTE_OF_CHAR
            out = [_byte_level_bytes(text, table) for text in self._texts]
        else:
            out = [self._style.piece(text) for text in self._texts]
        for index, text in self._added.items():
            out[index] = text.encode()
        return out

    @cached_property
    def missing_bytes(self) -> frozenset[int]:
        """Bytes that no token spells: `encode` leaves them out, as the model's own tokenizer and llama.cpp do.

        SmolLM2 lacks six control characters and 0xF1, 0xF2 (which begin characters of planes 4 to 11) beside the bytes
        that UTF-8 never holds. A sentencepiece vocabulary without byte tokens answers with its unknown token instead.
        """
        if not self._style.byte_level:
            return frozenset()
        single = {piece[0] for index, piece in enumerate(self._bytes) if len(piece) == 1 and index not in self._added}
        return frozenset(range(256)) - single

    def encode(self, text: str, *, allow_special: bool = False, add_bos: bool = False) -> list[int]:
        """Token ids of `text`; `add_bos` puts the BOS token in front where there is one.

        Without `allow_special`, text that spells a special token is encoded as ordinary text. Lone surrogates (which no
        UTF-8 text holds) become U+FFFD; bytes that the vocabulary cannot spell (`missing_bytes`) are left out.
        """
        tokenizer = self._whole if allow_special else self._ordinary
        try:
            ids = tokenizer.encode(text, add_special_tokens=False).ids
        except TypeError:
            # What the library says to a string with lone surrogates.
            ids = tokenizer.encode(_SURROGATES.sub("\ufffd", text), add_special_tokens=False).ids
        return [self.bos_id, *ids] if add_bos and self.bos_id is not None else ids

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        """The text of `ids`; bytes that are not UTF-8 become U+FFFD. Ids outside the vocabulary have no text.

        A sentencepiece tokenizer that puts a space in front of every text takes it away again here, as its own decoder.
        """
        table, special, size = self._bytes, self._special, self.size
        if skip_special_tokens:
            pieces = [table[i] for i in ids if 0 <= i < size and i not in special]
        else:
            pieces = [table[i] for i in ids if 0 <= i < size]
        text = b"".join(pieces).decode("utf-8", "replace")
        return text[1:] if self._style.strips_space and text.startswith(" ") else text

    def token_bytes(self, index: int) -> bytes:
        """The exact bytes that `index` stands for, which may be a part of a character; special tokens: their text."""
        return self._bytes[index] if 0 <= index < self.size else b""

    def token_text(self, index: int) -> str:
        """`token_bytes` as text, U+FFFD where they are not whole characters."""
        return self.token_bytes(index).decode("utf-8", "replace")

    def is_special(self, index: int) -> bool:
        """Whether the id is a control token, which ordinary text never gives and `skip_special_tokens` drops."""
        return index in self._special

    @property
    def bos_token(self) -> str | None:
        """The text of the BOS token, as chat templates use it."""
        return None if self.bos_id is None else self.token_text(self.bos_id)

    @property
    def eos_token(self) -> str | None:
        """The text of the tokenizer's own end token, as chat templates use it."""
        return self.token_text(self.eos_ids[0]) if self.eos_ids else None

    def tokenizer_json(self) -> str:
        """The tokenizer.json, for libraries that build their own tables from it."""
        return self._json


def load_tokenizer(text: str) -> Tokenizer:
    """A `tokenizers.Tokenizer`; ModelError when the library refuses the text."""
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_str(text)
    except Exception as error:
        raise ModelError(f"the model's tokenizer.json is broken: {error}") from error
    # Some files say so for the training that they were used in; here a text is refused or cut where somebody asks.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


class _Parts(msgspec.Struct):
    """What of a tokenizer.json says how token text becomes bytes."""

    pre_tokenizer: Any = None
    decoder: Any = None
    normalizer: Any = None
    model: Any = None


class _Style(msgspec.Struct, frozen=True):
    """How the text of an ordinary token is turned into bytes."""

    byte_level: bool
    byte_fallback: bool
    strips_space: bool
    continues: str = ""
    """WordPiece: what stands in front of a token that continues a word."""

    @staticmethod
    def of(parts: _Parts) -> _Style:
        if isinstance(parts.model, dict) and parts.model.get("type") == "WordPiece":
            prefix = parts.model.get("continuing_subword_prefix") or "##"
            return _Style(byte_level=False, byte_fallback=False, strips_space=True, continues=str(prefix))
        steps = [*_steps(parts.decoder), *_steps(parts.pre_tokenizer)]
        kinds = {step.get("type") for step in steps}
        if "ByteLevel" in kinds:
            return _Style(byte_level=True, byte_fallback=False, strips_space=False)
        replaces = any(step.get("type") == "Replace" and step.get("content") == " " for step in _steps(parts.decoder))
        if "Metaspace" not in kinds and not replaces:
            raise ModelError(
                "the model's tokenizer is no byte-level or sentencepiece-like BPE and no WordPiece: it is not supported"
            )
        fallback = isinstance(parts.model, dict) and bool(parts.model.get("byte_fallback"))
        strips = any(
            (step.get("type") == "Strip" and step.get("content") == " " and step.get("start"))
            or (step.get("type") == "Metaspace" and step.get("prepend_scheme", "always") != "never")
            for step in _steps(parts.decoder)
        )
        return _Style(byte_level=False, byte_fallback=fallback, strips_space=strips)

    def piece(self, text: str) -> bytes:
        if self.byte_fallback and (match := _BYTE_TOKEN.fullmatch(text)):
            return bytes([int(match[1], 16)])
        if self.continues:
            more = text.startswith(self.continues)
            return (text[len(self.continues) :] if more else " " + text).encode()
        return text.replace("▁", " ").encode()


def _steps(part: Any) -> list[dict[str, Any]]:
    """A decoder or pre-tokenizer as a flat list: sequences are unfolded."""
    if not isinstance(part, dict):
        return []
    inner = part.get("decoders") or part.get("pretokenizers") or part.get("normalizers")
    return [step for item in inner for step in _steps(item)] if isinstance(inner, list) else [part]


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's alphabet: printable Latin-1 characters stand for themselves, the other bytes for characters from U+0100.

    (openai/gpt-2, src/encoder.py, bytes_to_unicode)
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [byte for byte in range(256) if byte not in set(printable)]
    return {chr(b): b for b in printable} | {chr(0x100 + i): b for i, b in enumerate(rest)}


_BYTE_OF_CHAR = _byte_alphabet()


def _byte_level_bytes(text: str, table: dict[str, int]) -> bytes:
    try:
        return bytes([table[char] for char in text])
    except KeyError:
        # A token that was put into the vocabulary as plain text; the library's own decoder does the same.
        return text.encode()
