"""All implementations of tree attention against a float64 reference, on random trees."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kernels_trees import Tree, expected, inputs, trees

from radixrt import kernels
from radixrt.kernels import Kernels
from radixrt.kernels.cpu import native, pieces
from radixrt.kernels.kv_lines import to_lines

LONG_RUN = 24
"""Runs count as long from here in these tests, so that small pools hold some."""

# Inputs are standard normal: outputs are of size about 1 / sqrt(keys read). float32: the promise of 1e-5. bfloat16: two
# roundings (of the weights or of a partial result, and of the output), each at most 2^-9 of a value that may reach 4.
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 0.03}
POOLS = [None, torch.float32, torch.bfloat16, torch.float16, torch.int8]
"""Types of the pool; None: that of the queries."""
SHAPES = [(9, 3, 16), (4, 4, 8), (4, 1, 32)]


@pytest.fixture(autouse=True)
def _short_long_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces, "LONG_RUN", LONG_RUN)
    monkeypatch.setattr(pieces, "BUCKET_COST", 20)


def tolerance(dtype: torch.dtype, pool_dtype: torch.dtype, compiled: bool) -> float:
    """Of `dtype`; a compiled kernel also rounds queries and weights, for bfloat16 pools to that type (where the CPU
    multiplies it) and for int8 pools to 16-bit integers. What a pool's rounding costs is not in it."""
    rounded = {torch.bfloat16: TOLERANCE[torch.bfloat16], torch.int8: 2e-3}.get(pool_dtype, 0.0)
    return max(TOLERANCE[dtype], rounded) if compiled else TOLERANCE[dtype]


def check(
    ops: Kernels,
    tree: Tree,
    shape: tuple[int, int, int],
    dtype: torch.dtype,
    window: int | None,
    seed: int,
    pool_dtype: torch.dtype | None = None,
) -> None:
    pool_dtype = pool_dtype or dtype
    x = inputs(tree, *shape, dtype, seed, pool_dtype)
    scale = shape[2] ** -0.5
    truth = expected(tree, x, scale, window)
    with torch.inference_mode():
        out = ops.tree_attention(x.q, x.k, x.v, x.keys, x.values, tree.layout(), scale, window)
    assert out.dtype == dtype and out.shape == x.q.shape
    # NaN anywhere (a slot that nobody may read) fails this too.
    error = float((out.double() - truth).abs().max())
    assert error < tolerance(dtype, pool_dtype, ops is native)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    tree=trees(LONG_RUN),
    shape=st.sampled_from(SHAPES),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
    pool_dtype=st.sampled_from(POOLS),
    window=st.sampled_from([None, None, 1, 4, 40]),
    seed=st.integers(0, 2**31),
)
def test_matches_float64(
    plain: Kernels,
    tree: Tree,
    shape: tuple[int, int, int],
    dtype: torch.dtype,
    pool_dtype: torch.dtype | None,
    window: int | None,
    seed: int,
) -> None:
    check(plain, tree, shape, dtype, window, seed, pool_dtype)


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    tree=trees(70),  # above the 64 keys that it takes at a time
    shape=st.sampled_from([*SHAPES, (9, 3, 64), (2, 2, 128), (6, 2, 22), (8, 1, 66), (2, 1, 256)]),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
    pool_dtype=st.sampled_from(POOLS),
    window=st.sampled_from([None, None, 1, 4, 40]),
    seed=st.integers(0, 2**31),
)
def test_compiled_matches_float64(
    target: str,
    tree: Tree,
    shape: tuple[int, int, int],
    dtype: torch.dtype,
    pool_dtype: torch.dtype | None,
    window: int | None,
    seed: int,
) -> None:
    check(native, tree, shape, dtype, window, seed, pool_dtype)


def decode_rows(rows: int, private: int, shared: int) -> Tree:
    slots = np.random.default_rng(0).permutation(rows * (private + 1) + shared + 7)
    own = np.split(slots[: rows * (private + 1)], rows)
    span = slots[-shared:]
    return Tree(
        [1] * rows, [row[-1:] for row in own], [np.concatenate([span, row[:-1]]) for row in own],
        [row[:-1] for row in own], [(span, 0, rows)], len(slots),
    )  # fmt: skip


@pytest.mark.parametrize("pool_dtype", POOLS[1:], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("window", [None, 700])
@pytest.mark.parametrize(("rows", "private", "shared"), [(1, 900, 1), (5, 40, 1300), (40, 3, 130)])
def test_keys_are_split_among_threads(
    target: str,
    rows: int,
    private: int,
    shared: int,
    window: int | None,
    dtype: torch.dtype,
    pool_dtype: torch.dtype,
) -> None:
    """Long contexts of few rows: several tasks see a part of the keys each. Many rows: several blocks of queries."""
    check(native, decode_rows(rows, private, shared), (6, 2, 64), dtype, window, 3, pool_dtype)


@pytest.mark.parametrize("seed", range(3))
def test_an_int8_pool_costs_what_rounding_to_bytes_costs(seed: int) -> None:
    """Against attention over what was written: keys and values are off by at most half a unit of max|x| / 127 each."""
    tree = decode_rows(4, 90, 300)
    exact = inputs(tree, 6, 2, 64, torch.float32, seed)
    x = inputs(tree, 6, 2, 64, torch.float32, seed, torch.int8)
    out = native.tree_attention(x.q, x.k, x.v, x.keys, x.values, tree.layout(), 0.125)
    difference = (out.double() - expected(tree, exact, 0.125, None)).norm()
    assert float(difference / expected(tree, exact, 0.125, None).norm()) < 0.02


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_int8_keys_that_are_no_numbers_show(target: str, bad: float) -> None:
    """A key or a value with NaN or infinity makes NaN of what reads it, and of nothing else."""
    tree = decode_rows(3, 20, 70)
    x = inputs(tree, 4, 2, 16, torch.float32, 0)
    slot = int(tree.private[1][5])
    for pool in (x.keys, x.values):
        spoilt = pool.clone()
        spoilt[0, slot, 3] = bad
        pools = [to_lines(spoilt if one is pool else one, torch.int8) for one in (x.keys, x.values)]
        out = native.tree_attention(x.q, x.k, x.v, *pools, tree.layout(), 0.25)
        assert out[1, :2].isnan().all() and out[1, 2:].isfinite().all() and out[[0, 2]].isfinite().all()


def one_row(new: int, context: int, num_slots: int) -> Tree:
    slots = np.arange(context)
    return Tree([new], [np.arange(context, context + new)], [slots], [slots], [], num_slots)


@pytest.mark.parametrize("compiled", [False, True])
def test_float32_stays_exact_over_long_contexts(compiled: bool) -> None:
    tree = one_row(3, 3000, 3010)
    x = inputs(tree, 6, 2, 64, torch.float32, 0)
    out = kernels.select("cpu", native=compiled).tree_attention(x.q, x.k, x.v, x.keys, x.values, tree.layout(), 0.125)
    assert float((out.double() - expected(tree, x, 0.125, None)).abs().max()) < 1e-5


@pytest.mark.parametrize("compiled", [False, True])
def test_large_scores_do_not_overflow(compiled: bool) -> None:
    """Partial results whose log-sum-exps lie hundreds apart merge without inf or NaN."""
    tree = one_row(4, 70, 80)
    x = inputs(tree, 4, 2, 16, torch.float32, 1)
    x.keys[:, :30] *= 300
    out = kernels.select("cpu", native=compiled).tree_attention(x.q, x.k, x.v, x.keys, x.values, tree.layout(), 1.0)
    assert float((out.double() - expected(tree, x, 1.0, None)).abs().max()) < 1e-3


@pytest.mark.parametrize("window", [None, 5])
def test_a_layers_work_on_the_layout_is_done_once(window: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    from radixrt.kernels.cpu import attention

    calls = []
    monkeypatch.setattr(attention, "cut", lambda *args: calls.append(args) or pieces.cut(*args))
    tree = one_row(2, 9, 20)
    layout = tree.layout()
    for seed in range(3):
        x = inputs(tree, 4, 2, 16, torch.float32, seed)
        out = kernels.select("cpu", native=False).tree_attention(x.q, x.k, x.v, x.keys, x.values, layout, 0.25, window)
        assert float((out.double() - expected(tree, x, 0.25, window)).abs().max()) < 1e-5
    assert len(calls) == 1


def test_a_single_decode_row_over_one_run_is_one_slice() -> None:
    """No gather and no merge: the cost is that of plain attention."""
    cut = pieces.cut(one_row(1, 200, 300).layout(), pieces.Pool(3, 300, torch.float32), None)
    assert list(cut.own) == [pieces.Stack(0, 1, slice(0, 201))] and not cut.shared


def test_buckets_bound_padding() -> None:
    """Rows of 3 and of 20 slots do not share a batch; each token is in exactly one own piece."""
    lens = [3, 20, 3, 20, 4, 19]
    private, new_slots, at = [], [], 0
    for n in lens:
        private.append(np.arange(at, at + n - 1))
        new_slots.append(np.array([at + 70]))
        at += n + 1
    tree = Tree([1] * 6, new_slots, private, private, [], 200)
    own = pieces.cut(tree.layout(), pieces.Pool(2, 200, torch.float32), None).own
    assert all(isinstance(piece, pieces.Batch) for piece in own)
    padded = sum(len(piece.index) for piece in own if isinstance(piece, pieces.Batch)) // 2
    assert padded - sum(lens) <= 20 * len(own)
    tokens = np.concatenate([np.arange(6)[piece.tokens] for piece in own if isinstance(piece, pieces.Batch)])
    assert sorted(tokens.tolist()) == list(range(6))
