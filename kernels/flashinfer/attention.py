"""Tree attention over FlashInfer's paged kernels (arXiv 2501.01005; the calls are those of flashinfer-python 0.7).

The pool is a paged cache of one token a page. What a step reads is cut into levels: each row's own part, causal, and
for every level of nesting the shared spans, each read by all rows below it; levels are merged by their log-sum-exp, as
FlashInfer's cascade does. A level is planned once a step and run once a layer.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from weakref import finalize

import numpy as np
import torch

from radixrt.errors import StartupError
from radixrt.kernels.layout import AttentionLayout
from radixrt.kernels.triton.plan import EVERYTHING, Segment, segments

WIDTHS = (64, 128, 256)
"""Lengths of a head that FlashInfer has kernels for."""
DTYPES = (torch.float16, torch.bfloat16)
WORKSPACE = 128 << 20
"""Bytes of partial results, which FlashInfer recommends; one room for all levels, whose runs follow each other."""
BACKEND = "fa2"
"""The back end that reads a pool of any strides on every GPU since sm80."""
TENSOR_CORES_FROM = 4
"""Query heads a key-value head from which decoding is a product worth the tensor cores."""


def check(width: int, dtype: torch.dtype) -> None:
    """StartupError where FlashInfer has no kernel for a model."""
    if width not in WIDTHS or dtype not in DTYPES:
        name = str(dtype).removeprefix("torch.")
        raise StartupError(
            f"FlashInfer has kernels for heads of {', '.join(map(str, WIDTHS))} in float16 and bfloat16, the model has "
            f"heads of {width} in {name}: choose --attention triton",
            param="attention",
        )


def tree_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    layout: AttentionLayout,
    scale: float,
    sliding_window: int | None = None,
    *,
    soft_cap: float | None = None,
) -> torch.Tensor:
    """Attention of a ragged step over the prefix tree: q [T, H, D] -> [T, H, D]. See `ops.Kernels`.

    float16 or bfloat16, D of WIDTHS. With a window nothing is shared: each row reads what its window leaves.
    """
    import flashinfer

    heads, kv_heads, width = q.shape[1], keys.shape[0], q.shape[2]
    model = _Model(heads, kv_heads, width, q.dtype, scale, sliding_window, soft_cap)
    levels = layout.derive(("flashinfer", model, q.device), lambda: _plan(layout, model, q.device))
    q = q.contiguous()
    # One token a page: [slots, 1, KVH, D], a view.
    pool = (keys.transpose(0, 1).unsqueeze(1), values.transpose(0, 1).unsqueeze(1))
    if not levels.shared:
        whole: torch.Tensor = levels.own.run(q, pool)
        return whole
    out, lse = levels.own.run(q, pool, return_lse=True)
    for tokens, wrapper in levels.shared:
        more, more_lse = wrapper.run(q[tokens], pool, return_lse=True)
        out[tokens], lse[tokens] = flashinfer.merge_state(out[tokens], lse[tokens], more, more_lse)
    return out  # type: ignore[no-any-return]


@dataclass(frozen=True)
class _Model:
    """What of a call is the same in every step."""

    heads: int
    kv_heads: int
    width: int
    dtype: torch.dtype
    scale: float
    window: int | None
    soft_cap: float | None

    def options(self) -> dict[str, Any]:
        return {
            "q_data_type": self.dtype, "kv_data_type": self.dtype, "sm_scale": self.scale,
            "logits_soft_cap": self.soft_cap, "window_left": -1 if self.window is None else self.window - 1,
        }  # fmt: skip


@dataclass(eq=False)
class _Levels:
    """A step's planned wrappers. `shared`: (which tokens int64[n], wrapper) of each level."""

    own: Any
    shared: list[tuple[torch.Tensor, Any]]


def _plan(layout: AttentionLayout, model: _Model, device: torch.device) -> _Levels:
    index, parts = segments(layout, model.window, model.window is None)
    own = [part for part in parts if part.own != EVERYTHING]
    taken: list[tuple[str, _Wrapper]] = []
    decode = layout.num_tokens == layout.num_rows and layout.parents is None
    first = _own(layout, model, device, index, own, taken, decode)
    shared = []
    for level in nested([part for part in parts if part.own == EVERYTHING and part.stop > part.start]):
        lens = [part.end - part.first for part in level]
        wrapper = _taken("prefill", device, model, taken)
        reads = [index[part.at + part.start : part.at + part.stop] for part in level]
        wrapper.plan(_starts(lens), *_pages(reads, device), *_shape(model), causal=False, **model.options())
        tokens = np.concatenate([np.arange(part.first, part.end) for part in level])
        shared.append((torch.from_numpy(tokens).to(device), wrapper.flashinfer))
    levels = _Levels(first, shared)
    finalize(levels, _give_back, device, taken)
    return levels


def _own(
    layout: AttentionLayout,
    model: _Model,
    device: torch.device,
    index: np.ndarray,
    own: list[Segment],
    taken: list[tuple[str, _Wrapper]],
    decode: bool,
) -> Any:
    """The level of what each row reads by itself."""
    reads, masks = [], []
    for row, part in enumerate(own):
        # Of its context a row needs what the window of its first new token leaves.
        start = 0 if model.window is None else max(0, part.own - model.window + 1)
        reads.append(index[part.at + start : part.at + part.stop])
        if layout.parents is not None:
            masks.append(_mask(layout, row, part.own - start, model.window))
    pages = _pages(reads, device)
    if decode:
        kind = "decode" if model.heads // model.kv_heads < TENSOR_CORES_FROM else "decode, tensor cores"
        wrapper = _taken(kind, device, model, taken)
        wrapper.plan(*pages, *_shape(model), **model.options())
        return wrapper.flashinfer
    options = model.options()
    if masks:
        options |= {"custom_mask": torch.from_numpy(np.concatenate(masks)).to(device), "window_left": -1}
    wrapper = _taken("prefill", device, model, taken)
    lens = np.diff(layout.starts).tolist()
    wrapper.plan(_starts(lens), *pages, *_shape(model), causal=not masks, **options)
    return wrapper.flashinfer


def _mask(layout: AttentionLayout, row: int, before: int, window: int | None) -> np.ndarray:
    """bool[new * (before + new)]: which of a row's slots each of its new tokens, a tree, sees."""
    first, end = int(layout.starts[row]), int(layout.starts[row + 1])
    seen = np.concatenate([np.ones((end - first, before), bool), layout.sees(row)], axis=1)
    if window is not None:
        positions = layout.positions[first:end]
        places = np.concatenate([positions[0] - before + np.arange(before), positions])
        seen &= places[None] > positions[:, None] - window
    return seen.reshape(-1)


def nested(spans: Sequence[Segment]) -> list[list[Segment]]:
    """Spans in levels, within each of which no token reads two."""
    levels: list[list[Segment]] = []
    for span in sorted(spans, key=lambda part: (part.first, -part.end)):
        level = next((level for level in levels if level[-1].end <= span.first), None)
        if level is None:
            levels.append(level := [])
        level.append(span)
    return levels


def _shape(model: _Model) -> tuple[int, int, int, int]:
    return model.heads, model.kv_heads, model.width, 1


def _starts(lens: Sequence[int]) -> torch.Tensor:
    """int32[n + 1], on the host, where plans read it."""
    return torch.tensor([0, *np.cumsum(lens).tolist()], dtype=torch.int32)


def _pages(reads: list[np.ndarray], device: torch.device) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(starts, pages, tokens of the last page, which is 1) of a paged cache."""
    indices = torch.from_numpy(np.concatenate(reads).astype(np.int32))
    if device.type == "cuda":
        indices = indices.pin_memory().to(device, non_blocking=True)
    lens = [len(each) for each in reads]
    return _starts(lens), indices, torch.ones(len(reads), dtype=torch.int32)


class _Wrapper:
    """One of FlashInfer's, and the point behind its last plan, which is copied from memory that the next one writes."""

    def __init__(self, made: Any, device: torch.device) -> None:
        self.flashinfer = made
        self._copied = torch.cuda.Event() if device.type == "cuda" else None  # type: ignore[no-untyped-call]

    def plan(self, *arguments: Any, **options: Any) -> None:
        if self._copied is not None:
            self._copied.synchronize()
        self.flashinfer.plan(*arguments, **options)
        if self._copied is not None:
            self._copied.record()


_free: defaultdict[tuple[torch.device, str], list[_Wrapper]] = defaultdict(list)
_rooms: dict[torch.device, torch.Tensor] = {}


def _taken(kind: str, device: torch.device, model: _Model, taken: list[tuple[str, _Wrapper]]) -> _Wrapper:
    """A wrapper that no step is using."""
    import flashinfer

    free = _free[device, kind]
    if free:
        wrapper = free.pop()
    else:
        if device not in _rooms:
            _rooms[device] = torch.zeros(WORKSPACE, dtype=torch.uint8, device=device)
        if kind == "prefill":
            made = flashinfer.BatchPrefillWithPagedKVCacheWrapper(_rooms[device], "NHD", backend=BACKEND)
        else:
            made = flashinfer.BatchDecodeWithPagedKVCacheWrapper(
                _rooms[device], "NHD", use_tensor_cores=kind != "decode", backend=BACKEND
            )
        wrapper = _Wrapper(made, device)
    taken.append((kind, wrapper))
    return wrapper


def _give_back(device: torch.device, taken: list[tuple[str, _Wrapper]]) -> None:
    """The step is over."""
    for kind, wrapper in taken:
        _free[device, kind].append(wrapper)
