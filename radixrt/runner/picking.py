"""From the hidden states of a step's sampled lines to their tokens and log-probabilities.

    logits, their log-probabilities -> biases, penalties, bans -> wait for the token masks -> masks -> draw

A model that can choose (`Chooser`) makes logits only of lines that need them. Then the masks are waited for before its
head, which gives the other lines (`Rows.plain`) their most likely tokens and leaves out what the masks forbid. Tokens
and log-probabilities are the same either way, bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter
from typing import Protocol, runtime_checkable

import numpy as np
import torch

from radixrt.messages import StepMasks
from radixrt.runner import adjust, logprobs
from radixrt.runner.parts import Parts
from radixrt.runner.plan import Layout
from radixrt.runner.rows import PlanError, Rows
from radixrt.runner.sampler import sample
from radixrt.runner.verify import Standing


class Head(Protocol):
    """A model's last product: [K, hidden] -> float32[K, V]."""

    def logits(self, hidden: torch.Tensor) -> torch.Tensor: ...


@runtime_checkable
class Chooser(Protocol):
    """A model that can do without logits (`radixrt.models.blocks.Decoder` says how)."""

    def chooses(self, lines: int) -> bool: ...

    def choose(
        self,
        hidden: torch.Tensor,
        allowed: int,
        mask_of: np.ndarray | None,
        masks: np.ndarray | None,
        whole: np.ndarray | None,
    ) -> tuple[torch.Tensor, torch.Tensor]: ...


@dataclass(frozen=True)
class Picked:
    """K: sampled lines of the step."""

    tokens: torch.Tensor  # int64[K]; -1: the line's row had lost its token, or there was none to choose from
    logprobs: np.ndarray  # float32[K] the model's own, of these tokens; 0 where nobody asks
    top_ids: np.ndarray  # int32[K, most]
    top_logprobs: np.ndarray  # float32[K, most]
    head_s: float
    mask_wait_s: float


class Picker:
    """Picks the tokens of sampled lines; what it knows of their rows is in `rows`."""

    def __init__(self, model: Head, rows: Rows, vocabulary: int, parts: Parts) -> None:
        """Ids from `vocabulary` on are never picked."""
        self._model = model
        self._chooser = model if isinstance(model, Chooser) else None
        self._rows = rows
        self._vocabulary = vocabulary
        self._parts = parts

    def pick(
        self, hidden: torch.Tensor, layout: Layout, positions: np.ndarray, masks: Callable[[], StepMasks]
    ) -> Picked:
        """hidden [K, hidden] of the lines, positions int64[K] of the tokens that they pick."""
        rows = layout.rows[layout.sampled]
        asked = self._rows.logprobs[rows]
        mask_of = np.full(len(rows), -1, np.int64)
        mask_of[layout.masked] = np.arange(len(layout.masked))
        chooser, whole = self._spares(rows, layout)
        began = perf_counter()
        bitmask = None if chooser is None else self._bitmask(masks, layout)
        mask_wait_s = perf_counter() - began

        began = perf_counter()
        if chooser is None:
            tokens, logits = torch.empty(0, dtype=torch.int64), self._model.logits(hidden)
        else:
            # Log-probabilities are the model's own: of all tokens, whatever a mask forbids.
            spared = None if bitmask is None else np.where(asked < 0, mask_of, -1)
            tokens, logits = chooser.choose(hidden, self._vocabulary, spared, bitmask, whole)
        head_s = perf_counter() - began
        self._parts.lap("head")

        wants = np.flatnonzero(asked >= 0)
        chosen, own = np.zeros(len(rows), np.float32), None
        top_ids, top_logprobs = np.zeros((len(rows), 0), np.int32), np.zeros((len(rows), 0), np.float32)
        if wants.size:
            own, top_ids, top_logprobs = self._own_logprobs(logits, whole, asked)
        if whole.size:
            self._adjust(logits, rows[whole], positions[whole], whole, layout.standing)
            self._parts.lap("adjust")
            if chooser is None:
                began = perf_counter()
                bitmask = self._bitmask(masks, layout)
                mask_wait_s = perf_counter() - began
            masked = np.flatnonzero(mask_of[whole] >= 0)
            if bitmask is not None and masked.size:
                adjust.apply_bitmask(logits, masked, bitmask[mask_of[whole[masked]]])
            drawn = sample(logits, self._rows.draw(rows[whole], positions[whole]))
            if len(whole) == len(rows):
                tokens = drawn
            else:
                tokens[torch.from_numpy(whole)] = drawn
        lost = np.flatnonzero(layout.lost[layout.sampled])
        if lost.size:
            tokens[torch.from_numpy(lost).to(tokens.device)] = -1

        if own is not None:
            picked = tokens[torch.from_numpy(wants).to(tokens.device)].clamp(min=0)
            chosen[wants] = own.gather(1, picked[:, None])[:, 0].cpu().numpy()
        return Picked(tokens, chosen, top_ids, top_logprobs, head_s, mask_wait_s)

    def _spares(self, rows: np.ndarray, layout: Layout) -> tuple[Chooser | None, np.ndarray]:
        """The model, where its head can leave something out, and the lines, int64[n], that need their logits."""
        chooser = self._chooser
        if chooser is not None and chooser.chooses(len(rows)):
            whole = np.flatnonzero(~self._rows.plain(rows))
            if len(whole) < len(rows) or layout.masked.size:
                return chooser, whole
        return None, np.arange(len(rows))

    def _bitmask(self, masks: Callable[[], StepMasks], layout: Layout) -> np.ndarray | None:
        """int32[masked lines, words], waited for; None where no line is masked."""
        if not layout.masked.size:
            return None
        bitmask = masks().bitmask
        self._parts.lap("mask wait")
        if bitmask.ndim != 2 or len(bitmask) != len(layout.masked) or bitmask.dtype != np.int32:
            raise PlanError("the token masks do not fit the step's masked rows")
        return bitmask

    def _own_logprobs(
        self, logits: torch.Tensor, whole: np.ndarray, asked: np.ndarray
    ) -> tuple[torch.Tensor, np.ndarray, np.ndarray]:
        """Log-probabilities float32[n, V] of the lines that want any, from the logits of the lines `whole`; and the
        most likely tokens of all lines, as many as any of them asks for."""
        most = int(asked.max())
        top_ids, top_logprobs = np.zeros((len(asked), most), np.int32), np.zeros((len(asked), most), np.float32)
        wants = np.flatnonzero(asked[whole] >= 0)
        part = logits if wants.size == len(logits) else logits[torch.from_numpy(wants).to(logits.device)]
        own = logprobs.log_softmax(part)
        top_ids[whole[wants]], top_logprobs[whole[wants]] = logprobs.top(part, own, most)
        return own, top_ids, top_logprobs

    def _adjust(
        self,
        logits: torch.Tensor,
        rows: np.ndarray,
        positions: np.ndarray,
        lines: np.ndarray,
        standing: Standing | None,
    ) -> None:
        """All that changes logits but the token masks, in place. lines int64[n]: which lines these are of."""
        rules = self._rows.adjustments(rows, positions, standing, lines)
        if rules is not None:
            if rules.bias_rows.size:
                adjust.add_bias(logits, rules.bias_rows, rules.bias_ids, rules.bias)
            if rules.penalized.rows.size:
                adjust.penalize(logits, rules.penalized)
            if rules.forbidden_rows.size:
                adjust.forbid(logits, rules.forbidden_rows, rules.forbidden_ids)
        adjust.forbid_from(logits, self._vocabulary)
