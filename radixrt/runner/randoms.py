"""One uniform number for a (seed, position), and nothing else: no state, no order, no neighbours.

The generator is SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, OOPSLA 2014) used as
a counter: the seed is mixed into a start, the position steps it by the golden gamma, and the result is mixed again.
Mixing the seed first keeps the streams of neighbouring seeds from being shifted copies of each other.
"""

from __future__ import annotations

import numpy as np

_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_M1 = np.uint64(0xBF58476D1CE4E5B9)
_M2 = np.uint64(0x94D049BB133111EB)


def uniforms(seeds: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """float64[n] in [0, 1), with 53 random bits. seeds: uint64[n]; positions: int64[n] >= 0."""
    with np.errstate(over="ignore"):
        start = _mix(seeds + _GAMMA)
        bits = _mix(start + (positions.astype(np.uint64) + np.uint64(1)) * _GAMMA)
    numbers: np.ndarray = (bits >> np.uint64(11)) * 2.0**-53
    return numbers


def seed64(seed: int) -> int:
    """Any integer seed as an unsigned 64-bit one."""
    return seed & 0xFFFFFFFFFFFFFFFF


def _mix(z: np.ndarray) -> np.ndarray:
    z = (z ^ (z >> np.uint64(30))) * _M1
    z = (z ^ (z >> np.uint64(27))) * _M2
    mixed: np.ndarray = z ^ (z >> np.uint64(31))
    return mixed
