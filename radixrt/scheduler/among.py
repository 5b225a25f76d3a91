"""A matcher for tokens out of some: those of `allowed_token_ids`, at each place of a text, or the one that heals it."""

from __future__ import annotations

from typing import Self

import numpy as np

from radixrt.grammar import Bitmask, TokenRefused


class Among:
    """A `grammar.Matcher` for `most` tokens (None: any number) out of `allowed`. An end token is one like any other."""

    may_stop = False

    def __init__(self, allowed: frozenset[int], most: int | None = None) -> None:
        """`allowed`: at least one id, all within the masks that will be filled."""
        self._allowed = allowed
        self._most = most
        self._taken = 0
        ids = np.fromiter(allowed, dtype=np.int64, count=len(allowed))
        self._words = np.zeros(int(ids.max()) // 32 + 1, dtype=np.uint32)
        np.bitwise_or.at(self._words, ids // 32, np.uint32(1) << (ids % 32).astype(np.uint32))

    @property
    def must_stop(self) -> bool:
        return self._most is not None and self._taken >= self._most

    def required(self) -> int | None:
        return None

    def fill(self, bitmask: Bitmask, row: int) -> None:
        bitmask[row] = 0
        bitmask[row, : len(self._words)] = self._words.view(np.int32)

    def accept(self, token: int, *, guessed: bool = False) -> None:
        if self.must_stop or token not in self._allowed:
            raise TokenRefused(f"token {token} is not one of those that may stand here")
        self._taken += 1

    def rollback(self, n: int) -> None:
        if n > self._taken:
            raise ValueError("more tokens are taken back than there were")
        self._taken -= n

    def fork(self) -> Self:
        other = type(self).__new__(type(self))
        other.__dict__.update(self.__dict__)
        return other

    def forced(self) -> list[int]:
        return []
