"""FlashInfer behind the same door: what it is asked for gives the attention of the definition."""

from __future__ import annotations

import importlib.util
import inspect
import sys
from collections.abc import Iterator
from types import ModuleType

import fake_flashinfer
import numpy as np
import pytest
import torch
from kernels_close import assert_near, random
from kernels_trees import Tree, inputs
from test_triton_attention import DEGENERATE, make, truth, with_parents

from radixrt.errors import StartupError
from radixrt.kernels import flashinfer as ops
from radixrt.kernels.flashinfer import attention
from radixrt.runner import backend
from radixrt.runner.backend import check_kernels, choose_kernels

REAL = importlib.util.find_spec("flashinfer")


@pytest.fixture(autouse=True)
def stand_in(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    made = fake_flashinfer.module()
    monkeypatch.setitem(sys.modules, "flashinfer", made)
    monkeypatch.setattr("radixrt.kernels.triton.plan.FOLD", 4)
    yield made
    attention._free.clear()
    attention._rooms.clear()


NESTED = make([(0, 1), (5, 1), (7, 4), (2, 1)], [(33, 0, 4), (8, 1, 4), (9, 1, 3), (6, 3, 4)])
STEPS: dict[str, Tree] = {
    **{name: tree for name, tree in DEGENERATE.items()},
    "spans at several levels": NESTED,
    "decode, nothing shared": make([(9, 1), (0, 1), (40, 1)]),
    "decode below a span": make([(9, 1), (0, 1), (40, 1)], [(20, 0, 2)]),
}


@pytest.mark.parametrize("window", [None, 7])
@pytest.mark.parametrize("name", STEPS)
def test_steps(name: str, window: int | None) -> None:
    tree = STEPS[name]
    for dtype, shape in ((torch.float16, (4, 2, 64)), (torch.bfloat16, (8, 2, 128))):
        layout, x = tree.layout(), inputs(tree, *shape, dtype, 0)
        out = ops.tree_attention(x.q, x.k, x.v, x.keys, x.values, layout, 0.1, window)
        # Each level's result is rounded before they are merged.
        assert_near(out, truth(layout, x, 0.1, window), 2)


@pytest.mark.parametrize("window", [None, 5])
def test_new_tokens_that_are_a_tree(window: int | None) -> None:
    tree = make([(20, 5), (9, 1), (3, 4)], [(8, 0, 2)])
    layout = with_parents(tree, np.array([-1, 0, 1, 0, -1, -1, -1, 0, 0, 2]))
    x = inputs(tree, 4, 2, 64, torch.float16, 0)
    out = ops.tree_attention(x.q, x.k, x.v, x.keys, x.values, layout, 0.1, window)
    assert_near(out, truth(layout, x, 0.1, window), 2)


def test_soft_cap() -> None:
    x = inputs(NESTED, 4, 2, 64, torch.float16, 0)
    layout = NESTED.layout()
    out = ops.tree_attention(x.q, x.k, x.v, x.keys, x.values, layout, 0.5, soft_cap=1.5)
    assert_near(out, truth(layout, x, 0.5, cap=1.5), 2)


def test_a_step_is_planned_once_and_its_wrappers_are_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[object] = []
    real = fake_flashinfer.BatchPrefillWithPagedKVCacheWrapper
    monkeypatch.setattr(
        sys.modules["flashinfer"], real.__name__, lambda *a, **k: made.append(real(*a, **k)) or made[-1]
    )
    x = inputs(NESTED, 4, 2, 64, torch.float16, 0)
    for step in range(3):
        layout = NESTED.layout()
        for _layer in range(2):
            ops.tree_attention(x.q, x.k, x.v, x.keys, x.values, layout, 0.1)
        # Rows' own, and three levels of spans that several rows share.
        assert len(made) == 4 and all(each.plans == step + 1 for each in made)
        del layout


def test_a_step_in_flight_keeps_its_wrappers() -> None:
    """The next one is planned before the first one has run all its layers."""
    first, second = NESTED.layout(), make([(9, 2)], []).layout()
    x = inputs(NESTED, 4, 2, 64, torch.float16, 0)
    before = ops.tree_attention(x.q, x.k, x.v, x.keys, x.values, first, 0.1)
    y = inputs(make([(9, 2)], []), 4, 2, 64, torch.float16, 1)
    ops.tree_attention(y.q, y.k, y.v, y.keys, y.values, second, 0.1)
    assert torch.equal(ops.tree_attention(x.q, x.k, x.v, x.keys, x.values, first, 0.1), before)


def test_the_door(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "find_spec", lambda name: object())
    assert choose_kernels("flashinfer", torch.device("cpu")) is ops
    x = random(2, 4, 64)
    assert torch.equal(ops.rms_norm(x, torch.ones(64), 1e-6), _triton().rms_norm(x, torch.ones(64), 1e-6))
    monkeypatch.setattr(backend, "find_spec", lambda name: None if name == "flashinfer" else object())
    with pytest.raises(StartupError, match="pip install flashinfer-python"):
        choose_kernels("flashinfer", torch.device("cpu"))
    monkeypatch.delenv("TRITON_INTERPRET")
    with pytest.raises(StartupError, match="FlashInfer's kernels need a GPU"):
        choose_kernels("flashinfer", torch.device("cpu"))


def _triton() -> ModuleType:
    from radixrt.kernels import triton

    return triton


@pytest.mark.parametrize(("width", "dtype"), [(80, torch.float16), (64, torch.float32)])
def test_models_it_has_no_kernel_for_are_refused(width: int, dtype: torch.dtype) -> None:
    class Config:
        head_dim = width

    class Model:
        config = Config()

    model = Model()
    model.dtype = dtype  # type: ignore[attr-defined]
    with pytest.raises(StartupError, match="--attention triton"):
        check_kernels(ops, model)  # type: ignore[arg-type]
    check_kernels(_triton(), model)  # type: ignore[arg-type]


@pytest.mark.skipif(REAL is None, reason="flashinfer is not installed")
def test_the_stand_in_has_the_arguments_of_the_real_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "flashinfer")
    import flashinfer

    for name, methods in (
        ("BatchPrefillWithPagedKVCacheWrapper", ("__init__", "plan", "run")),
        ("BatchDecodeWithPagedKVCacheWrapper", ("__init__", "_plan_impl", "run")),
        ("merge_state", ("",)),
    ):
        for method in methods:
            theirs, ours = getattr(flashinfer, name), getattr(fake_flashinfer, name)
            if method:
                theirs, ours = getattr(theirs, method), getattr(ours, method.replace("_plan_impl", "plan"))
            known = list(inspect.signature(theirs).parameters)
            mine = [each for each in inspect.signature(ours).parameters.values()]
            positional = [each.name for each in mine if each.kind is not inspect.Parameter.KEYWORD_ONLY]
            assert positional == known[: len(positional)]
            assert {each.name for each in mine} <= set(known)
