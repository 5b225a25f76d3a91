"""Token healing: which tokens may stand in place of the last one of a text, before a gen.

"http:" ends in the token ":", but a model that writes an address has only ever seen "://" as one token, and finds
nothing good to say after ":" alone. So the last token of the text is taken back, and the model is asked which token
it would write there, of those that begin with the same bytes. Is it the same one, all stays as it was; is it a longer
one, it takes the place of the text's token, and what it holds beyond the text is the beginning of the gen. The text
itself never changes.

It is exact: the token is drawn from the model's distribution under the gen's own sampling parameters, restricted to
those tokens. `radixrt.healing` says where nothing is healed.
"""

from __future__ import annotations

import codecs
from bisect import bisect_left
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from radixrt.backend import Tokens
from radixrt.checkpoint import Vocabulary
from radixrt.healing import decoded, healable, reaches
from radixrt.segments import Gen, Heal

_utf8 = codecs.getincrementaldecoder("utf-8")


class Healer:
    """Answers for one vocabulary; what it finds out is kept, as programs repeat their joins."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._sorted: list[tuple[bytes, int]] = []
        self._beginning = lru_cache(256)(self._find_beginning)
        self._refused = lru_cache(256)(self._find_refused)

    def heal(self, number: int, ids: Sequence[int], text: Tokens | None, gen: Gen) -> Heal | None:
        """How to heal the join of `text`, which `ids` end with, and a gen; None: it stays as it is."""
        if text is None or len(ids) < 2 or not gen.heal or not healable(gen.sampling, gen.constraint):
            return None
        piece, last = text.pieces[-1], ids[-1]
        if not piece or decoded(piece) is None or self._vocabulary.token_bytes(last) != piece:
            return None
        allowed = self._beginning(piece)
        if not len(allowed) or (len(allowed) == 1 and allowed[0] == last):
            return None
        sampling = gen.sampling
        refused = self._refused(piece, tuple(sampling.stop), tuple(sampling.stop_token_ids))
        return Heal(request_id=number, allowed=allowed, refused=refused)

    def rest(self, piece: bytes, token: int) -> str:
        """What a token that begins with `piece` holds beyond it."""
        return self._vocabulary.token_bytes(token)[len(piece) :].decode()

    def _find_beginning(self, piece: bytes) -> np.ndarray:
        """int32[n]: text tokens that begin with these bytes and do not break a character for good."""
        if not self._sorted:
            vocabulary = self._vocabulary
            texts = [(vocabulary.token_bytes(i), i) for i in range(vocabulary.size) if not vocabulary.is_special(i)]
            self._sorted = sorted(texts)
        first = bisect_left(self._sorted, (piece, -1))
        found = []
        for written, token in self._sorted[first:]:
            if not written.startswith(piece):
                break
            if _may_be_text(written[len(piece) :]):
                found.append(token)
        return np.array(found, dtype=np.int32)

    def _find_refused(self, piece: bytes, stops: tuple[str, ...], stop_token_ids: tuple[int, ...]) -> np.ndarray:
        """int32[m]: of those, the tokens with which the text stays as it was."""
        refused = []
        for token in self._beginning(piece).tolist():
            rest = decoded(self._vocabulary.token_bytes(token)[len(piece) :])
            if not rest or token in stop_token_ids or reaches(rest, stops):
                refused.append(token)
        return np.array(refused, dtype=np.int32)


def _may_be_text(rest: bytes) -> bool:
    """Whether bytes are characters, or the beginning of some."""
    try:
        _utf8().decode(rest)
    except UnicodeDecodeError:
        return False
    return True
