"""Steps that a device works on while the next ones are planned, for GPUs: `step.Stepper` without its waiting.

    launch   check, lay out, one upload, forward pass: rows' last tokens are read on the device, where they were written
    draw     once the last step is settled: rules, masks (uploaded beside the forward pass), draw, tokens on their way
    settle   wait for these, the step's one wait, and answer

So the forward pass of a step is under way before the tokens of the last one are known here. A row whose last token does
not exist (-1) is found on the device: it runs on token 0, and samples -1 again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import numpy as np
import torch

from radixrt.kernels.layout import AttentionLayout
from radixrt.messages import Score, StepMasks, StepPlan, StepResult
from radixrt.runner import adjust, logprobs
from radixrt.runner.cells import Planner
from radixrt.runner.device import Device, Event
from radixrt.runner.draft import DraftModel, Proposals, asks_of
from radixrt.runner.draws import Drawer, Masks
from radixrt.runner.passes import Pass, Passes
from radixrt.runner.plan import Layout, Limits, lay_out
from radixrt.runner.pooling import pool_rows
from radixrt.runner.ranking import chunked, ordered_top
from radixrt.runner.rows import LARGEST_ROW_ID, SAMPLED, PlanError, Rows
from radixrt.runner.sampler import Draw
from radixrt.runner.step import Model, Stepper, answer, wanted


@dataclass(eq=False)
class Flight:
    """A step under way."""

    plan: StepPlan
    layout: Layout
    rows: np.ndarray  # int64[K] row id of each line
    positions: np.ndarray  # int64[K] of the token that it samples
    sure: np.ndarray  # bool[K] the only line of its row: what it samples is the row's last token
    draw: Draw
    asked: np.ndarray  # int64[K] how many log-probabilities, -1: none
    opened: np.ndarray  # int64[K] which of its id's rows each is
    began: float
    made: Pass | None = None
    launched: float = 0.0
    mask_wait_s: float = 0.0
    drawn: float = 0.0
    logits: torch.Tensor | None = None
    scores: Callable[[], list[Score]] = list
    pooled: torch.Tensor | None = None
    tokens: torch.Tensor | None = None
    chosen: torch.Tensor | None = None
    top: tuple[torch.Tensor, torch.Tensor] | None = None
    done: Event | None = None


class AheadStepper(Stepper):
    """`launch`, `draw` and `settle` in this order for each plan; the next plan may be launched before `settle`."""

    def __init__(
        self,
        device: Device,
        model: Model,
        kv: torch.Tensor,
        *,
        vocab_size: int,
        vocabulary: int,
        context_length: int,
        drawer: Drawer,
        planner: Planner | None = None,
        draft: DraftModel | None = None,
    ) -> None:
        """kv: [layers, 2, kv_heads, slots + 1, head_dim]; the last slot takes what nobody reads. With `planner` (the
        model's attention is Triton's) steps of short rows are recorded and replayed. `draft`: over `draft_ahead`."""
        super().__init__(
            model, kv, vocab_size=vocab_size, vocabulary=vocabulary, context_length=context_length, draft=draft
        )
        self.limits = Limits(vocab_size=vocab_size, kv_tokens=kv.shape[3] - 1, context_length=context_length)
        # As large as it can get: graphs read it where it is.
        self.rows = Rows(vocab_size, device.device, capacity=LARGEST_ROW_ID + 1)
        self.device = device
        self._drawer = drawer
        self.passes = Passes(device, model, kv, planner)
        self._last = np.zeros(LARGEST_ROW_ID + 1 if draft is not None else 0, np.int64)
        """What each row sampled last, of the steps that are settled: the draft model must know the tokens."""

    def run(self, plan: StepPlan, masks: Callable[[], StepMasks]) -> StepResult:
        """One step, waited for."""
        flight = self.launch(plan)
        self.draw(flight, masks)
        return self.settle(flight)

    # --- launch ---------------------------------------------------------------------------------------------------

    def launch(self, plan: StepPlan) -> Flight:
        """Begin the forward pass. What is raised is this step's failure, and the rows of the step lose their token."""
        try:
            return self._launch(plan)
        except BaseException:
            self._lose(plan)
            raise

    def _launch(self, plan: StepPlan) -> Flight:
        began = perf_counter()
        self._open_and_close(plan)
        layout = lay_out(plan, self.rows, self.limits)
        attention = AttentionLayout.from_plan(plan, self.device.device)
        rows = layout.rows[layout.sampled]
        positions = plan.positions[layout.at].astype(np.int64) + 1
        _, which, lines = np.unique(rows, return_inverse=True, return_counts=True)
        sure = lines[which] == 1
        flight = Flight(
            plan, layout, rows, positions, sure, self.rows.draw(rows, positions), self.rows.logprobs[rows],
            self.rows.opened[rows], began,
        )  # fmt: skip
        asked = logprobs.Asked.of([wanted(layout, spec) for spec in plan.scores])
        named = {} if asked is None else self.passes.on_device(asked.arrays())
        made = flight.made = self.passes.upload(attention, len(layout.sampled), _arrays(flight))
        self.device.run(lambda: self._forward_on(flight, made, asked, named))
        # Known to have a token as soon as it is drawn; that there is none shows on the device, and here at the end.
        self.rows.state[rows[flight.sure]] = SAMPLED
        flight.launched = perf_counter()
        return flight

    def _forward_on(
        self, flight: Flight, made: Pass, asked: logprobs.Asked | None, named: dict[str, torch.Tensor]
    ) -> None:
        hidden = self.passes.hidden(made, self.rows.last)
        if asked is not None:
            flight.scores = asked.begin(self._model.logits, hidden, named, self.device.fetch)
        if flight.plan.pool is not None:
            flight.pooled = self.device.fetch(pool_rows(hidden, flight.layout.ends, flight.plan.pool))
        if flight.layout.sampled.size:
            at = made.cell.arrays["at"][: flight.layout.sampled.size]
            flight.logits = self._model.logits(hidden[at.long()])

    # --- draw -----------------------------------------------------------------------------------------------------

    def draw(self, flight: Flight, masks: Callable[[], StepMasks]) -> None:
        """Begin what follows the forward pass. The step before this one must be settled: rules look at its tokens."""
        try:
            self._draw(flight, masks)
        except BaseException:
            self._lose(flight.plan)
            raise

    def _draw(self, flight: Flight, masks: Callable[[], StepMasks]) -> None:
        layout = flight.layout
        if not layout.sampled.size:
            flight.done = self.device.event()
            return
        changes = self.rows.adjustments(flight.rows, flight.positions, layout.standing)
        rules = None if changes is None else self.passes.on_device(_rules(changes))
        allowed = None
        if layout.masked.size:
            begin = perf_counter()
            bitmask = masks().bitmask
            flight.mask_wait_s = perf_counter() - begin
            if bitmask.ndim != 2 or len(bitmask) != len(layout.masked) or bitmask.dtype != np.int32:
                raise PlanError("the token masks do not fit the step's masked rows")
            block = self.passes.on_device({"bitmask": bitmask.reshape(-1)})
            allowed = Masks(layout.masked, block["bitmask"].view(bitmask.shape))
        self.device.run(lambda: self._draw_on(flight, rules, allowed))
        flight.done = self.device.event()
        flight.drawn = perf_counter()

    def _draw_on(self, flight: Flight, rules: dict[str, torch.Tensor] | None, allowed: Masks | None) -> None:
        logits, count = flight.logits, len(flight.rows)
        if logits is None or flight.made is None:
            raise RuntimeError("the step's forward pass did not run")
        cell = flight.made.cell
        arrays = cell.arrays
        own = None
        if (flight.asked >= 0).any():
            own = logprobs.log_softmax(logits)
            most = int(flight.asked.max())
            if most:
                chunks = chunked(logits)
                ids = ordered_top(chunks, chunks.amax(-1), most)
                flight.top = self.device.fetch(ids.to(torch.int32)), self.device.fetch(own.gather(1, ids))
        if rules is not None:
            adjust.add_bias(logits, rules["bias_rows"], rules["bias_ids"], rules["bias"])
            names = ("rows", "ids", "counts", "repetition", "presence", "frequency")
            adjust.penalize(logits, adjust.Penalized(*(rules[name] for name in names)))
            adjust.forbid(logits, rules["forbidden_rows"], rules["forbidden_ids"])
        tokens = self._drawer(logits, arrays, flight.draw, allowed, self._vocabulary)
        lost = arrays["lost"][:count].long()
        gone = cell.gone
        if gone is not None:
            tokens = tokens.masked_fill((lost == _LOST) | ((lost >= 0) & gone[lost.clamp(min=0)]), -1)
        self.rows.last[arrays["rows"][:count].long()] = tokens
        flight.tokens = self.device.fetch(tokens)
        if own is not None:
            flight.chosen = self.device.fetch(own.gather(1, tokens.clamp(min=0)[:, None])[:, 0])

    # --- settle ---------------------------------------------------------------------------------------------------

    def settle(self, flight: Flight) -> StepResult:
        """Wait for the step, remember its tokens and answer."""
        try:
            if flight.done is None:
                raise RuntimeError("a step must be drawn before it is settled")
            flight.done.wait()
            return self._settle(flight)
        except BaseException:
            self._lose(flight.plan)
            raise

    def drop(self, flight: Flight) -> None:
        """Forget a step that was launched and will not be drawn."""
        self._lose(flight.plan)

    def _settle(self, flight: Flight) -> StepResult:
        times: dict[str, Any] = {
            "forward_s": flight.launched - flight.began,
            "mask_wait_s": flight.mask_wait_s,
            "sample_s": perf_counter() - (flight.drawn or flight.launched),
        }
        if flight.tokens is None:
            self._computed(flight)
            return answer(flight.plan, scores=flight.scores(), pooled=_on_host(flight.pooled), **times)
        count, standing = len(flight.rows), flight.layout.standing
        tokens = flight.tokens.numpy().astype(np.int32)
        self._computed(flight)
        # A plan that was launched since may have closed a row and given its id to another.
        current = self.rows.opened[flight.rows] == flight.opened
        last = self.rows.settled(flight.rows, tokens, standing, flight.sure, current)
        if last.size:
            held = self.passes.on_device({"rows": flight.rows[last], "tokens": tokens[last].astype(np.int64)})
            self.device.run(lambda: _put(self.rows.last, held))
        proposals = self._propose_behind(flight, tokens)
        asked = flight.asked
        most = 0 if flight.top is None else flight.top[0].shape[1]
        chosen, top_ids = np.zeros(count, np.float32), np.zeros((count, most), np.int32)
        top_logprobs = np.zeros((count, most), np.float32)
        wants = asked >= 0
        if flight.chosen is not None:
            chosen[wants] = flight.chosen.numpy()[wants]
        if flight.top is not None:
            top_ids[wants], top_logprobs[wants] = (part.numpy()[wants] for part in flight.top)
        return answer(
            flight.plan, tokens=tokens, logprobs=chosen, top_ids=top_ids, top_logprobs=top_logprobs,
            scores=flight.scores(), pooled=_on_host(flight.pooled), proposals=proposals, **times,
        )  # fmt: skip

    def _computed(self, flight: Flight) -> None:
        """Tell the draft model which tokens lie in the step's slots now."""
        if self._draft is None:
            return
        plan, layout = flight.plan, flight.layout
        tokens = plan.tokens.astype(np.int64)
        tokens[layout.filled] = self._last[layout.filled_rows].clip(min=0)
        self._draft.written(plan.slots, tokens)

    def _propose_behind(self, flight: Flight, tokens: np.ndarray) -> Proposals | None:
        """The draft model's guesses, which are waited for: what they stand on was not known before."""
        if self._draft is None or flight.made is None:
            return None
        lines = np.arange(len(tokens))
        if flight.layout.standing is not None:
            lines = flight.layout.standing.last(flight.layout.standing.counting(tokens))
        self._last[flight.rows[lines]] = tokens[lines]
        asks = asks_of(flight.plan, flight.layout, flight.made.layout, tokens)
        return self._draft.propose(asks, self.rows) if asks else None

    def _lose(self, plan: StepPlan) -> None:
        if plan.rows.shape == plan.sample.shape:
            self.rows.lose(plan.rows[plan.sample != 0])


_LOST = -2
"""In a cell's `lost`: the line's row has lost its token; -1: nothing was filled in; else the token that was."""


def _arrays(flight: Flight) -> dict[str, np.ndarray]:
    """What goes into a cell."""
    plan, layout, draw = flight.plan, flight.layout, flight.draw
    source = np.full(len(plan.tokens), -1, np.int32)
    row_of = np.searchsorted(layout.ends, layout.filled, side="right")
    source[layout.filled] = np.where(layout.lost[row_of], -1, layout.filled_rows)
    filled_of_row = np.full(len(plan.rows), -1, np.int64)
    filled_of_row[row_of] = layout.filled
    filled_of_row[layout.lost] = _LOST
    mask_row = np.full(len(flight.rows), -1, np.int32)
    mask_row[layout.masked] = np.arange(len(layout.masked))
    return {
        "tokens": plan.tokens, "source": source, "positions": plan.positions, "slots": plan.slots,
        "at": layout.at, "rows": np.where(flight.sure, flight.rows, LARGEST_ROW_ID),
        "lost": filled_of_row[layout.sampled], "mask_row": mask_row,
        "top_k": np.clip(draw.top_k, 0, np.iinfo(np.int32).max), "temperature": draw.temperature,
        "min_p": draw.min_p, "top_p": draw.top_p, "uniforms": draw.uniforms,
    }  # fmt: skip


def _rules(changes: Any) -> dict[str, np.ndarray]:
    which = changes.penalized
    return {
        "bias_rows": changes.bias_rows, "bias_ids": changes.bias_ids, "bias": changes.bias,
        "rows": which.rows, "ids": which.ids, "counts": which.counts, "repetition": which.repetition,
        "presence": which.presence, "frequency": which.frequency,
        "forbidden_rows": changes.forbidden_rows, "forbidden_ids": changes.forbidden_ids,
    }  # fmt: skip


def _on_host(fetched: torch.Tensor | None) -> np.ndarray | None:
    return None if fetched is None else fetched.numpy()


def _put(last: torch.Tensor, held: dict[str, torch.Tensor]) -> None:
    last[held["rows"]] = held["tokens"]
