"""From logits to tokens: temperature, top-k, top-p, min-p, one random number a row, inverse CDF.

Definition, for a row of temperature T > 0 (tests/runner compare with it, spelt out):

1. p = softmax(logits / T).
2. Rank tokens by logit, lower ids first among equals.
3. top_k: keep the first k.
4. top_p: of these, keep the shortest beginning whose mass is at least top_p times the mass of all of these.
5. min_p: drop what is less than min_p times as likely as the most likely token.
6. With u the row's random number, the token is the first *by id* at which the running sum of kept p exceeds u times
   its total.

Temperature is applied before all three cuts, as in vLLM and transformers. min_p comes last, as in transformers (vLLM
applies it before top_k); since its bound is relative to the most likely token, which no cut removes, the order only
matters for the mass that top_p counts. Nothing here looks at another row, and no step's result depends on how many rows
are computed at once: whether a row takes a fast path depends on that row alone, and both give the same token.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from radixrt.runner.ranking import CHUNK, chunked, first, order_keys, ordered_top

GREEDY_BELOW = 1e-5
"""Temperatures under this are greedy: dividing by them would overflow float32."""
WIDTH = 64
"""Candidates of a row that needs an order; where top_p needs more, that row is counted out by `_nucleus`."""


@dataclass(frozen=True)
class Draw:
    """How each of K rows draws; numpy arrays of length K."""

    temperature: np.ndarray  # float32
    top_k: np.ndarray  # int64; 0 or less: all
    top_p: np.ndarray  # float64
    min_p: np.ndarray  # float64
    uniforms: np.ndarray  # float64 in [0, 1)

    def __getitem__(self, rows: np.ndarray) -> Draw:
        return Draw(
            self.temperature[rows], self.top_k[rows], self.top_p[rows], self.min_p[rows], self.uniforms[rows]
        )  # fmt: skip

    @property
    def greedy(self) -> np.ndarray:
        """bool[K]: rows that take the first token in the order, whatever their random number."""
        rows: np.ndarray = (self.temperature < GREEDY_BELOW) | (self.top_k == 1)
        return rows


def sample(logits: torch.Tensor, draw: Draw) -> torch.Tensor:
    """int64[K]: a token for each row of logits float32[K, V]; -inf marks what is not allowed.

    -1 where a row has no token to choose from: all are -inf, or the largest is NaN or +inf.
    """
    chunks = chunked(logits)
    maxima = chunks.amax(-1)
    tokens = first(chunks, maxima)
    random = np.flatnonzero(~draw.greedy)
    if random.size == len(tokens):
        tokens = _sample_random(chunks, maxima, draw)
    elif random.size:
        rows = torch.from_numpy(random).to(logits.device)
        tokens[rows] = _sample_random(chunks[rows], maxima[rows], draw[random])
    return tokens.masked_fill_(~maxima.amax(-1).isfinite(), -1)


def _sample_random(chunks: torch.Tensor, maxima: torch.Tensor, draw: Draw) -> torch.Tensor:
    """`sample` for rows none of which is greedy."""
    device = chunks.device
    scaled = chunks.flatten(1) / torch.from_numpy(draw.temperature).to(device)[:, None]
    probs = torch.softmax(scaled, -1)
    cut = (draw.top_k > 0) | (draw.top_p < 1)
    if not cut.any():
        return _draw_uncut(probs, draw)
    tokens = torch.empty(len(probs), dtype=torch.int64, device=device)
    uncut = np.flatnonzero(~cut)
    if uncut.size:
        tokens[uncut] = _draw_uncut(probs[uncut], draw[uncut])
    # Rows that ask for a similar number of candidates go together.
    width = np.maximum(WIDTH, 2 ** np.ceil(np.log2(np.maximum(draw.top_k, 1))).astype(np.int64))
    for each in np.unique(width[cut]):
        rows = np.flatnonzero(cut & (width == each))
        whole = rows.size == len(probs)
        part = (chunks, maxima, probs) if whole else (chunks[rows], maxima[rows], probs[rows])
        tokens[rows] = _draw_cut(*part, draw[rows], int(each))
    return tokens


def _draw_uncut(probs: torch.Tensor, draw: Draw) -> torch.Tensor:
    """Rows without top_k and top_p: inverse CDF in two levels, sums of chunks first. probs: float32[n, V], padded."""
    if (draw.min_p > 0).any():
        floor = torch.from_numpy(draw.min_p).to(probs.device, torch.float32) * probs.amax(-1)
        probs = torch.where(probs >= floor[:, None], probs, 0.0)
    at = torch.arange(len(probs), device=probs.device)
    chunks = probs.view(len(probs), -1, CHUNK)
    sums = chunks.sum(-1).double()
    upto = sums.cumsum(-1)
    target = _target(upto[:, -1], draw)
    chunk = (upto <= target[:, None]).sum(-1).clamp_(max=chunks.shape[1] - 1)
    share = (target - (upto[at, chunk] - sums[at, chunk])) / sums[at, chunk]
    inside = chunks[at, chunk].double().cumsum(-1)
    target = _below(share.clamp_(min=0) * inside[:, -1], inside[:, -1])
    return chunk * CHUNK + (inside <= target[:, None]).sum(-1).clamp_(max=CHUNK - 1)


def _draw_cut(chunks: torch.Tensor, maxima: torch.Tensor, probs: torch.Tensor, draw: Draw, width: int) -> torch.Tensor:
    """Rows with top_k (at most `width`) or top_p, from their first `width` candidates where these suffice."""
    ids = ordered_top(chunks, maxima, width)
    candidates = probs.gather(1, ids)
    tokens = _draw_ranked(ids, candidates, draw)
    if ids.shape[1] == probs.shape[1]:
        return tokens
    mass = candidates.double().cumsum(-1)[:, -1].cpu().numpy()
    last, most = candidates[:, -1].cpu().numpy(), candidates[:, 0].cpu().numpy()
    short = (draw.top_k <= 0) & (mass < draw.top_p) & (last >= _floor(draw, most))
    for row in np.flatnonzero(short):
        one = draw[np.array([row])]
        ids_of_row = _nucleus(chunks[row].flatten(), probs[row], float(draw.top_p[row]))
        weights = probs[row][ids_of_row]
        weights = torch.where(weights >= float(_floor(one, most[[row]])[0]), weights.double(), 0.0)
        upto = weights.cumsum(-1)
        chosen = torch.searchsorted(upto, _target(upto[-1:], one), right=True)
        tokens[row] = ids_of_row[chosen.clamp_(max=len(ids_of_row) - 1)][0]
    return tokens


def _nucleus(logits: torch.Tensor, probs: torch.Tensor, top_p: float) -> torch.Tensor:
    """Ids of one row that top_p keeps, ascending, when they are too many to be ranked.

    Tokens are counted into buckets by the upper half of their order key; whole buckets are kept from the top until the
    next one would reach top_p, and only that one is sorted.
    """
    buckets = (order_keys(logits) >> 16).cpu().numpy()
    buckets -= buckets.min()
    weights = probs.double().cpu().numpy()
    mass = np.bincount(buckets, weights)[::-1].cumsum()
    crossing = min(int(np.searchsorted(mass, top_p)), len(mass) - 1)
    last = len(mass) - 1 - crossing  # the bucket in which the mass gets to top_p
    inside = np.flatnonzero(buckets == last)
    inside = inside[np.argsort(-logits.cpu().numpy()[inside], kind="stable")]
    before = (mass[crossing - 1] if crossing else 0.0) + weights[inside].cumsum() - weights[inside]
    keep = buckets > last
    keep[inside[before < top_p]] = True
    return torch.from_numpy(np.flatnonzero(keep)).to(probs.device)


def _draw_ranked(ids: torch.Tensor, probs: torch.Tensor, draw: Draw) -> torch.Tensor:
    """Cut ranked candidates (both [n, width], in order) by top_k, top_p and min_p, and draw from what is left."""
    device = probs.device
    weights = probs.double()
    mass = weights.cumsum(-1)
    before = torch.cat([torch.zeros_like(mass[:, :1]), mass[:, :-1]], dim=-1)
    width = ids.shape[1]
    k = np.where(draw.top_k > 0, np.minimum(draw.top_k, width), width)
    top_k = torch.from_numpy(k).to(device)[:, None]
    # Softmax already divides by the mass of all tokens: that of a row without top_k is 1.
    total = torch.where(torch.from_numpy(draw.top_k > 0).to(device)[:, None], mass.gather(1, top_k - 1), 1.0)
    keep = torch.arange(width, device=device) < top_k
    # A row without top_p keeps all, also where the sum before the last token rounds to the total.
    keep &= (before < torch.from_numpy(draw.top_p).to(device)[:, None] * total) | (
        torch.from_numpy(draw.top_p >= 1).to(device)[:, None]
    )
    keep &= probs >= torch.from_numpy(_floor(draw, probs[:, 0].cpu().numpy())).to(device)[:, None]
    ids, order = ids.sort(-1)
    upto = torch.where(keep, weights, 0.0).gather(1, order).cumsum(-1)
    chosen = (upto <= _target(upto[:, -1], draw)[:, None]).sum(-1).clamp_(max=width - 1)
    return ids.gather(1, chosen[:, None])[:, 0]


def _floor(draw: Draw, most: np.ndarray) -> np.ndarray:
    """float32[n]: what min_p lets stay, from the likelihood of the most likely token."""
    floor: np.ndarray = draw.min_p.astype(np.float32) * most
    return floor


def _target(total: torch.Tensor, draw: Draw) -> torch.Tensor:
    return _below(total * torch.from_numpy(draw.uniforms).to(total.device), total)


def _below(value: torch.Tensor, limit: torch.Tensor) -> torch.Tensor:
    """min(value, the number before limit), so that some running sum that ends in `limit` exceeds it."""
    return torch.minimum(value, torch.nextafter(limit, torch.zeros_like(limit)))
