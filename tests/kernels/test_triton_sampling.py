"""Sampling in Triton: the runner's tokens, the same distribution by the Gumbel-max trick, log-probabilities."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from kernels_close import Guards, poisoned_outputs, random

from radixrt.kernels.triton import sampling
from radixrt.kernels.triton.sampling import Rules, sample
from radixrt.runner import adjust, logprobs
from radixrt.runner.randoms import uniforms
from radixrt.runner.sampler import Draw
from radixrt.runner.sampler import sample as plain_sample

pytestmark = pytest.mark.filterwarnings(
    "ignore:overflow encountered", "ignore:divide by zero", "ignore:invalid value", "ignore:All-NaN"
)
V = 200


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several blocks a row, the last of them ragged."""
    monkeypatch.setattr(sampling, "_BLOCK", 128)


def rules(rows: int, **changed: Any) -> Rules:
    """Temperature 1 and no cuts, but for what `changed` says: a number for all rows, or a list."""
    plain = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
    dtypes = {"temperature": torch.float32, "top_k": torch.int32, "top_p": torch.float64, "min_p": torch.float32,
              "uniforms": torch.float64}  # fmt: skip
    given = {}
    for name, value in (plain | changed).items():
        if isinstance(value, torch.Tensor):
            given[name] = value
        else:
            given[name] = torch.as_tensor(value, dtype=dtypes[name]).expand(rows).clone()
    return Rules(**given)


def plain_tokens(logits: torch.Tensor, given: Rules) -> torch.Tensor:
    assert given.uniforms is not None
    return plain_sample(
        logits.clone(),
        Draw(
            given.temperature.numpy(), given.top_k.numpy().astype(np.int64), given.top_p.numpy(),
            given.min_p.numpy().astype(np.float64), given.uniforms.numpy(),
        ),
    )  # fmt: skip


CUTS: list[dict[str, float]] = [
    {}, {"temperature": 0.0}, {"top_k": 1}, {"top_k": 5}, {"top_k": 1000}, {"top_p": 0.5}, {"top_p": 0.99},
    {"top_p": 1e-6}, {"min_p": 0.2}, {"min_p": 1.0}, {"top_k": 20, "top_p": 0.8, "min_p": 0.05},
    {"temperature": 0.3, "top_p": 0.9}, {"temperature": 5.0, "top_k": 70, "top_p": 0.95},
]  # fmt: skip


@pytest.mark.parametrize("tied", [False, True], ids=["distinct", "tied"])
def test_the_tokens_are_the_runners(tied: bool, long: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row for each set of cuts; rounded logits give many equals, at the cuts too."""
    both = CUTS if tied or long else CUTS[-5:]
    logits = random(len(both), V, seed=3) * 2
    if tied:
        logits = logits.round()
    lists = {name: [cut.get(name, default) for cut in both] for name, default in
             (("temperature", 1.0), ("top_k", 0), ("top_p", 1.0), ("min_p", 0.0))}  # fmt: skip
    numbers = uniforms(np.full(len(both), 7, np.uint64), np.arange(len(both)))
    given = rules(len(both), **lists, uniforms=torch.from_numpy(numbers))
    guards = Guards()
    kept = guards.put(logits)
    held = Rules(**{name: guards.put(value) for name, value in vars(given).items() if value is not None})
    with poisoned_outputs(monkeypatch, guards):
        out = sample(kept, held)
    guards.check()
    assert out.tokens.tolist() == plain_tokens(logits, given).tolist()
    assert torch.equal(kept, logits)
    own = logprobs.log_softmax(logits).gather(1, out.tokens[:, None])[:, 0]
    torch.testing.assert_close(out.logprobs, own, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("uniform", [0.0, 0.5, 1 - 2**-53])
def test_the_ends_of_the_line(uniform: float) -> None:
    logits = random(3, V, seed=5)
    given = rules(3, top_k=[0, 7, 0], top_p=[1.0, 1.0, 0.7], uniforms=uniform)
    assert sample(logits, given).tokens.tolist() == plain_tokens(logits, given).tolist()


def test_bias_mask_and_vocabulary() -> None:
    """What the runner does in three passes over the logits, in the one that samples."""
    rows, limit = 4, V - 7
    logits = random(rows, V, seed=9)
    generator = np.random.default_rng(0)
    allowed = generator.random((2, V)) < 0.2
    bits = np.packbits(np.pad(allowed, ((0, 0), (0, -V % 32))), axis=1, bitorder="little").view(np.int32)[:, :5]
    starts, ids = np.array([0, 2, 2, 3, 3]), np.array([5, 90, 11])
    bias = np.array([4.0, -3.0, 1e6], np.float32)
    given = rules(
        rows, top_k=[0, 9, 0, 0], top_p=[1, 1, 1, 0.8], uniforms=0.6,
        bitmask=torch.from_numpy(bits.copy()), mask_row=torch.tensor([-1, 0, -1, 1], dtype=torch.int32),
        bias_starts=torch.from_numpy(starts.astype(np.int32)), bias_ids=torch.from_numpy(ids.astype(np.int32)),
        bias=torch.from_numpy(bias),
    )  # fmt: skip
    out = sample(logits, given, vocabulary=limit)
    changed = logits.clone()
    adjust.add_bias(changed, np.repeat(np.arange(rows), np.diff(starts)), ids, bias)
    adjust.forbid_from(changed, limit)
    adjust.apply_bitmask(changed, np.array([1, 3]), bits)
    assert out.tokens.tolist() == plain_tokens(changed, given).tolist()
    assert out.tokens[2] == 11
    own = logprobs.log_softmax(logits).gather(1, out.tokens[:, None])[:, 0]
    torch.testing.assert_close(out.logprobs, own, rtol=1e-5, atol=1e-5)


def test_rows_with_nothing_to_choose_from_give_none_and_harm_nobody() -> None:
    logits = random(5, V)
    logits[0] = -torch.inf
    logits[1, 3], logits[2, 3] = float("nan"), float("inf")
    none = torch.zeros(1, -(-V // 32), dtype=torch.int32)
    given = rules(5, uniforms=0.3, bitmask=none, mask_row=torch.tensor([-1, -1, -1, 0, -1], dtype=torch.int32))
    for each in (given, rules(5, temperature=0.0, uniforms=0.3, bitmask=none, mask_row=given.mask_row)):
        tokens = sample(logits, each).tokens
        assert tokens[:4].tolist() == [-1] * 4 and tokens[4] >= 0


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_precision_logits(dtype: torch.dtype) -> None:
    logits = random(3, V, dtype=dtype)
    given = rules(3, top_k=[0, 4, 0], temperature=[1, 1, 0], uniforms=0.4)
    assert sample(logits, given).tokens.tolist() == plain_tokens(logits.float(), given).tolist()


@pytest.mark.parametrize("count", [1, 8])
def test_top_logprobs(count: int) -> None:
    """Ties, and more than one of the most likely in one block."""
    logits = (random(3, V, seed=1) * 2).round()
    logits[0, 10:20] = 9.0
    out = sample(logits, rules(3, uniforms=0.5), top=count)
    ids, values = logprobs.top(logits, logprobs.log_softmax(logits), count)
    assert out.top_ids.tolist() == ids.tolist()
    torch.testing.assert_close(out.top_logprobs, torch.from_numpy(values), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(out.lse, logits.logsumexp(-1), rtol=1e-5, atol=1e-5)


def test_no_rows_and_no_numbers() -> None:
    assert sample(torch.zeros(0, V), rules(0, uniforms=0.0), top=3).top_ids.shape == (0, 3)
    with pytest.raises(ValueError, match="uniforms"):
        sample(torch.zeros(1, V), rules(1))


def gumbel_tokens(logits: torch.Tensor, count: int, **cuts: Any) -> torch.Tensor:
    given = rules(count, seeds=torch.full((count,), 11), positions=torch.arange(count), **cuts)
    return sample(logits.expand(count, -1).contiguous(), given).tokens


@pytest.mark.parametrize("cuts", [{}, {"top_k": 4, "top_p": 0.9}, {"min_p": 0.15, "temperature": 1.5}], ids=str)
def test_gumbel_draws_from_the_same_distribution(cuts: dict[str, float], long: bool) -> None:
    """A chi-squared statistic over what is kept, and nothing else is drawn."""
    draws = 1000 if long else 24 if "top_k" in cuts else 50
    logits = random(1, 12, seed=2) * 1.5
    tokens = gumbel_tokens(logits, draws, **cuts)
    p = torch.softmax(logits[0].double() / cuts.get("temperature", 1.0), -1)
    order = p.argsort(descending=True)
    before = p[order].cumsum(0) - p[order]
    kept = order[: int(cuts.get("top_k", 12))]
    before = before[: len(kept)]
    kept = kept[before < cuts.get("top_p", 1.1) * p[kept].sum()]
    kept = kept[p[kept] >= cuts.get("min_p", 0.0) * p.max()]
    expected = p[kept] / p[kept].sum() * draws
    found = torch.bincount(tokens, minlength=12)[kept].double()
    assert int(found.sum()) == draws
    # 99.99 % of the distribution with n - 1 degrees of freedom lies below this (Wilson and Hilferty).
    n = len(kept) - 1
    assert float(((found - expected) ** 2 / expected).sum()) < n * (1 - 2 / (9 * n) + 3.72 * (2 / (9 * n)) ** 0.5) ** 3


def test_gumbel_depends_on_seed_and_position_alone() -> None:
    logits = random(1, V, seed=2)
    many = gumbel_tokens(logits, 8)
    assert len(set(many.tolist())) > 2
    given = rules(1, seeds=torch.tensor([11]), positions=torch.tensor([5]))
    assert sample(logits, given).tokens[0] == many[5]
