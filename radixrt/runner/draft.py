"""The draft model: guesses what rows sample next. Its KV pool mirrors the target's, slot for slot.

A slot belongs to one path of the tree for as long as it is in use, so the draft's keys of that path go into the draft's
slot of the same number: prefixes are shared, rows retracted and slots evicted without the draft model being told. It
computes a slot only when a row that asks for guesses reads it (`catch up`), so a draft model that is not asked costs
nothing but its memory.

A guess is drawn from the draft's distribution by the row's own sampling parameters and with the very random number
that the target will use at that position: where the two models agree the two draws do (a coupling without
communication, Daliri, Musco and Suresh, arXiv 2408.07978), greedy rows guess greedily, and since the target's draw
does not depend on the guess, the row's tokens are those without a draft model.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch

from radixrt.checkpoint import Checkpoint, open_checkpoint
from radixrt.config import RunnerConfig
from radixrt.errors import ModelError, StartupError
from radixrt.kernels import Kernels
from radixrt.kernels.layout import AttentionLayout
from radixrt.messages import StepPlan
from radixrt.models import Progress, load_model
from radixrt.models.blocks import Decoder
from radixrt.runner import adjust
from radixrt.runner.packed import packed_file
from radixrt.runner.plan import Layout
from radixrt.runner.pool import PoolShape, allocate_pool
from radixrt.runner.precision import choose
from radixrt.runner.rows import Rows
from radixrt.runner.sampler import Draw, sample

if TYPE_CHECKING:
    from radixrt.runner.step import Model

PASS_TOKENS = 512
"""Most tokens of one forward pass while catching up."""
SCRATCH = 1024
"""Slots behind the mirrored ones for tokens that are only guessed."""


@dataclass(frozen=True)
class Ask:
    """A row that wants guesses."""

    row: int
    """Its id."""
    context: np.ndarray  # int64[n] slots of all its computed tokens, in order
    token: int
    """What it has just sampled: the token at position n."""
    count: int
    """How many tokens to guess behind it."""


@dataclass(frozen=True)
class Proposals:
    """What became of some asks."""

    tokens: np.ndarray  # int32[asks, k], k the largest count; -1 where there are fewer
    passes: int
    seconds: float


@dataclass(frozen=True)
class Part:
    """A row's part of a forward pass: it reads `private`, then its own new tokens."""

    tokens: np.ndarray
    """int64[n]; -1: what the row guessed in the pass before."""
    start: int
    slots: np.ndarray
    private: np.ndarray


class GuessingPasses(Protocol):
    """How the draft model's forward passes are made."""

    def run(self, parts: list[Part], draw: Draw | None) -> None:
        """One pass; with `draw`, one line of it a part, each part's row guesses its next token."""
        ...

    def guessed(self) -> np.ndarray:
        """int64[passes, rows]: what the passes with `draw` guessed since this was last asked."""
        ...


class PlainPasses:
    """Each waited for."""

    def __init__(self, model: Model, kv: torch.Tensor, *, vocabulary: int) -> None:
        """kv: [layers, 2, kv_heads, slots, line]; ids from `vocabulary` on are never guessed."""
        self._model = model
        self._kv = kv
        self._vocabulary = vocabulary
        self._guesses: list[np.ndarray] = []

    def run(self, parts: list[Part], draw: Draw | None) -> None:
        device = self._model.device
        layout = layout_of(parts, device)
        tokens = np.concatenate([part.tokens for part in parts])
        if self._guesses:
            tokens[layout.starts[1:] - 1] = self._guesses[-1]
        hidden = self._model.forward(
            torch.from_numpy(tokens).to(device),
            torch.from_numpy(layout.positions).to(device),
            torch.from_numpy(layout.slots).to(device),
            self._kv,
            layout,
        )
        if draw is not None:
            logits = self._model.logits(hidden[torch.from_numpy(layout.starts[1:] - 1).to(device)]).float()
            adjust.forbid_from(logits, self._vocabulary)
            self._guesses.append(sample(logits, draw).clamp(min=0).cpu().numpy())

    def guessed(self) -> np.ndarray:
        guesses, self._guesses = np.stack(self._guesses), []
        return guesses


def layout_of(parts: list[Part], device: torch.device) -> AttentionLayout:
    return AttentionLayout(
        new_lens=np.array([part.tokens.size for part in parts], np.int64),
        slots=np.concatenate([part.slots for part in parts]),
        positions=np.concatenate([part.start + np.arange(part.tokens.size) for part in parts]),
        private_lens=np.array([part.private.size for part in parts], np.int64),
        private_slots=np.concatenate([part.private for part in parts]),
        spans=np.zeros((0, 4), np.int64),
        span_slots=np.zeros(0, np.int64),
        device=device,
    )


class DraftModel:
    """Which tokens a draft model has seen, and what it guesses next. All arrays are indexed by slot."""

    def __init__(self, passes: GuessingPasses, *, slots: int, vocabulary: int, context_length: int) -> None:
        """Its pool has `slots` that mirror the target's, and SCRATCH behind them; `vocabulary`: ids that the tokenizer
        knows."""
        self._run = passes
        self._vocabulary = vocabulary
        self._context_length = context_length
        self._slots = slots
        self._known = np.zeros(slots, bool)
        self._tokens = np.zeros(slots, np.int64)
        self._passes = 0

    def written(self, slots: np.ndarray, tokens: np.ndarray) -> None:
        """The target writes these tokens to these slots: what the draft has there is void."""
        self._known[slots] = False
        self._tokens[slots] = np.where(tokens < self._vocabulary, tokens, 0)

    def restored(self, slots: np.ndarray) -> None:
        """A tier fills these slots, and does not say of which tokens: no guess is made for a row that reads them."""
        self._known[slots] = False
        self._tokens[slots] = -1

    def propose(self, asks: list[Ask], rows: Rows) -> Proposals:
        """Guesses for rows that are open."""
        begun, passes = perf_counter(), self._passes
        most = max((ask.count for ask in asks), default=0)
        guesses = np.full((len(asks), most), -1, np.int32)
        able = [i for i, ask in enumerate(asks) if ask.token >= 0 and len(ask.context) + most < self._context_length]
        able = [i for i in able if (self._tokens[asks[i].context] >= 0).all()]
        able = able[: SCRATCH // max(most, 1)]
        if able:
            found = self._guess([asks[i] for i in able], most, rows)
            for i, line in zip(able, found, strict=True):
                guesses[i, : asks[i].count] = line[: asks[i].count]
        return Proposals(guesses, self._passes - passes, perf_counter() - begun)

    def _guess(self, asks: list[Ask], most: int, rows: Rows) -> np.ndarray:
        ids = np.array([ask.row for ask in asks], np.int64)
        ends = np.array([len(ask.context) for ask in asks], np.int64)
        scratch = self._slots + np.arange(len(asks) * most, dtype=np.int64).reshape(len(asks), most)
        parts = self._catch_up(asks)
        token = np.array([min(ask.token, self._vocabulary - 1) for ask in asks], np.int64)
        for j in range(most):
            parts = [
                Part(np.append(part.tokens, token[i]), part.start, np.append(part.slots, scratch[i, j]), part.private)
                for i, part in enumerate(parts)
            ]
            self._forward(parts, rows.draw(ids, ends + j + 1))
            # From here on each row adds the one token that it has just guessed.
            token[:] = -1
            parts = [
                Part(part.tokens[:0], part.start + part.tokens.size, part.slots[:0],
                     np.concatenate([part.private, part.slots]))
                for part in parts
            ]  # fmt: skip
        return self._run.guessed().T

    def _catch_up(self, asks: list[Ask]) -> list[Part]:
        """Compute what is missing in the rows' contexts but for the last PASS_TOKENS, which come with the next pass."""
        while True:
            parts = self._missing(asks, PASS_TOKENS)
            whole = all(
                part.start + part.tokens.size == len(ask.context) for ask, part in zip(asks, parts, strict=True)
            )
            for part in parts:
                self._known[part.slots] = True  # whoever reads them next reads them behind this pass
            if whole:
                return parts
            self._forward([part for part in parts if part.tokens.size], None)

    def _missing(self, asks: list[Ask], most: int) -> list[Part]:
        """What the rows have to compute, `most` tokens together; of rows that share it the first one computes it."""
        claimed = np.zeros(self._slots, bool)
        parts = []
        for ask in asks:
            have = self._known[ask.context] | claimed[ask.context]
            first = len(have) if have.all() else int(have.argmin())
            end = min(len(have), first + most)
            most -= end - first
            slots = ask.context[first:end]
            claimed[slots] = True
            parts.append(Part(self._tokens[slots], first, slots, ask.context[:first]))
        return parts

    def _forward(self, parts: list[Part], draw: Draw | None) -> None:
        self._run.run(parts, draw)
        self._passes += 1


def asks_of(plan: StepPlan, layout: Layout, attention: AttentionLayout, tokens: np.ndarray) -> list[Ask]:
    """What the rows of a step that sampled `tokens` (int32[K]) want guessed."""
    if plan.propose is None or not plan.propose.any():
        return []
    lines = np.arange(len(tokens))
    if layout.standing is not None:
        lines = layout.standing.last(layout.standing.counting(tokens))
    last = {int(layout.rows[layout.sampled[line]]): int(line) for line in lines}
    asks = []
    for entry in np.flatnonzero(plan.propose).tolist():
        row = int(layout.rows[entry])
        line = last[row]
        on = int(layout.sampled[line])  # the row's entry, or the branch that held
        new = plan.slots[layout.starts_of(on) : int(layout.at[line]) + 1]
        context = np.concatenate([attention.context(on), new]).astype(np.int64)
        asks.append(Ask(row=row, context=context, token=int(tokens[line]), count=int(plan.propose[entry])))
    return asks


@dataclass(frozen=True)
class Loaded:
    """A draft model that has no pool yet."""

    model: Decoder
    shape: PoolShape
    vocabulary: int

    def pool(self, tokens: int) -> torch.Tensor:
        """A pool that mirrors one of `tokens` slots."""
        return allocate_pool(self.shape, tokens + SCRATCH, self.model.device)

    def beside(self, tokens: int, passes: GuessingPasses | None = None) -> DraftModel:
        """The draft of a model with a pool of `tokens` slots; `passes` over `pool(tokens)`, by default plain ones."""
        if passes is None:
            passes = PlainPasses(self.model, self.pool(tokens), vocabulary=self.vocabulary)
        context_length = self.model.config.context_length
        return DraftModel(passes, slots=tokens, vocabulary=self.vocabulary, context_length=context_length)


def load_draft(
    config: RunnerConfig,
    target: Checkpoint,
    progress: Progress,
    device: torch.device,
    ops: Kernels | None = None,
) -> Loaded:
    """The draft model that the config names, computed with `ops` where given. StartupError where its vocabulary is not
    the target's."""
    checkpoint = open_checkpoint(Path(config.draft_path or ""))
    vocabulary = _shared_vocabulary(target, checkpoint, config.tokenizer)
    precision = choose(config, checkpoint, device, ops)
    model = load_model(
        checkpoint,
        dtype=precision.dtype,
        device=device,
        weights=precision.weights,
        progress=lambda stage, fraction: progress(f"draft {stage}", fraction),
        packed_file=partial(packed_file, checkpoint),
    )
    if ops is not None:
        model.use(ops)
    return Loaded(model, PoolShape.of(model.config, precision.kv), min(vocabulary, model.config.vocab_size))


def _shared_vocabulary(target: Checkpoint, draft: Checkpoint, override: str | None) -> int:
    """How many ids the two tokenizers have in common, which is all of them."""
    try:
        ours, theirs = target.vocabulary(override), draft.vocabulary(None)
    except ModelError as error:
        raise StartupError(
            f"the vocabulary of the model or of the draft model cannot be read: {error}", param="draft_model"
        ) from error
    differs = next((i for i in range(min(ours.size, theirs.size)) if ours.token_text(i) != theirs.token_text(i)), None)
    if differs is None and ours.size == theirs.size:
        return ours.size
    if differs is None:
        what = f"{ours.size:,} tokens here, {theirs.size:,} there"
    else:
        what = f"token {differs} is {ours.token_text(differs)!r} here and {theirs.token_text(differs)!r} there"
    raise StartupError(
        f"the draft model has another vocabulary than the model ({what}): choose one of the same family",
        param="draft_model",
    )
