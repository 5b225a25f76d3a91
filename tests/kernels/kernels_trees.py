"""Random ragged steps over random prefix trees, and what their attention must be, worked out a row at a time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from hypothesis import strategies as st

from radixrt.kernels import AttentionLayout
from radixrt.kernels.kv_lines import from_lines, to_lines

GARBAGE = 40
"""Slots of the pool that nothing owns; the tests fill them with NaN."""


@dataclass(frozen=True)
class Tree:
    """A step. `reads[r]`: slots row r reads before its own tokens, in path order."""

    new_lens: list[int]
    new_slots: list[np.ndarray]
    reads: list[np.ndarray]
    private: list[np.ndarray]
    spans: list[tuple[np.ndarray, int, int]]
    num_slots: int

    def layout(self) -> AttentionLayout:
        offsets = np.cumsum([0, *(len(slots) for slots, _, _ in self.spans)])
        positions = [
            np.arange(len(reads), len(reads) + new) for reads, new in zip(self.reads, self.new_lens, strict=True)
        ]
        spans = [(at, len(slots), a, b) for at, (slots, a, b) in zip(offsets, self.spans, strict=False)]
        return AttentionLayout(
            new_lens=np.array(self.new_lens, dtype=np.int32),
            slots=np.concatenate(self.new_slots).astype(np.int32),
            positions=np.concatenate(positions).astype(np.int32),
            private_lens=np.array([len(p) for p in self.private], dtype=np.int32),
            private_slots=np.concatenate(self.private).astype(np.int32),
            spans=np.array(spans, dtype=np.int32).reshape(-1, 4),
            span_slots=np.concatenate([np.zeros(0, np.int32), *(s for s, _, _ in self.spans)]).astype(np.int32),
        )


@st.composite
def trees(draw: st.DrawFn, long_run: int) -> Tree:
    """Rows: prefill chunks and decode rows; spans nested at random; private parts empty, short, or above `long_run`."""
    rows = draw(st.integers(1, 6))
    new_lens = draw(st.lists(st.sampled_from([1, 1, 1, 2, 3, 9]), min_size=rows, max_size=rows))
    lengths = st.sampled_from([0, 1, 2, 5, 17, 30, long_run + 3, 2 * long_run + 1])
    private_lens = draw(st.lists(lengths, min_size=rows, max_size=rows))
    spans: list[tuple[int, int, int]] = []

    def nest(first: int, end: int, depth: int) -> None:
        if depth == 3 or end - first < 2 or not draw(st.booleans()):
            return
        for _ in range(draw(st.integers(1, 2))):
            spans.append((draw(lengths), first, end))
        middle = draw(st.integers(first, end))
        nest(first, middle, depth + 1)
        nest(middle, end, depth + 1)

    nest(0, rows, 0)
    total = sum(new_lens) + sum(private_lens) + sum(n for n, _, _ in spans)
    num_slots = total + GARBAGE
    # Scattered slots, whole runs, or runs with a few cuts.
    order = np.arange(num_slots)
    shuffle = draw(st.sampled_from(["none", "all", "blocks"]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    if shuffle == "all":
        rng.shuffle(order)
    elif shuffle == "blocks":
        cuts = np.sort(rng.integers(0, num_slots, size=4))
        blocks = np.split(order, cuts)
        order = np.concatenate([blocks[i] for i in rng.permutation(len(blocks))])
    taken = 0

    def take(count: int) -> np.ndarray:
        nonlocal taken
        taken += count
        return order[taken - count : taken]

    placed = [(take(n), first, end) for n, first, end in spans]
    private, new_slots = [], []
    for new, count in zip(new_lens, private_lens, strict=True):
        private.append(take(count))
        new_slots.append(take(new))  # right behind the private part: often one run with it
    # In-flight sharing: a later row may read, as its private part, what an earlier row writes in this very step.
    for row in range(1, rows):
        if draw(st.integers(0, 4)) == 0:
            private[row] = np.concatenate([private[row], new_slots[row - 1]])
    reads = [
        np.concatenate([*(slots for slots, first, end in placed if first <= row < end), private[row]])
        for row in range(rows)
    ]
    return Tree(new_lens, new_slots, reads, private, placed, num_slots)


@dataclass(frozen=True)
class Inputs:
    """Tensors of one layer; the pool holds the new tokens already, and NaN in every slot that no row owns."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    keys: torch.Tensor
    values: torch.Tensor


def inputs(
    tree: Tree,
    heads: int,
    kv_heads: int,
    width: int,
    dtype: torch.dtype,
    seed: int,
    pool_dtype: torch.dtype | None = None,
) -> Inputs:
    """Standard normal numbers of `dtype`, in a pool of `pool_dtype` (or the same)."""
    pool_dtype = pool_dtype or dtype
    rng = torch.Generator().manual_seed(seed)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=rng).to(dtype)

    tokens = sum(tree.new_lens)
    # As a model has them: queries and keys lie in one tensor, so neither is contiguous.
    qk, v = random(tokens, heads + kv_heads, width), random(tokens, kv_heads, width)
    keys, values = random(kv_heads, tree.num_slots, width), random(kv_heads, tree.num_slots, width)
    new = torch.from_numpy(np.concatenate(tree.new_slots))
    owned = np.unique(np.concatenate([*tree.new_slots, *tree.reads]))
    garbage = torch.from_numpy(np.setdiff1d(np.arange(tree.num_slots), owned))
    for pool, own in ((keys, qk[:, heads:]), (values, v)):
        pool[:, new] = own.transpose(0, 1)
        pool[:, garbage] = float("nan")
    return Inputs(qk[:, :heads], qk[:, heads:], v, to_lines(keys, pool_dtype), to_lines(values, pool_dtype))


def expected(tree: Tree, x: Inputs, scale: float, window: int | None) -> torch.Tensor:
    """float64[T, H, D]: softmax over what each token reads, a token and a head at a time."""
    heads, kv_heads = x.q.shape[1], x.k.shape[1]
    out = torch.empty(x.q.shape, dtype=torch.float64)
    keys, values = from_lines(x.keys, torch.float64), from_lines(x.values, torch.float64)
    at = 0
    for row, new in enumerate(tree.new_lens):
        for i in range(new):
            slots = np.concatenate([tree.reads[row], tree.new_slots[row][: i + 1]])
            if window is not None:
                slots = slots[-window:]
            for head in range(heads):
                kv_head = head // (heads // kv_heads)
                k, v = keys[kv_head, slots], values[kv_head, slots]
                out[at, head] = torch.softmax(k @ x.q[at, head].double() * scale, 0) @ v
            at += 1
    return out
