"""Biases, penalties, bans and masks, each against a slow row-by-row reference or against transformers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from radixrt.runner.adjust import Penalized, add_bias, apply_bitmask, bounded_bias, forbid, forbid_from, penalize
from radixrt.runner.penalties import TokenCounts
from radixrt.runner.sampler import sample

from .test_sampler import make_draw, make_logits

V = 200


def penalized(row: int, counts: TokenCounts, repetition=1.0, presence=0.0, frequency=0.0) -> Penalized:
    n = len(counts.ids)
    full = lambda value: np.full(n, value, np.float32)  # noqa: E731
    return Penalized(
        np.full(n, row), counts.ids, counts.counts, full(repetition), full(presence), full(frequency)
    )  # fmt: skip


@settings(deadline=None)
@given(
    prompt=st.lists(st.integers(0, V - 1), max_size=40),
    output=st.lists(st.integers(0, V - 1), max_size=40),
    more=st.lists(st.integers(0, V - 1), max_size=400),
    repetition=st.floats(0.2, 5),
    presence=st.floats(-2, 2),
    frequency=st.floats(-2, 2),
)
def test_penalties_equal_a_slow_reference(prompt, output, more, repetition, presence, frequency):
    logits = make_logits(len(prompt), 3, V)
    expected = logits.numpy().copy()
    counts = TokenCounts(np.array(prompt, np.int64), np.array(output, np.int64))
    for token in more:
        counts.add(token)
    generated = output + more
    for token in set(prompt) | set(generated):
        value = expected[1, token]
        value = value / np.float32(repetition) if value > 0 else value * np.float32(repetition)
        value -= np.float32(frequency) * generated.count(token)
        value -= np.float32(presence) * (generated.count(token) > 0)
        expected[1, token] = value
    penalize(logits, penalized(1, counts, repetition, presence, frequency))
    np.testing.assert_allclose(logits.numpy(), expected, rtol=1e-5, atol=1e-5)
    assert (logits[[0, 2]].numpy() == expected[[0, 2]]).all()


def test_repetition_equals_transformers():
    from transformers.generation.logits_process import RepetitionPenaltyLogitsProcessor

    ids = torch.tensor([[3, 7, 7, 100, 3, 199]])
    logits = make_logits(1, 1, V)
    expected = RepetitionPenaltyLogitsProcessor(1.7)(ids, logits.clone())
    counts = TokenCounts(ids[0, :3].numpy(), ids[0, 3:].numpy())
    penalize(logits, penalized(0, counts, repetition=1.7))
    torch.testing.assert_close(logits, expected)


def test_counts_outgrow_their_first_room():
    counts = TokenCounts(np.arange(10), np.zeros(0, np.int64))
    for token in [*range(5000), *range(100)]:
        counts.add(token)
    found = dict(zip(counts.ids.tolist(), counts.counts.tolist(), strict=True))
    assert found == {token: 2.0 if token < 100 else 1.0 for token in range(5000)}


def test_bias_is_added_where_it_belongs():
    logits = make_logits(2, 3, V)
    expected = logits.clone()
    expected[0, 5] += 2.5
    expected[2, 5] -= 1.0
    expected[2, 9] += 100.0
    add_bias(
        logits, np.array([0, 2, 2]), np.array([5, 5, 9]), bounded_bias(np.array([2.5, -1.0, 100.0]))
    )  # fmt: skip
    torch.testing.assert_close(logits, expected)


def test_a_ban_holds_at_the_highest_temperature():
    logits = torch.zeros(1, 50)
    banned = np.arange(49)
    add_bias(logits, np.zeros(49, np.int64), banned, bounded_bias(np.full(49, -100.0)))
    tokens = {
        sample(logits.clone(), make_draw(1, temperature=100.0, uniform=u)).item() for u in np.linspace(0, 0.999, 50)
    }
    assert tokens == {49}


def test_a_ban_gives_way_to_a_mask_that_allows_nothing_else():
    logits = make_logits(3, 1, 64)
    add_bias(logits, np.zeros(1, np.int64), np.array([6]), bounded_bias(np.array([-100.0])))
    apply_bitmask(logits, np.array([0]), np.array([[1 << 6, 0]], np.int32))
    assert sample(logits, make_draw(1)).tolist() == [6]


@pytest.mark.parametrize("extreme", [1e300, -1e300, 3e38])
@pytest.mark.parametrize("temperature", [0.0, 1e-5, 1.0, 100.0])
def test_extreme_biases_break_nothing(extreme, temperature):
    logits = make_logits(4, 1, V)
    add_bias(logits, np.zeros(1, np.int64), np.array([6]), bounded_bias(np.array([extreme])))
    token = sample(logits, make_draw(1, temperature=temperature)).item()
    assert (token == 6) == (extreme > 0)
    assert token >= 0


def test_a_mask_beats_every_bias():
    logits = make_logits(5, 1, 64)
    add_bias(logits, np.zeros(1, np.int64), np.array([6]), bounded_bias(np.array([100.0])))
    apply_bitmask(logits, np.array([0]), np.array([[~(1 << 6), -1]], np.int64).astype(np.int32))
    for temperature in (0.0, 1.0, 100.0):
        assert sample(logits, make_draw(1, temperature=temperature)).item() != 6
    assert logits[0, 6] == -torch.inf


@pytest.mark.parametrize("width", [31, 32, 64, 100, 130])
@pytest.mark.parametrize("words", [1, 2, 3, 4, 6])
@pytest.mark.parametrize("rows", [[0, 1, 2], [1], [0, 2]])
def test_bitmask_equals_bit_by_bit(width, words, rows):
    rng = np.random.default_rng(width * words)
    mask = rng.integers(-(2**31), 2**31, (len(rows), words)).astype(np.int32)
    logits = make_logits(6, 3, width)
    expected = logits.numpy().copy()
    for line, row in enumerate(rows):
        for token in range(width):
            allowed = token < words * 32 and (int(mask[line, token // 32]) >> (token % 32)) & 1
            if not allowed:
                expected[row, token] = -np.inf
    apply_bitmask(logits, np.array(rows), mask)
    assert (logits.numpy() == expected).all()
    assert np.isneginf(expected).any()


def test_a_mask_that_arrived_over_the_wire_is_read_only():
    mask = np.frombuffer(np.array([[5, 0]], np.int32).tobytes(), np.int32).reshape(1, 2)
    logits = make_logits(7, 1, 64)
    apply_bitmask(logits, np.array([0]), mask)
    assert np.flatnonzero(np.isfinite(logits[0].numpy())).tolist() == [0, 2]


def test_bans_and_ids_beyond_the_vocabulary():
    logits = make_logits(8, 2, 64)
    forbid(logits, np.array([0, 0, 1]), np.array([3, 3, 4]))
    forbid_from(logits, 60)
    gone = np.isneginf(logits.numpy())
    assert [np.flatnonzero(line).tolist() for line in gone] == [[3, 60, 61, 62, 63], [4, 60, 61, 62, 63]]
    forbid_from(logits, 64)
    assert (np.isneginf(logits.numpy()) == gone).all()
