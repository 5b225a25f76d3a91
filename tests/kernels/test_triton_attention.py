"""Attention in Triton on random trees, against a float64 reference that works a token and a head at a time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kernels_close import DTYPES, Guards, assert_near, error, poisoned_outputs
from kernels_trees import Inputs, Tree, inputs, trees

from radixrt.kernels import AttentionLayout
from radixrt.kernels import torch as reference
from radixrt.kernels import triton as ops
from radixrt.kernels.triton import plan as plans

pytestmark = pytest.mark.filterwarnings("ignore:All-NaN slice")  # a maximum in numpy

SHAPES = [(6, 2, 64), (3, 3, 80), (4, 2, 96), (8, 1, 128), (2, 1, 256), (9, 3, 16)]
"""Query heads, key-value heads, length of a head; the first five are what models have."""
WINDOWS = [None, None, None, 1, 4, 40]


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pools of a few hundred slots that are split and shared as those of a hundred thousand are."""
    monkeypatch.setattr(plans, "SHORTEST_CHUNK", 32)
    monkeypatch.setattr(plans, "FOLD", 4)


def truth(layout: AttentionLayout, x: Inputs, scale: float, window: int | None = None, cap: float | None = None):
    """float64[T, H, D]."""
    heads, kv_heads = x.q.shape[1], x.k.shape[1]
    out = torch.empty(x.q.shape, dtype=torch.float64)
    for row in range(layout.num_rows):
        context, new = layout.context(row), layout.new_slots(row)
        at = int(layout.starts[row])
        positions = layout.positions[at : at + len(new)]
        for i in range(len(new)):
            chain = []
            step = i
            while step >= 0:
                chain.append(step)
                step = step - 1 if layout.parents is None else int(layout.parents[at + step])
            chain = np.array(chain)
            slots = np.concatenate([context, new[chain]])
            places = np.concatenate([np.arange(len(context)) + positions[0] - len(context), positions[chain]])
            slots = slots[places > positions[i] - (window or 1 << 40)]
            for head in range(heads):
                kv_head = head // (heads // kv_heads)
                k, v = x.keys[kv_head, slots].double(), x.values[kv_head, slots].double()
                scores = k @ x.q[at + i, head].double() * scale
                if cap is not None:
                    scores = cap * torch.tanh(scores / cap)
                out[at + i, head] = torch.softmax(scores, 0) @ v
    return out


def guarded(x: Inputs, guards: Guards) -> Inputs:
    """The same tensors, the pool and the queries' buffer between NaN; q and k stay slices of one tensor."""
    qk = guards.put(torch.cat([x.q, x.k], 1))
    heads = x.q.shape[1]
    return Inputs(qk[:, :heads], qk[:, heads:], guards.put(x.v), guards.put(x.keys), guards.put(x.values))


class GuardedPlans:
    """`make_plan` whose arrays lie between absurd numbers: an item or a slot from there is far outside everything."""

    def __init__(self, guards: Guards) -> None:
        self._guards = guards
        self._plan: plans.AttentionPlan | None = None

    def __call__(self, *args: Any, **options: Any) -> GuardedPlans:
        self._plan = plans.make_plan(*args, **options).to(torch.device("cpu"))
        return self

    def to(self, device: torch.device) -> plans.AttentionPlan:
        plan, put = self._plan, self._guards.put
        assert plan is not None
        return replace(
            plan, index=put(plan.index), positions=put(plan.positions), merged=put(plan.merged),
            merge_starts=put(plan.merge_starts), merge_parts=put(plan.merge_parts),
            items={height: put(items) for height, items in plan.items.items()},
            ancestors=None if plan.ancestors is None else put(plan.ancestors),
        )  # fmt: skip


def check(
    tree: Tree, shape: tuple[int, int, int], dtype: torch.dtype, window: int | None = None, cap: float | None = None,
    seed: int = 0, parents: np.ndarray | None = None, kernel: str = "tree_attention",
) -> None:  # fmt: skip
    layout = tree.layout()
    if parents is not None:
        layout = with_parents(tree, parents)
    scale = shape[2] ** -0.5
    with pytest.MonkeyPatch.context() as patch:
        guards = Guards()
        x = guarded(inputs(tree, *shape, dtype, seed), guards)
        own = (x.k, x.v) if kernel == "tree_attention" else ()
        patch.setattr("radixrt.kernels.triton.attention.make_plan", GuardedPlans(guards))
        with poisoned_outputs(patch, guards):
            out = getattr(ops, kernel)(x.q, *own, x.keys, x.values, layout, scale, window, soft_cap=cap)
        guards.check()
    assert out.dtype == dtype
    assert_near(out, truth(layout, x, scale, window, cap))


def with_parents(tree: Tree, parents: np.ndarray) -> AttentionLayout:
    """The tree's layout where new tokens have parents; a token lies one place behind its parent."""
    plain = tree.layout()
    positions = plain.positions.copy()
    for row in range(plain.num_rows):
        first = int(plain.starts[row])
        for i in range(first, int(plain.starts[row + 1])):
            positions[i] = positions[first] if parents[i] < 0 else positions[first + parents[i]] + 1
    return AttentionLayout(
        new_lens=np.diff(plain.starts), slots=plain.slots, positions=positions,
        private_lens=np.diff(plain.private_starts), private_slots=plain.private_slots, spans=plain.spans,
        span_slots=plain.span_slots, parents=parents,
    )  # fmt: skip


def run_trees(long: bool, **strategies: st.SearchStrategy) -> None:
    """`check` on drawn steps: 9, or 400 with --long."""

    @settings(
        max_examples=400 if long else 9, deadline=None, derandomize=not long, database=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )  # fmt: skip
    @given(tree=trees(40), seed=st.integers(0, 2**31), **strategies)
    def run(tree: Tree, seed: int, **drawn: object) -> None:
        parents = None
        if drawn.pop("tree_shaped", False):
            rng = np.random.default_rng(seed)
            parents = np.concatenate([[rng.integers(-1, i) if i else -1 for i in range(n)] for n in tree.new_lens])
        check(tree, seed=seed, parents=parents, **drawn)  # type: ignore[arg-type]

    run()


def test_random_steps(long: bool) -> None:
    run_trees(
        long, shape=st.sampled_from(SHAPES), dtype=st.sampled_from(DTYPES), window=st.sampled_from(WINDOWS),
        cap=st.sampled_from([None, None, 1.5]),
    )  # fmt: skip


def test_random_steps_whose_new_tokens_are_trees(long: bool) -> None:
    run_trees(
        long, shape=st.sampled_from(SHAPES), dtype=st.sampled_from(DTYPES), window=st.sampled_from(WINDOWS),
        tree_shaped=st.just(True),
    )  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_width_and_dtype(shape: tuple[int, int, int], dtype: torch.dtype) -> None:
    check(two_rows(), shape, dtype)


def make(rows: list[tuple[int, int]], spans: list[tuple[int, int, int]] = (), seed: int = 0) -> Tree:
    """rows: (private slots, new tokens); spans: (length, first row, end row), in path order; slots scattered."""
    count = sum(map(sum, rows)) + sum(n for n, _, _ in spans) + 9
    order = iter(np.split(np.random.default_rng(seed).permutation(count), np.cumsum(
        [n for pair in rows for n in pair] + [n for n, _, _ in spans])))  # fmt: skip
    private, new = [], []
    for _ in rows:
        private.append(next(order))
        new.append(next(order))
    placed = [(next(order), first, end) for _, first, end in spans]
    reads = [
        np.concatenate([*(slots for slots, first, end in placed if first <= row < end), private[row]])
        for row in range(len(rows))
    ]
    return Tree([n for _, n in rows], new, reads, private, placed, count)


def two_rows() -> Tree:
    return make([(33, 1), (3, 5)], [(34, 0, 2)])


DEGENERATE = {
    "one token, nothing before it": make([(0, 1)]),
    "a prefill without a prefix": make([(0, 9)]),
    "a chunk's end": make([(31, 1)]),
    "one behind a chunk's end": make([(32, 1)]),
    "a new part that begins at a chunk's end": make([(32, 3)]),
    "an empty span": make([(2, 1), (3, 1)], [(0, 0, 2)]),
    "a span of no rows": make([(2, 1), (3, 1)], [(5, 1, 1)]),
    "a span of one row": make([(2, 1), (3, 2)], [(40, 1, 2)]),
    "rows with nothing of their own": make([(0, 1), (0, 1), (0, 2)], [(40, 0, 3)]),
    "a tile that ends inside a row": make([(3, 30), (0, 20), (5, 1)], [(33, 0, 3)]),
    "nested spans": make([(0, 1), (5, 1), (7, 4)], [(33, 0, 3), (8, 1, 3)]),
}


@pytest.mark.parametrize("name", DEGENERATE)
@pytest.mark.parametrize("window", [None, 7])
def test_degenerate_steps(name: str, window: int | None) -> None:
    check(DEGENERATE[name], (4, 2, 16), torch.float32, window)


@pytest.mark.parametrize(
    ("dtype", "window"), [*((dtype, None) for dtype in DTYPES), (torch.bfloat16, 40)], ids=str
)  # fmt: skip
def test_decode_and_extend(dtype: torch.dtype, window: int | None) -> None:
    check(make([(40, 1), (0, 1), (32, 1)], [(33, 0, 2)]), (6, 2, 64), dtype, window, kernel="decode_attention")
    check(make([(40, 4), (0, 6)], [(33, 0, 1)]), (6, 2, 64), dtype, window, kernel="extend_attention")


def test_decode_refuses_a_step_with_longer_rows() -> None:
    with pytest.raises(ValueError, match="one new token a row"):
        check(make([(4, 2)]), (2, 1, 16), torch.float32, kernel="decode_attention")


def test_more_ancestors_than_a_word_holds() -> None:
    parents = np.array([-1, *range(39), 3, 3, 41, -1])
    check(make([(5, 44), (0, 1)]), (2, 1, 16), torch.float32, parents=np.append(parents, -1))


def test_a_trie_of_options_equals_each_option_alone() -> None:
    """What a row's branches give does not depend on their siblings."""
    tree = make([(20, 5)])
    parents = np.array([-1, 0, 1, 0, 3])
    layout = with_parents(tree, parents)
    x = inputs(tree, 2, 1, 16, torch.float32, 0)
    whole = ops.tree_attention(x.q, x.k, x.v, x.keys, x.values, layout, 0.25)
    branch = [0, 3, 4]
    alone = Tree([3], [tree.new_slots[0][branch]], tree.reads, tree.private, [], tree.num_slots)
    own = ops.tree_attention(x.q[branch], x.k[branch], x.v[branch], x.keys, x.values, alone.layout(), 0.25)
    assert error(whole[branch], own) < 1e-6


def test_the_other_implementations_read_trees_alike() -> None:
    """Ancestor masks in plain torch, in torch's operators put together, and in the compiled library's fallback."""
    from radixrt import kernels

    tree = make([(20, 5), (9, 1), (3, 4)], [(8, 0, 2)])
    layout = with_parents(tree, np.array([-1, 0, 1, 0, -1, -1, -1, 0, 0, 2]))
    x = inputs(tree, 4, 2, 16, torch.float32, 0)
    for window in (None, 6):
        expected = truth(layout, x, 0.25, window)
        for each in (reference, kernels.select("cpu", native=False), kernels.select("cpu")):
            with torch.inference_mode():
                assert (
                    error(each.tree_attention(x.q, x.k, x.v, x.keys, x.values, layout, 0.25, window), expected) < 1e-5
                )


@pytest.mark.parametrize("parents", [[0, -1], [-1, 1], [-2, 0]])
def test_parents_come_before_their_children(parents: list[int]) -> None:
    with pytest.raises(ValueError, match="parent"):
        with_parents(make([(0, 2)]), np.array(parents))


def test_large_scores_do_not_overflow() -> None:
    tree = make([(70, 4)])
    x = inputs(tree, 4, 2, 16, torch.float32, 1)
    x.keys[:, tree.private[0][:30]] *= 300
    out = ops.tree_attention(x.q, x.k, x.v, x.keys, x.values, tree.layout(), 1.0)
    assert error(out, truth(tree.layout(), x, 1.0)) < 1e-5


def test_nan_in_one_row_stays_there() -> None:
    tree = make([(3, 1), (3, 1), (3, 1)], [(40, 0, 3)])
    x = inputs(tree, 2, 1, 16, torch.float32, 0)
    x.q[1] = float("nan")
    out = ops.tree_attention(x.q, x.k, x.v, x.keys, x.values, tree.layout(), 0.25)
    assert out[1].isnan().all() and not out[[0, 2]].isnan().any()


def test_a_shared_span_is_read_once_for_a_tile() -> None:
    """64 decode rows over 4,096 shared slots: 2 tiles of 128 lines read it, not 64 rows."""
    tree = make([(0, 1)] * 64, [(4096, 0, 64)])
    count = {}
    for sharing in (True, False):
        host = plans.make_plan(tree.layout(), group=4, kv_heads=8, window=None, sharing=sharing)
        count[sharing] = sum(int((items[:, 5] - items[:, 4]).sum()) for items in host.items.values())
    assert count == {True: 2 * 4096 + 64, False: 64 * 4097}


def test_one_long_row_is_split_for_all_multiprocessors() -> None:
    host = plans.make_plan(make([(8191, 1)]).layout(), group=4, kv_heads=8, window=None)
    (items,) = host.items.values()
    assert len(items) * 8 >= 2 * 132 and set(items[:, 1]) == {1}
    assert host.merge_starts.tolist() == [0, len(items)]


def test_a_chunk_that_is_given_makes_a_rows_result_independent_of_its_neighbours() -> None:
    tree = make([(70, 1), (40, 1), (3, 1)])
    alone = replace(
        tree, new_lens=[1], new_slots=tree.new_slots[:1], reads=tree.reads[:1], private=tree.private[:1]
    )  # fmt: skip
    x = inputs(tree, 4, 2, 16, torch.float32, 0)
    out = []
    for each, q in ((tree, x.q), (alone, x.q[:1])):
        plan = plans.make_plan(each.layout(), group=2, kv_heads=2, window=None, chunk=32).to(torch.device("cpu"))
        out.append(ops.attend(q, x.keys, x.values, plan, 0.25))
    assert torch.equal(out[0][:1], out[1])


def test_a_plan_in_static_buffers_is_refilled_for_every_step() -> None:
    """As a graph replays: the same tensors, programs for the largest step, smaller steps in between."""
    from radixrt.kernels.triton.graphs import PlanBuffers

    room = PlanBuffers(tokens=3, slots=200, items={16: 12}, parts=12, device=torch.device("cpu"))
    out = torch.empty(3, 4, 16)
    for tree in (make([(70, 1), (40, 1), (3, 1)]), make([(3, 1)]), make([(5, 1), (0, 1)], [(34, 0, 2)])):
        layout = tree.layout()
        x = inputs(tree, 4, 2, 16, torch.float32, 0)
        count = len(x.q)
        q = torch.nn.functional.pad(x.q, (0, 0, 0, 0, 0, 3 - count))
        room.load(plans.make_plan(layout, group=2, kv_heads=2, window=None))
        out.fill_(float("nan"))
        ops.attend(q, x.keys, x.values, room.plan, 0.25, out=out)
        assert error(out[:count], truth(layout, x, 0.25)) < 1e-5
        assert out[count:].isnan().all()
    large = plans.make_plan(make([(180, 1), (40, 1), (3, 1)]).layout(), group=2, kv_heads=2, window=None)
    assert not room.fits(large)
    with pytest.raises(ValueError, match="without the graph"):
        room.load(large)


def test_static_buffers_hold_the_ancestors_of_tokens_that_are_trees() -> None:
    """Wider masks than a step needs, and steps of another shape in the same room."""
    from radixrt.kernels.triton.graphs import PlanBuffers

    options = {"tokens": 8, "slots": 300, "items": {16: 12}, "parts": 24, "device": torch.device("cpu")}
    room, plain = PlanBuffers(**options, words=2), PlanBuffers(**options)
    for tree, parents in (
        (make([(20, 5), (9, 1)], [(34, 0, 2)]), np.array([-1, 0, 1, 0, 3, -1])),
        (make([(3, 4)]), np.array([-1, -1, 0, 1])),
    ):
        layout = with_parents(tree, parents)
        x = inputs(tree, 4, 2, 16, torch.float32, 0)
        count = len(x.q)
        made = plans.make_plan(layout, group=2, kv_heads=2, window=None)
        assert room.fits(made) and not plain.fits(made)
        room.load(made)
        q = torch.nn.functional.pad(x.q, (0, 0, 0, 0, 0, 8 - count))
        out = ops.attend(q, x.keys, x.values, room.plan, 0.25)
        assert error(out[:count], truth(layout, x, 0.25)) < 1e-5
    chain = plans.make_plan(make([(3, 4)]).layout(), group=2, kv_heads=2, window=None)
    assert plain.fits(chain) and not room.fits(chain)
