"""Tokens from logits: against the definition in reference.py, against transformers, and against frequencies."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from radixrt.runner.randoms import uniforms
from radixrt.runner.sampler import Draw, sample

from .reference import kept_probabilities, near_an_edge, token_at

V = 2_000


def make_logits(seed: int, rows: int, width: int = V, scale: float = 3.0, rounded: bool = False) -> torch.Tensor:
    logits = torch.from_numpy(np.random.default_rng(seed).normal(0, scale, (rows, width)).astype(np.float32))
    return logits.bfloat16().float() if rounded else logits  # rounded: many equal values, as a bf16 head gives


def make_draw(rows: int, *, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, uniform=0.5) -> Draw:
    def spread(value, dtype):
        return np.broadcast_to(np.asarray(value, dtype), (rows,)).copy()

    return Draw(
        temperature=spread(temperature, np.float32),
        top_k=spread(top_k, np.int64),
        top_p=spread(top_p, np.float64),
        min_p=spread(min_p, np.float64),
        uniforms=spread(uniform, np.float64),
    )


def test_greedy_takes_the_lowest_id_of_equals():
    logits = torch.zeros(3, V)
    logits[1, [700, 5, 1999]] = 2.0
    logits[2, [1999, 1500]] = 1.0
    assert sample(logits, make_draw(3, temperature=0.0)).tolist() == [0, 5, 1500]


def test_top_k_of_one_is_greedy_at_any_temperature():
    logits = make_logits(1, 20, rounded=True)
    expected = [int(np.argmax(row)) for row in logits.numpy()]
    assert sample(logits, make_draw(20, temperature=5.0, top_k=1, uniform=0.999)).tolist() == expected


@pytest.mark.parametrize("width", [1, 2, 63, 64, 65, 1000, 49_152])
def test_any_vocabulary_width(width):
    logits = make_logits(2, 4, width)
    greedy = sample(logits, make_draw(4, temperature=0.0)).tolist()
    assert greedy == logits.numpy().argmax(-1).tolist()
    draw = make_draw(4, temperature=[1, 1, 2, 2], top_k=[0, 7, 0, 0], top_p=[1, 1, 0.9, 1], uniform=0.7)
    for row, token in enumerate(sample(logits, draw).tolist()):
        chances = kept_probabilities(
            logits[row].numpy(), draw.temperature[row], int(draw.top_k[row]), float(draw.top_p[row])
        )
        assert near_an_edge(chances, 0.7) or token == token_at(chances, 0.7)


@settings(max_examples=300, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    temperature=st.floats(0.1, 8.0),
    top_k=st.one_of(st.just(0), st.integers(1, 200), st.integers(1, V + 5)),
    top_p=st.one_of(st.just(1.0), st.floats(0.01, 0.999)),
    min_p=st.one_of(st.just(0.0), st.floats(0.001, 1.0)),
    scale=st.sampled_from([0.05, 1.0, 3.0, 10.0]),
    rounded=st.booleans(),
)
def test_equals_the_definition(seed, temperature, top_k, top_p, min_p, scale, rounded):
    logits = make_logits(seed, 1, scale=scale, rounded=rounded)
    uniform = np.random.default_rng(seed + 1).random()
    draw = make_draw(1, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, uniform=uniform)
    token = sample(logits, draw).item()
    # Where the sum at the cut is top_p itself within rounding, either answer is right.
    possible = set()
    for nudge in (-1e-5, 0.0, 1e-5):
        p = min(1.0, top_p * (1 + nudge)) if top_p < 1 else 1.0
        for floor in (min_p, min_p * (1 - 1e-6)):
            chances = kept_probabilities(logits[0].numpy(), temperature, top_k, p, floor)
            if near_an_edge(chances, uniform):
                return
            possible.add(token_at(chances, uniform))
    assert token in possible


def test_a_wide_nucleus_is_exact():
    """top_p that needs far more than the first candidates: the slow path must agree with the definition."""
    logits = make_logits(3, 40, scale=0.3)
    u = np.linspace(0.01, 0.99, 40)
    tokens = sample(logits, make_draw(40, top_p=0.9, uniform=u)).tolist()
    checked = 0
    for row, token in enumerate(tokens):
        chances = kept_probabilities(logits[row].numpy(), 1.0, 0, 0.9)
        assert (chances > 0).sum() > 1000
        if not near_an_edge(chances, u[row]):
            assert token == token_at(chances, u[row])
            checked += 1
    assert checked > 30


def test_ties_at_the_cut_go_by_id():
    logits = torch.zeros(1, V)
    seen = {
        sample(logits, make_draw(1, top_k=100, uniform=u)).item() for u in np.linspace(0, 0.9999, 400)
    }  # fmt: skip
    assert seen == set(range(100))
    seen = {sample(logits, make_draw(1, top_p=0.1, uniform=u)).item() for u in np.linspace(0, 0.9999, 800)}
    assert max(seen) == 199
    assert len(seen) == 200


@pytest.mark.parametrize("uniform", [0.0, 1 - 2**-53])
@pytest.mark.parametrize("cut", [{}, {"top_k": 5}, {"top_p": 0.5}, {"min_p": 0.3}])
def test_the_ends_of_the_unit_interval_give_allowed_tokens(uniform, cut):
    logits = make_logits(4, 8)
    logits[:, :100] = -torch.inf
    logits[:, -100:] = -torch.inf
    for row, token in enumerate(sample(logits, make_draw(8, uniform=uniform, **cut)).tolist()):
        assert kept_probabilities(logits[row].numpy(), 1.0, **cut)[token] > 0


@pytest.mark.parametrize("cut", [{}, {"top_k": 3}, {"top_p": 0.9}, {"min_p": 0.1}, {"temperature": 0.0}])
def test_a_row_without_tokens_fails_alone(cut):
    logits = make_logits(5, 5)
    expected = sample(logits[[1, 3]], make_draw(2, **cut)).tolist()
    logits[0] = -torch.inf
    logits[2, 17] = torch.nan
    logits[4, 17] = torch.inf
    tokens = sample(logits, make_draw(5, **cut)).tolist()
    assert tokens == [-1, expected[0], -1, expected[1], -1]


@pytest.mark.parametrize("cut", [{}, {"top_k": 50}, {"top_p": 0.9}, {"temperature": 0.0}])
def test_a_single_allowed_token_is_taken(cut):
    logits = torch.full((1, V), -torch.inf)
    logits[0, 1234] = -50.0
    assert sample(logits, make_draw(1, **cut)).tolist() == [1234]


def test_a_row_does_not_depend_on_its_neighbours():
    """Bit for bit the same, alone, in any company, and in any order."""
    rng = np.random.default_rng(6)
    rows = 48
    logits = make_logits(7, rows, rounded=True)
    logits[:16] *= 0.1  # flat: top_p needs the slow path
    draw = make_draw(
        rows,
        temperature=rng.choice([0.0, 0.3, 1.0, 2.5], rows),
        top_k=rng.choice([0, 1, 5, 64, 65, 500], rows),
        top_p=rng.choice([0.3, 0.95, 1.0], rows),
        min_p=rng.choice([0.0, 0.02], rows),
        uniform=rng.random(rows),
    )
    together = sample(logits, draw).numpy()
    alone = np.array([sample(logits[[i]], draw[np.array([i])]).item() for i in range(rows)])
    assert (together == alone).all()
    order = rng.permutation(rows)
    assert (sample(logits[order], draw[order]).numpy() == together[order]).all()


@pytest.mark.parametrize(
    ("cut", "width"),
    [({}, 50), ({"temperature": 2.0}, 500), ({"top_k": 10}, 500), ({"top_p": 0.8}, 500), ({"min_p": 0.05}, 500)],
)
def test_frequencies_follow_the_definition(cut, width):
    """Chi-square over 20,000 draws of one row, with the generator that the runner uses. Fixed seeds: no chance."""
    draws = 20_000
    logits = make_logits(8, 1, width, scale=1.5)
    chances = kept_probabilities(logits[0].numpy(), **({"temperature": 1.0} | cut))
    u = uniforms(np.full(draws, 42, np.uint64), np.arange(draws))
    tokens = np.concatenate(
        [sample(logits.expand(1000, -1).contiguous(), make_draw(1000, uniform=part, **cut)).numpy()
         for part in u.reshape(-1, 1000)]
    )  # fmt: skip
    seen = np.bincount(tokens, minlength=width)
    assert (seen[chances == 0] == 0).all()
    expected = chances * draws
    big = expected >= 5
    observed = np.append(seen[big], seen[~big].sum())
    wanted = np.append(expected[big], expected[~big].sum())
    observed, wanted = observed[wanted > 0], wanted[wanted > 0]
    statistic = ((observed - wanted) ** 2 / wanted).sum()
    freedom = len(wanted) - 1
    assert freedom >= 5
    assert statistic < freedom + 4 * np.sqrt(2 * freedom)


@pytest.mark.parametrize("seed", range(6))
def test_cuts_keep_what_transformers_keeps(seed):
    """transformers' warpers, in its own order: temperature, top_k, top_p, min_p. Its masks against ours, by drawing."""
    from transformers.generation.logits_process import (
        MinPLogitsWarper,
        TemperatureLogitsWarper,
        TopKLogitsWarper,
        TopPLogitsWarper,
    )

    width = 300
    logits = make_logits(seed, 1, width, scale=2.0)
    temperature, top_k, top_p, min_p = 0.8 + seed / 5, 40, 0.85, 0.03
    scores = logits.clone()
    for warper in (
        TemperatureLogitsWarper(temperature), TopKLogitsWarper(top_k), TopPLogitsWarper(top_p), MinPLogitsWarper(min_p),
    ):  # fmt: skip
        scores = warper(None, scores)
    theirs = torch.softmax(scores, -1)[0].double().numpy()
    u = (np.arange(5000) + 0.5) / 5000
    draw = make_draw(5000, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, uniform=u)
    seen = np.bincount(sample(logits.expand(5000, -1).contiguous(), draw).numpy(), minlength=width)
    assert set(np.flatnonzero(seen)) == set(np.flatnonzero(theirs))
    assert np.abs(seen / 5000 - theirs).max() < 1 / 2500
