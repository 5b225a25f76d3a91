"""What a vocabulary's tokens may be: text, ends, or nothing. Shared by all back ends and all rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from radixrt.errors import ModelError

Bits = NDArray[np.int32]
"""int32[words]; bit i of word w (little-endian): token 32 * w + i."""


class Tables:
    """One vocabulary, and one width of logits."""

    def __init__(
        self,
        *,
        size: int,
        vocab_size: int,
        end_ids: Sequence[int],
        is_special: Callable[[int], bool],
        bytes_of: Callable[[int], bytes],
    ) -> None:
        """
        Args:
            size: of the tokenizer's vocabulary; ids from here on are never allowed.
            vocab_size: V, the width of the logits, which may be above or below `size`.
            end_ids: the model's end tokens.
            is_special: whether a token is a control token.
            bytes_of: what a token writes.

        Raises ModelError when the model has no end token.
        """
        self.vocab_size = vocab_size
        self.width = max(vocab_size, size)
        self.end_ids = usable_ends(end_ids, vocab_size)
        self.bytes: list[bytes] = [b""] * self.width
        """Of each token that may be text; empty for all others."""
        self.controls: dict[bytes, int] = {}
        """Control tokens that end nothing, by their text."""
        for token in range(min(vocab_size, size)):
            if token in self.end_ids:
                continue
            if is_special(token):
                self.controls.setdefault(bytes_of(token), token)
            else:
                self.bytes[token] = bytes_of(token)
        plain = np.zeros(words(self.width) * 32, dtype=np.uint8)
        plain[: self.width] = [bool(text) for text in self.bytes]
        self.text_tokens = pack(plain)
        self.ends = self.ends_with(())

    def ends_with(self, extra: Sequence[int]) -> Ends:
        """The model's end tokens and those of one request."""
        ids = frozenset(self.end_ids) | {token for token in extra if 0 <= token < self.vocab_size}
        plain = np.zeros(words(self.width) * 32, dtype=np.uint8)
        plain[list(ids)] = 1
        bits = pack(plain)
        return Ends(ids, bits, self.text_tokens & ~bits)


class Ends:
    """The end tokens of a row, and what may be text beside them, as bits."""

    def __init__(self, ids: frozenset[int], bits: Bits, text: Bits) -> None:
        self.ids = ids
        self.bits = bits
        self.text = text


def bit(token: int, width: int) -> Bits:
    """A mask of one token alone."""
    mask = np.zeros(words(width), dtype=np.int32)
    mask.view(np.uint32)[token >> 5] = 1 << (token & 31)
    return mask


def usable_ends(end_ids: Sequence[int], vocab_size: int) -> tuple[int, ...]:
    """Those within the logits; ModelError when there is none."""
    kept = tuple(token for token in dict.fromkeys(end_ids) if 0 <= token < vocab_size)
    if not kept:
        raise ModelError("the model has no end token: constraints need one")
    return kept


def words(size: int) -> int:
    """Words of a mask over `size` tokens."""
    return (size + 31) // 32


def pack(bits: NDArray[np.uint8]) -> Bits:
    """Bits from one byte each."""
    return np.packbits(bits, bitorder="little").view(np.int32)
