from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from radixrt.runner.randoms import seed64, uniforms

MASK = (1 << 64) - 1


def mix(z: int) -> int:
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def slow(seed: int, position: int) -> float:
    start = mix((seed + 0x9E3779B97F4A7C15) & MASK)
    return (mix((start + (position + 1) * 0x9E3779B97F4A7C15) & MASK) >> 11) / 2**53


@given(st.integers(-(2**63), 2**64 - 1), st.integers(0, 2**31 - 1))
def test_equals_python_integers(seed, position):
    seeds = np.array([seed64(seed)], np.uint64)
    (number,) = uniforms(seeds, np.array([position]))
    assert number == slow(seed64(seed), position)
    assert 0 <= number < 1


def test_splitmix64_has_its_published_outputs():
    """First outputs of SplitMix64 from state 1234567, as listed with the reference implementation in C."""
    state, seen = 1234567, []
    for _ in range(3):
        state = (state + 0x9E3779B97F4A7C15) & MASK
        seen.append(mix(state))
    assert seen == [6457827717110365317, 3203168211198807973, 9817491932198370423]


def test_neighbouring_seeds_and_positions_are_uniform_and_unrelated():
    grid = uniforms(np.repeat(np.arange(300, dtype=np.uint64), 300), np.tile(np.arange(300), 300)).reshape(300, 300)
    counts = np.histogram(grid, bins=100, range=(0, 1))[0]
    assert ((counts - 900.0) ** 2 / 900).sum() < 99 + 4 * np.sqrt(2 * 99)
    for a, b in ((grid[1:], grid[:-1]), (grid[:, 1:], grid[:, :-1]), (grid[1:, 1:], grid[:-1, :-1])):
        assert abs(np.corrcoef(a.ravel(), b.ravel())[0, 1]) < 4 / np.sqrt(a.size)
    assert len(np.unique(grid)) == grid.size
