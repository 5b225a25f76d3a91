"""A plan in memory that stays where it is, for CUDA graphs: captured once, filled anew for every step."""

from __future__ import annotations

import numpy as np
import torch

from radixrt.kernels.triton.plan import FIELDS, AttentionPlan, Host


def plan_sizes(*, tokens: int, slots: int, items: dict[int, int], parts: int, words: int = 0) -> dict[str, int]:
    """int32 numbers of each array of `PlanBuffers`, in order."""
    return {
        "index": slots, "positions": tokens, "merged": tokens, "merge_starts": tokens + 1, "merge_parts": parts,
        **{f"items {height}": count * FIELDS for height, count in items.items()}, "ancestors": tokens * words,
    }  # fmt: skip


class PlanBuffers:
    """Room for the plans of steps of `tokens` new tokens; `plan` is what a graph captures `attend` with.

    What a step leaves of the room is items of no tokens, and merges of nothing: their programs end at once. A step
    whose plan needs more than there is does not fit, and runs without the graph.
    """

    def __init__(
        self,
        *,
        tokens: int,
        slots: int,
        items: dict[int, int],
        parts: int,
        device: torch.device,
        flat: torch.Tensor | None = None,
        words: int = 0,
    ) -> None:
        """`slots`: of the index, all contexts together; `items`: tile height -> how many; `parts`: partial results;
        `words`: of a token's ancestors, for steps whose new tokens are trees (then all steps must be such); 0: for
        steps whose new tokens follow each other.

        `flat`: int32[size] on the device to use as the room, whoever owns it uploads what `write` made."""
        self._sizes = plan_sizes(tokens=tokens, slots=slots, items=items, parts=parts, words=words)
        self._words = words
        self.size = sum(self._sizes.values())
        self._staged = torch.zeros(self.size if flat is None else 0, dtype=torch.int32, pin_memory=_pins(device))
        self._flat = torch.zeros(self.size, dtype=torch.int32, device=device) if flat is None else flat
        own = dict(zip(self._sizes, self._flat.split(list(self._sizes.values())), strict=True))
        self.plan = AttentionPlan(
            index=own["index"],
            items={height: own[f"items {height}"].view(-1, FIELDS) for height in sorted(items)},
            positions=own["positions"],
            ancestors=own["ancestors"].view(tokens, words) if words else None,
            parts=parts,
            merged=own["merged"],
            merge_starts=own["merge_starts"],
            merge_parts=own["merge_parts"],
        )

    def fits(self, plan: Host) -> bool:
        """Whether `load` can take it."""
        arrays = self._arrays(plan)
        return (
            (plan.ancestors.shape[1] <= self._words if plan.ancestors is not None else not self._words)
            and plan.parts <= self.plan.parts
            and all(name in self._sizes and array.size <= self._sizes[name] for name, array in arrays.items())
        )

    def write(self, plan: Host, into: np.ndarray) -> None:
        """Lay a plan out as the room has it, in `into` int32[size]. ValueError where it does not fit."""
        if not self.fits(plan):
            raise ValueError("the step's plan is larger than the graph's buffers: run it without the graph")
        into[:] = 0
        edges = np.cumsum([0, *self._sizes.values()])
        at = dict(zip(self._sizes, edges.tolist(), strict=False))
        for name, array in self._arrays(plan).items():
            into[at[name] : at[name] + array.size] = array.reshape(-1)
        first = at["merge_starts"] + len(plan.merged)
        into[first : at["merge_starts"] + self._sizes["merge_starts"]] = len(plan.merge_parts)

    def load(self, plan: Host) -> None:
        """Copy a plan over the last one, in the current stream, without waiting: one upload from pinned memory.

        The caller must not load again before that upload is done (two `PlanBuffers` in turn, or an event). ValueError
        where it does not fit.
        """
        self.write(plan, self._staged.numpy())
        self._flat.copy_(self._staged, non_blocking=True)

    def _arrays(self, plan: Host) -> dict[str, np.ndarray]:
        items = {f"items {height}": array for height, array in plan.items.items()}
        return {
            "index": plan.index, "positions": plan.positions, "merged": plan.merged,
            "merge_starts": plan.merge_starts, "merge_parts": plan.merge_parts, **items, "ancestors": self._masks(plan),
        }  # fmt: skip

    def _masks(self, plan: Host) -> np.ndarray:
        """int32[T, words]: as wide as the room has them."""
        if plan.ancestors is None:
            return np.zeros(0, np.int32)
        masks: np.ndarray = np.pad(plan.ancestors, ((0, 0), (0, max(0, self._words - plan.ancestors.shape[1]))))
        return masks


def _pins(device: torch.device) -> bool:
    return device.type == "cuda"
