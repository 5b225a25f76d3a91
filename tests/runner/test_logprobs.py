from __future__ import annotations

import numpy as np
import pytest
import torch

from radixrt.runner import logprobs

from .test_sampler import make_logits


def truth(logits: torch.Tensor) -> np.ndarray:
    wide = logits.double().numpy()
    return (
        wide - np.log(np.exp(wide - wide.max(-1, keepdims=True)).sum(-1, keepdims=True)) - wide.max(-1, keepdims=True)
    )


def test_log_softmax_is_finite_and_not_positive():
    logits = make_logits(1, 4, 300)
    np.testing.assert_allclose(logprobs.log_softmax(logits).numpy(), truth(logits), atol=1e-5)
    logits[0, 3] = 1e6
    logits[1, 5] = -torch.inf
    values = logprobs.log_softmax(logits).numpy()
    assert np.isfinite(values).all()
    assert (values <= 0).all()
    assert values[1, 5] == logprobs.FLOOR


@pytest.mark.parametrize("count", [0, 1, 5, 20])
def test_top_is_ordered_and_ties_go_by_id(count):
    logits = make_logits(2, 5, 500, rounded=True)
    ids, values = logprobs.top(logits, logprobs.log_softmax(logits), count)
    expected = np.argsort(-logits.numpy(), axis=-1, kind="stable")[:, :count]
    assert ids.dtype == np.int32
    assert (ids == expected).all()
    np.testing.assert_allclose(values, np.take_along_axis(truth(logits), expected, -1), atol=1e-5)


@pytest.mark.parametrize("count", [1, logprobs.SLICE_TOKENS, 3 * logprobs.SLICE_TOKENS + 7])
def test_scores_are_computed_in_slices(count):
    rng = np.random.default_rng(3)
    head = torch.from_numpy(rng.normal(size=(300, 8)).astype(np.float32))
    hidden = torch.from_numpy(rng.normal(size=(count, 8)).astype(np.float32))
    targets = rng.integers(0, 300, count).astype(np.int32)
    widest = 0

    def logits_of(part: torch.Tensor) -> torch.Tensor:
        nonlocal widest
        widest = max(widest, len(part))
        return part @ head.T

    (answer,) = logprobs.scores(logits_of, hidden, [logprobs.Wanted(np.arange(count), targets.astype(np.int64), 4)])
    expected = truth(hidden @ head.T)
    np.testing.assert_allclose(answer.logprobs, expected[np.arange(count), targets], atol=1e-4)
    np.testing.assert_allclose(answer.top_logprobs, -np.sort(-expected, axis=-1)[:, :4], atol=1e-4)
    np.testing.assert_allclose(
        np.take_along_axis(expected, answer.top_ids.astype(int), -1), answer.top_logprobs, atol=1e-4
    )
    assert widest <= logprobs.SLICE_TOKENS


def test_scores_of_several_askers_are_computed_together_and_each_place_once():
    rng = np.random.default_rng(4)
    head = torch.from_numpy(rng.normal(size=(300, 8)).astype(np.float32))
    hidden = torch.from_numpy(rng.normal(size=(200, 8)).astype(np.float32))
    rows = 0

    def logits_of(part: torch.Tensor) -> torch.Tensor:
        nonlocal rows
        rows += len(part)
        return part @ head.T

    places = [[5, 5, 5, 6], [190, 3], [5], [7, 8, 9], *([i, i] for i in range(10, 150))]
    asked = [
        logprobs.Wanted(np.array(at), rng.integers(0, 300, len(at)), top)
        for at, top in zip(places, [0, 2, 0, 5, *[0] * 140], strict=True)
    ]
    answers = logprobs.scores(logits_of, hidden, asked)
    expected = truth(hidden @ head.T)
    for item, answer in zip(asked, answers, strict=True):
        np.testing.assert_allclose(answer.logprobs, expected[item.at, item.targets], atol=1e-4)
        assert answer.top_ids.shape == answer.top_logprobs.shape == (len(item.at), item.top)
        best = -np.sort(-expected[item.at], axis=-1)[:, : item.top]
        np.testing.assert_allclose(answer.top_logprobs, best, atol=1e-4)
    assert rows == 2 + 140 + 2 + 3  # the places without alternatives, then those with two and with five
