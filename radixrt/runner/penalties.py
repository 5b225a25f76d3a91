"""Which tokens a row has seen and generated: what its penalties need."""

from __future__ import annotations

import numpy as np

_FIRST_ROOM = 256


class TokenCounts:
    """Distinct tokens of one row and how often each was generated, in arrays that a step can use as they are."""

    def __init__(self, prompt: np.ndarray, output: np.ndarray) -> None:
        """prompt: ids that are seen but not generated; output: ids generated so far. Both integer[n]."""
        seen = np.unique(np.concatenate([prompt, output]).astype(np.int64))
        room = max(_FIRST_ROOM, 2 * len(seen))
        self._ids = np.zeros(room, np.int64)
        self._counts = np.zeros(room, np.float32)
        self._ids[: len(seen)] = seen
        self._place = {token: place for place, token in enumerate(seen.tolist())}
        generated, times = np.unique(output.astype(np.int64), return_counts=True)
        for token, count in zip(generated.tolist(), times.tolist(), strict=True):
            self._counts[self._place[token]] = count

    @property
    def ids(self) -> np.ndarray:
        """int64[n] distinct tokens."""
        return self._ids[: len(self._place)]

    @property
    def counts(self) -> np.ndarray:
        """float32[n]: how often each of `ids` was generated."""
        return self._counts[: len(self._place)]

    def with_more(self, tokens: list[int]) -> tuple[np.ndarray, np.ndarray]:
        """(ids, counts) as they would be with these generated too; nothing is changed."""
        more, times = np.unique(np.array(tokens, np.int64), return_counts=True)
        known = np.array([self._place.get(token, -1) for token in more.tolist()], np.int64)
        counts = self.counts.copy()
        counts[known[known >= 0]] += times[known >= 0]
        ids = np.concatenate([self.ids, more[known < 0]])
        return ids, np.concatenate([counts, times[known < 0].astype(np.float32)])

    def add(self, token: int) -> None:
        """One more generated token."""
        place = self._place.setdefault(token, len(self._place))
        if place == len(self._ids):
            self._ids = np.concatenate([self._ids, np.zeros_like(self._ids)])
            self._counts = np.concatenate([self._counts, np.zeros_like(self._counts)])
        self._ids[place] = token
        self._counts[place] += 1
