"""The model's own log-probabilities: log-softmax of its logits in float32, before anything changes them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from radixrt.messages import Score
from radixrt.runner.ranking import chunked, ordered_top

FLOOR = -9999.0
"""No answer is below this: JSON knows no infinity."""
SLICE_TOKENS = 64
"""Prompt tokens whose logits exist at a time (at a vocabulary of 150,000: 38 MB)."""


def log_softmax(logits: torch.Tensor) -> torch.Tensor:
    """float32[n, V] -> float32[n, V], finite and at most 0."""
    return torch.log_softmax(logits, -1).clamp_(min=FLOOR, max=0.0)


def top(logits: torch.Tensor, logprobs: torch.Tensor, count: int) -> tuple[np.ndarray, np.ndarray]:
    """The `count` most likely tokens of each row, most likely first: ids int32 and logprobs float32, [n, count]."""
    if count == 0:
        return np.zeros((len(logits), 0), np.int32), np.zeros((len(logits), 0), np.float32)
    chunks = chunked(logits)
    ids = ordered_top(chunks, chunks.amax(-1), count)
    return ids.to(torch.int32).cpu().numpy(), logprobs.gather(1, ids).cpu().numpy()


class Wanted(NamedTuple):
    """Log-probabilities of known tokens: `hidden[at[i]]` predicts `targets[i]`. Both int64[n]."""

    at: np.ndarray
    targets: np.ndarray
    top: int = 0
    """How many of the most likely tokens to name beside each."""


@dataclass(frozen=True)
class Asked:
    """What one step's answers need, laid out once: each token's logits are computed once, a slice at a time.

    Attributes:
        places: int64[n] new tokens whose logits are needed, ascending.
        line, targets: int64[m] pairs of an index into `places` and a token id, by line.
        order: int64[m] which of all targets, one item of `wanted` after the other, each pair is.
    """

    wanted: Sequence[Wanted]
    places: np.ndarray
    line: np.ndarray
    targets: np.ndarray
    order: np.ndarray

    @classmethod
    def of(cls, wanted: Sequence[Wanted]) -> Asked | None:
        """None where nothing is wanted."""
        if not wanted:
            return None
        places, line = np.unique(np.concatenate([item.at for item in wanted]), return_inverse=True)
        order = np.argsort(line, kind="stable")
        targets = np.concatenate([item.targets for item in wanted])
        return cls(wanted, places, line[order], targets[order], order)

    def arrays(self) -> dict[str, np.ndarray]:
        """What `begin` wants on the device."""
        return {"places": self.places, "line": self.line % SLICE_TOKENS, "targets": self.targets}

    def begin(
        self,
        logits_of: Callable[[torch.Tensor], torch.Tensor],
        hidden: torch.Tensor,
        arrays: Mapping[str, torch.Tensor],
        fetch: Callable[[torch.Tensor], torch.Tensor],
    ) -> Callable[[], list[Score]]:
        """Compute the answers; what is returned makes them, once what `fetch` gave is on the host.

        hidden: [T, hidden]; `logits_of` makes float32[k, V] of some of its rows; arrays: `arrays()` on its device.
        """
        count = max(item.top for item in self.wanted)
        chosen, ids, values = [], [], []
        for begin in range(0, len(self.places), SLICE_TOKENS):
            logits = logits_of(hidden[arrays["places"][begin : begin + SLICE_TOKENS]])
            own = log_softmax(logits)
            low, high = np.searchsorted(self.line, (begin, begin + SLICE_TOKENS)).tolist()
            chosen.append(fetch(own[arrays["line"][low:high], arrays["targets"][low:high]]))
            if count:
                chunks = chunked(logits)
                best = ordered_top(chunks, chunks.amax(-1), count)
                ids.append(fetch(best.to(torch.int32)))
                values.append(fetch(own.gather(1, best)))
        return lambda: self._answers(count, chosen, ids, values)

    def _answers(
        self, count: int, chosen: list[torch.Tensor], ids: list[torch.Tensor], values: list[torch.Tensor]
    ) -> list[Score]:
        given = np.empty(len(self.order), np.float32)
        given[self.order] = torch.cat(chosen).numpy()
        line = np.empty(len(self.order), np.int64)
        line[self.order] = self.line
        top_ids = torch.cat(ids).numpy() if count else np.zeros((len(self.places), 0), np.int32)
        top_values = torch.cat(values).numpy() if count else np.zeros((len(self.places), 0), np.float32)
        answers, begin = [], 0
        for item in self.wanted:
            part = slice(begin, begin + len(item.targets))
            answers.append(
                Score(
                    logprobs=given[part],
                    top_ids=top_ids[line[part], : item.top],
                    top_logprobs=top_values[line[part], : item.top],
                )
            )
            begin = part.stop
        return answers


def scores(
    logits_of: Callable[[torch.Tensor], torch.Tensor], hidden: torch.Tensor, wanted: Sequence[Wanted]
) -> list[Score]:
    """One answer to each of `wanted`, waited for. hidden: [T, hidden]; see `Asked.begin`."""
    asked = Asked.of(wanted)
    if asked is None:
        return []
    arrays = {name: torch.from_numpy(array).to(hidden.device) for name, array in asked.arrays().items()}
    return asked.begin(logits_of, hidden, arrays, lambda x: x.cpu())()
