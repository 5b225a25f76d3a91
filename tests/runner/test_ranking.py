from __future__ import annotations

import numpy as np
import pytest
import torch

from radixrt.runner.ranking import chunked, first, ordered_top


@pytest.mark.parametrize("width", [5, 64, 130, 4096, 10_000])
@pytest.mark.parametrize("count", [1, 20, 64, 300])
def test_the_first_tokens_are_those_of_a_stable_sort(width, count):
    rng = np.random.default_rng(width + count)
    logits = rng.integers(-8, 8, (6, width)).astype(np.float32) / 2  # few values: ties everywhere
    logits[0] = rng.normal(size=width)
    logits[1, rng.integers(0, width, width // 2)] = -np.inf
    logits[2] = np.where(rng.random(width) < 0.5, 0.0, -0.0)
    chunks = chunked(torch.from_numpy(logits))
    maxima = chunks.amax(-1)
    expected = np.argsort(-logits, axis=-1, kind="stable")
    got = ordered_top(chunks, maxima, count).numpy()
    shown = min(count, width)
    assert (got[:, :shown] == expected[:, :shown]).all()
    assert (first(chunks, maxima).numpy() == expected[:, 0]).all()
