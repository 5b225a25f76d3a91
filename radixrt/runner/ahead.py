"""Steps that a device works on while the next ones are planned, for GPUs: `step.Stepper` without its waiting.

    launch   check, lay out, one upload, forward pass: rows' last tokens are read on the device, where they were written
    draw     once the last step is settled: rules, masks (uploaded beside the forward pass), draw, tokens on their way
    settle   wait for these, the step's one wait, and answer

So the forward pass of a step is under way before the tokens of the last one are known here. A row whose last token does
not exist (-1) is found on the device: it runs on token 0, and samples -1 again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import numpy as np
import torch

from radixrt.kernels.layout import AttentionLayout
from radixrt.messages import Score, StepMasks, StepPlan, StepResult
from radixrt.runner import adjust, logprobs
from radixrt.runner.cells import Cell, Cells, PlannedLayout, Planner, room_of
from radixrt.runner.device import Device, Event
from radixrt.runner.draws import Drawer, Masks
from radixrt.runner.plan import Layout, Limits, lay_out
from radixrt.runner.ranking import chunked, ordered_top
from radixrt.runner.rows import LARGEST_ROW_ID, SAMPLED, PlanError, Rows
from radixrt.runner.sampler import Draw
from radixrt.runner.staging import Staging, block_of
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
    cell: Cell
    began: float
    launched: float = 0.0
    mask_wait_s: float = 0.0
    drawn: float = 0.0
    logits: torch.Tensor | None = None
    scores: list[Score] = field(default_factory=list)
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
    ) -> None:
        """kv: [layers, 2, kv_heads, slots + 1, head_dim]; the last slot takes what nobody reads. With `planner` (the
        model's attention is Triton's) decode steps are recorded and replayed."""
        super().__init__(model, kv, vocab_size=vocab_size, vocabulary=vocabulary, context_length=context_length)
        self._scratch = kv.shape[3] - 1
        self.limits = Limits(vocab_size=vocab_size, kv_tokens=self._scratch, context_length=context_length)
        # As large as it can get: graphs read it where it is.
        self.rows = Rows(vocab_size, device.device, capacity=LARGEST_ROW_ID + 1)
        self.device = device
        self._drawer = drawer
        self._planner = planner
        self.cells = None if planner is None else Cells(device.device, planner)
        self._staging = Staging(device)

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
        attention_plan = None if self._planner is None else self._planner.plan(attention)
        room = room_of(len(plan.tokens), len(layout.sampled), attention_plan)
        decode = len(plan.tokens) == len(plan.rows) and not plan.scores
        cell = self.cells.get(room) if self.cells is not None and decode else None
        if cell is None:
            cell = Cell(room, self.device.device, self._planner)
        rows = layout.rows[layout.sampled]
        positions = plan.positions[layout.at].astype(np.int64) + 1
        _, which, lines = np.unique(rows, return_inverse=True, return_counts=True)
        sure = lines[which] == 1
        flight = Flight(
            plan, layout, rows, positions, sure, self.rows.draw(rows, positions), self.rows.logprobs[rows],
            self.rows.opened[rows], cell, began,
        )  # fmt: skip
        self._upload(cell, _arrays(flight), attention_plan)
        layer = attention if cell.buffers is None else PlannedLayout(cell.buffers.plan)
        self.device.run(lambda: self._forward_on(flight, layer))
        # Known to have a token as soon as it is drawn; that there is none shows on the device, and here at the end.
        self.rows.state[rows[flight.sure]] = SAMPLED
        flight.launched = perf_counter()
        return flight

    def _upload(self, cell: Cell, arrays: dict[str, np.ndarray], attention_plan: Any) -> None:
        staged = self._staging.take(cell.block.size)
        cell.fill(staged.numpy(), arrays, attention_plan, self._scratch)
        self.device.run(lambda: _copy(cell.data, staged))
        self._staging.sent(self.device.event())

    def _forward_on(self, flight: Flight, attention: Any) -> None:
        cell, at = flight.cell, flight.cell.arrays["at"]
        if not cell.kept:
            hidden = self._pass(cell, attention)
            asked = [wanted(flight.layout, spec) for spec in flight.plan.scores]
            flight.scores = logprobs.scores(self._model.logits, hidden, asked)
            if flight.layout.sampled.size:
                flight.logits = self._model.logits(hidden[at.long()])
            return

        def whole() -> None:
            cell.logits = self._model.logits(self._pass(cell, attention))

        if cell.graph is None:
            whole()  # makes what is made once (compiled kernels, their best tiles), and this step's result
            cell.graph = self.device.record(whole)
        cell.graph.replay()
        if cell.logits is None:
            raise RuntimeError("a recorded pass gave no logits")
        if flight.layout.sampled.size:
            flight.logits = cell.logits[at[: flight.layout.sampled.size].long()]

    def _pass(self, cell: Cell, attention: Any) -> torch.Tensor:
        tokens = cell.tokens(self.rows.last)
        positions, slots = cell.arrays["positions"].long(), cell.arrays["slots"].long()
        return self._model.forward(tokens, positions, slots, self._kv, attention)

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
        rules = None if changes is None else self._on_device(_rules(changes))
        allowed = None
        if layout.masked.size:
            begin = perf_counter()
            bitmask = masks().bitmask
            flight.mask_wait_s = perf_counter() - begin
            if bitmask.ndim != 2 or len(bitmask) != len(layout.masked) or bitmask.dtype != np.int32:
                raise PlanError("the token masks do not fit the step's masked rows")
            block = self._on_device({"bitmask": bitmask.reshape(-1)})
            allowed = Masks(layout.masked, block["bitmask"].view(bitmask.shape))
        self.device.run(lambda: self._draw_on(flight, rules, allowed))
        flight.done = self.device.event()
        flight.drawn = perf_counter()

    def _on_device(self, arrays: dict[str, np.ndarray]) -> dict[str, torch.Tensor]:
        """Upload beside the forward pass that is under way."""
        block = block_of(arrays)
        staged = self._staging.take(block.size)
        block.fill(staged.numpy(), arrays)
        data = self.device.upload(staged)
        self._staging.sent(self.device.copied())
        return block.views(data)

    def _draw_on(self, flight: Flight, rules: dict[str, torch.Tensor] | None, allowed: Masks | None) -> None:
        logits, arrays, count = flight.logits, flight.cell.arrays, len(flight.rows)
        if logits is None:
            raise RuntimeError("the step's forward pass did not run")
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
        gone = flight.cell.gone
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
            return answer(flight.plan, scores=flight.scores, **times)
        count, standing = len(flight.rows), flight.layout.standing
        tokens = flight.tokens.numpy().astype(np.int32)
        # A plan that was launched since may have closed a row and given its id to another.
        current = self.rows.opened[flight.rows] == flight.opened
        last = self.rows.settled(flight.rows, tokens, standing, flight.sure, current)
        if last.size:
            held = self._on_device({"rows": flight.rows[last], "tokens": tokens[last].astype(np.int64)})
            self.device.run(lambda: _put(self.rows.last, held))
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
            scores=flight.scores, **times,
        )  # fmt: skip

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


def _put(last: torch.Tensor, held: dict[str, torch.Tensor]) -> None:
    last[held["rows"]] = held["tokens"]


def _copy(target: torch.Tensor, staged: torch.Tensor) -> None:
    target.copy_(staged, non_blocking=True)
