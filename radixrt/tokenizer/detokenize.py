"""Token ids to text as they come, never a half character too early."""

from __future__ import annotations

import codecs

from radixrt.checkpoint import Vocabulary

_new_decoder = codecs.getincrementaldecoder("utf-8")


class Detokenizer:
    """Incremental decoder of one sample: joined `push` results and `flush` equal the decoding of all ids at once.

    Bytes that are the beginning of a character wait for the rest of it; bytes that can no longer become one are
    U+FFFD, and so is what is incomplete at the end, once. The text continues a prompt, so the space that a
    sentencepiece token begins with is kept, unless `strip_space` says that this text begins at nothing.
    """

    def __init__(self, vocabulary: Vocabulary, *, skip_special_tokens: bool = True, strip_space: bool = False) -> None:
        self._vocabulary = vocabulary
        self._skip = skip_special_tokens
        self._decoder = _new_decoder(errors="replace")
        self._strip = strip_space

    def shows(self, token: int) -> bool:
        """Whether the token gives text at all."""
        return not (self._skip and self._vocabulary.is_special(token))

    def push(self, token: int) -> str:
        """The text that is certain once `token` has come."""
        if not self.shows(token):
            return ""
        return self._begin(self._decoder.decode(self._vocabulary.token_bytes(token)))

    def flush(self) -> str:
        """What was left incomplete; the sample has ended."""
        return self._begin(self._decoder.decode(b"", True))

    def _begin(self, text: str) -> str:
        if self._strip and text:
            self._strip = False
            return text.removeprefix(" ")
        return text


def adds_space(vocabulary: Vocabulary) -> bool:
    """Whether the tokenizer puts a space in front of a text, which its own decoder takes away again."""
    ids = vocabulary.encode("x")
    return b"".join(map(vocabulary.token_bytes, ids)) == b" x" and vocabulary.decode(ids) == "x"
