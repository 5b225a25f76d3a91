"""The draft model's passes on a GPU: one behind the other without a wait in between, and one wait for all guesses.

What a row guessed stays on the device, where the next pass reads it as a step reads rows' last tokens; passes of one
new token a row are recorded like decode steps.
"""

from __future__ import annotations

import numpy as np
import torch

from radixrt.runner.cells import Planner
from radixrt.runner.device import Device
from radixrt.runner.draft import SCRATCH, Part, layout_of
from radixrt.runner.draws import Drawer
from radixrt.runner.passes import Pass, Passes
from radixrt.runner.sampler import Draw
from radixrt.runner.step import Model


class AheadPasses:
    """`draft.GuessingPasses` over `passes.Passes`."""

    def __init__(
        self,
        device: Device,
        model: Model,
        kv: torch.Tensor,
        *,
        vocabulary: int,
        drawer: Drawer,
        planner: Planner | None = None,
    ) -> None:
        """kv: [layers, 2, kv_heads, slots + SCRATCH + 1, head_dim]; the last slot takes what nobody reads."""
        self._device = device
        self._model = model
        self._vocabulary = vocabulary
        self._drawer = drawer
        self._passes = Passes(device, model, kv, planner)
        self._last = torch.zeros(SCRATCH, dtype=torch.int64, device=device.device)
        """By place among the rows that guess: what each guessed last."""
        self._guesses: list[torch.Tensor] = []

    def run(self, parts: list[Part], draw: Draw | None) -> None:
        layout = layout_of(parts, self._device.device)
        tokens = np.concatenate([part.tokens for part in parts])
        ends = layout.starts[1:] - 1
        source = np.full(len(tokens), -1, np.int64)
        source[ends] = np.where(tokens[ends] < 0, np.arange(len(parts)), -1)
        arrays = {"tokens": tokens, "source": source, "positions": layout.positions, "slots": layout.slots}
        lines = 0
        if draw is not None:
            lines = len(parts)
            arrays |= {
                "at": ends, "rows": np.arange(lines), "lost": np.full(lines, -1), "mask_row": np.full(lines, -1),
                "top_k": np.clip(draw.top_k, 0, np.iinfo(np.int32).max), "temperature": draw.temperature,
                "min_p": draw.min_p, "top_p": draw.top_p, "uniforms": draw.uniforms,
            }  # fmt: skip
        made = self._passes.upload(layout, lines, arrays)
        self._device.run(lambda: self._run_on(made, draw, lines))

    def _run_on(self, made: Pass, draw: Draw | None, lines: int) -> None:
        hidden = self._passes.hidden(made, self._last)
        if draw is None:
            return
        arrays = made.cell.arrays
        logits = self._model.logits(hidden[arrays["at"][:lines].long()])
        tokens = self._drawer(logits, arrays, draw, None, self._vocabulary).clamp(min=0)
        self._last[:lines] = tokens
        self._guesses.append(self._device.fetch(tokens))

    def guessed(self) -> np.ndarray:
        self._device.event().wait()
        guesses, self._guesses = torch.stack(self._guesses).numpy(), []
        return guesses
