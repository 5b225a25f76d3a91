"""What the sampler must do, spelt out one row at a time in float64 with a full sort: the independent truth."""

from __future__ import annotations

import numpy as np


def kept_probabilities(
    logits: np.ndarray, temperature: float, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0
) -> np.ndarray:
    """float64[V] summing to 1: what each token's chance is. logits: float32[V]."""
    scaled = logits.astype(np.float32) / np.float32(temperature)
    weights = np.exp(scaled.astype(np.float64) - scaled.max())
    probs = weights / weights.sum()
    order = np.argsort(-logits, kind="stable")  # lower ids first among equals
    keep = np.ones(len(order), bool)
    if top_k > 0:
        keep[top_k:] = False
    ranked = np.where(keep, probs[order], 0.0)
    if top_p < 1:
        before = np.concatenate([[0.0], np.cumsum(ranked)[:-1]])
        keep &= before < top_p * ranked.sum()
    keep &= probs[order] >= min_p * probs.max()
    chances = np.zeros(len(order))
    chances[order[keep]] = probs[order[keep]]
    return chances / chances.sum()


def token_at(chances: np.ndarray, uniform: float) -> int:
    """First token by id at which the running sum exceeds `uniform`."""
    return int(np.searchsorted(np.cumsum(chances), uniform * chances.sum(), side="right"))


def near_an_edge(chances: np.ndarray, uniform: float, tolerance: float = 1e-5) -> bool:
    """Whether rounding may choose the neighbour."""
    return bool((np.abs(np.cumsum(chances) - uniform) < tolerance).any())
