"""One step: a plan becomes hidden states, tokens and the answer to the scheduler.

apply closes, opens -> check and lay out -> fill in last tokens -> forward -> scores -> tokens (`picking.py`) ->
remember the tokens -> guesses -> answer
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import Protocol, runtime_checkable

import numpy as np
import torch

from radixrt.kernels.layout import AttentionLayout
from radixrt.messages import Score, ScoreSpec, StepMasks, StepPlan, StepResult
from radixrt.runner import logprobs
from radixrt.runner.draft import DraftModel, Proposals, asks_of
from radixrt.runner.parts import Parts
from radixrt.runner.picking import Picker
from radixrt.runner.plan import Layout, Limits, lay_out
from radixrt.runner.pooling import pool_rows
from radixrt.runner.rows import PlanError, Rows


class Model(Protocol):
    """What a step needs of a model (`radixrt.models.CausalLM` offers more)."""

    device: torch.device

    def forward(
        self,
        tokens: torch.Tensor,
        positions: torch.Tensor,
        slots: torch.Tensor,
        kv: torch.Tensor,
        layout: AttentionLayout,
    ) -> torch.Tensor: ...

    def logits(self, hidden: torch.Tensor) -> torch.Tensor: ...


@runtime_checkable
class Sparing(Protocol):
    """A model that does less where few hidden states are read (`radixrt.models.blocks.Decoder` says how)."""

    def forward_of(
        self,
        tokens: torch.Tensor,
        positions: torch.Tensor,
        slots: torch.Tensor,
        kv: torch.Tensor,
        layout: AttentionLayout,
        wanted: torch.Tensor,
    ) -> torch.Tensor: ...


class Stepper:
    """The model, its KV pool and the open rows; `run` takes them one step further."""

    def __init__(
        self,
        model: Model,
        kv: torch.Tensor,
        *,
        vocab_size: int,
        vocabulary: int,
        context_length: int,
        draft: DraftModel | None = None,
    ) -> None:
        """kv: [layers, 2, kv_heads, slots, line]; vocab_size: width of the logits, of which the tokenizer knows
        the first `vocabulary` ids."""
        self._model = model
        self._sparing = model if isinstance(model, Sparing) else None
        self._draft = draft
        self._kv = kv
        self._vocabulary = min(vocabulary, vocab_size)
        self.limits = Limits(vocab_size=vocab_size, kv_tokens=kv.shape[3], context_length=context_length)
        self.rows = Rows(vocab_size, model.device)
        self.parts = Parts()
        self._picker = Picker(model, self.rows, self._vocabulary, self.parts)

    def run(self, plan: StepPlan, masks: Callable[[], StepMasks]) -> StepResult:
        """Compute `plan`. `masks()` gives its token masks, waiting for them if need be; called only where it has any.

        Whatever is raised, closes and opens are applied, and the rows of the step count as having lost their token.
        """
        try:
            self.parts.begin()
            self._open_and_close(plan)
            return self._run(plan, masks)
        except BaseException:
            if plan.rows.shape == plan.sample.shape:
                lost = self.rows.lose(plan.rows[plan.sample != 0])
                self.rows.last[torch.from_numpy(lost).to(self.rows.last.device)] = -1
            raise

    def restores(self, slots: np.ndarray) -> None:
        """These slots get what a tier holds of tokens that are not known here."""
        if self._draft is not None:
            self._draft.restored(slots.reshape(-1))

    def _open_and_close(self, plan: StepPlan) -> None:
        for row in plan.closes:
            self.rows.close(row)
        fault = None
        for opened in plan.opens:
            try:
                self.rows.open(opened)
            except PlanError as error:
                fault = error
        if fault is not None:
            raise fault

    def _run(self, plan: StepPlan, masks: Callable[[], StepMasks]) -> StepResult:
        started = perf_counter()
        layout = lay_out(plan, self.rows, self.limits)
        attention = AttentionLayout.from_plan(plan, self._model.device)
        self.parts.lap("plan")
        lines_alone = not plan.scores and plan.pool is None  # then nothing else of the hidden states is read
        hidden = self._forward(plan, layout, attention, layout.at if lines_alone else None)
        spent = getattr(self._model, "spent", None)
        self.parts.lap("embed" if spent else "layers", spent)
        scores = logprobs.scores(self._model.logits, hidden, [wanted(layout, spec) for spec in plan.scores])
        pooled = None if plan.pool is None else pool_rows(hidden, layout.ends, plan.pool).cpu().numpy()
        if not layout.sampled.size:
            self.parts.lap("head")
            return answer(
                plan, scores=scores, pooled=pooled, forward_s=perf_counter() - started, parts=self.parts.end()
            )

        positions = plan.positions[layout.at].astype(np.int64) + 1
        lines = hidden  # of the lines alone, or all of these are sampled
        if len(hidden) != len(positions):
            lines = hidden[torch.from_numpy(layout.at).to(hidden.device)]
        forwarded = perf_counter()
        picked = self._picker.pick(lines, layout, positions, masks)
        tokens = self.rows.sampled(layout.rows[layout.sampled], picked.tokens, layout.standing)
        self.parts.lap("sample")
        sampled = perf_counter()
        return answer(
            plan,
            tokens=tokens,
            logprobs=picked.logprobs,
            top_ids=picked.top_ids,
            top_logprobs=picked.top_logprobs,
            scores=scores,
            pooled=pooled,
            proposals=self._propose(plan, layout, attention, tokens),
            forward_s=forwarded - started + picked.head_s,
            mask_wait_s=picked.mask_wait_s,
            sample_s=sampled - forwarded - picked.head_s - picked.mask_wait_s,
            parts=self.parts.end(),
        )

    def _propose(
        self, plan: StepPlan, layout: Layout, attention: AttentionLayout, tokens: np.ndarray
    ) -> Proposals | None:
        """The draft model's guesses for the rows of the plan that ask for any."""
        if self._draft is None:
            return None
        asks = asks_of(plan, layout, attention, tokens)
        return self._draft.propose(asks, self.rows) if asks else None

    def _forward(
        self, plan: StepPlan, layout: Layout, attention: AttentionLayout, read: np.ndarray | None
    ) -> torch.Tensor:
        """[T, hidden]: what the model makes of the step's new tokens; [K, hidden] of those in `read` alone, where K < T
        and the model knows how to spare the others."""
        device = self._model.device
        tokens = torch.from_numpy(plan.tokens.astype(np.int64)).to(device)
        if layout.filled.size:
            last = self.rows.last[torch.from_numpy(layout.filled_rows).to(device)]
            tokens[torch.from_numpy(layout.filled).to(device)] = last.clamp(min=0)  # a lost row runs on token 0
        if self._draft is not None:
            self._draft.written(plan.slots, tokens.cpu().numpy())
        positions = torch.from_numpy(plan.positions.astype(np.int64)).to(device)
        slots = torch.from_numpy(plan.slots.astype(np.int64)).to(device)
        if self._sparing is not None and read is not None and len(read) < len(tokens) and (np.diff(read) > 0).all():
            wanted = torch.from_numpy(read.astype(np.int64)).to(device)
            return self._sparing.forward_of(tokens, positions, slots, self._kv, attention, wanted)
        return self._model.forward(tokens, positions, slots, self._kv, attention)


def wanted(layout: Layout, spec: ScoreSpec) -> logprobs.Wanted:
    at = np.arange(len(spec.targets)) if spec.at is None else spec.at.astype(np.int64)
    return logprobs.Wanted(layout.starts_of(spec.row_index) + spec.first + at, spec.targets.astype(np.int64), spec.top)


def answer(
    plan: StepPlan,
    *,
    tokens: np.ndarray | None = None,
    logprobs: np.ndarray | None = None,
    top_ids: np.ndarray | None = None,
    top_logprobs: np.ndarray | None = None,
    scores: list[Score],
    pooled: np.ndarray | None = None,
    proposals: Proposals | None = None,
    forward_s: float,
    mask_wait_s: float = 0.0,
    sample_s: float = 0.0,
    parts: dict[str, float] | None = None,
) -> StepResult:
    return StepResult(
        step=plan.step,
        tokens=np.zeros(0, np.int32) if tokens is None else tokens,
        logprobs=np.zeros(0, np.float32) if logprobs is None else logprobs,
        top_ids=np.zeros((0, 0), np.int32) if top_ids is None else top_ids,
        top_logprobs=np.zeros((0, 0), np.float32) if top_logprobs is None else top_logprobs,
        scores=scores,
        pooled=pooled,
        proposals=None if proposals is None else proposals.tokens,
        draft_s=0.0 if proposals is None else proposals.seconds,
        draft_passes=0 if proposals is None else proposals.passes,
        forward_s=forward_s,
        mask_wait_s=mask_wait_s,
        sample_s=sample_s,
        parts=parts or {},
    )
