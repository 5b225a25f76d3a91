"""Pass two: top_k, top_p and min_p as one threshold in the order of tokens, and the draw from what is above it.

The definition is that of `radixrt.runner.sampler`: tokens are ranked by logit, lower ids first among equals. A cut is
a pair: keep every token whose order key is above `key`, and of those that have that key the first `quota` by id. The
key is found by bisection over the bits of a float; a block whose largest logit is below the key in question is skipped.
"""

from __future__ import annotations

import triton
import triton.language as tl

from radixrt.kernels.triton.logits import adjusted, gumbel

_LOW = tl.constexpr(0x7FFFFFFF)
_ALL = tl.constexpr(2147483647)


@triton.jit
def order_key(x):
    """int32 that compare as the float32 do, -0.0 as 0.0."""
    bits = (x + 0.0).to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & _LOW)


@triton.jit
def above(
    low, logits, row, stride, bias_starts, bias_ids, bias, bitmask, mask_row, words, most, heat, top, total,
    V, vocabulary, count, MASK: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """(how many tokens have a key of `low` or more, float64 sum of their probabilities)."""
    tokens = low * 0
    mass = tl.sum(tl.zeros([1], tl.float64), 0)
    for block in range(0, count):
        if order_key(tl.load(most + row * count + block)) >= low:
            token = block * BLOCK + tl.arange(0, BLOCK)
            raw = tl.load(logits + row.to(tl.int64) * stride + token, mask=token < V, other=float("-inf"))
            value = adjusted(
                raw.to(tl.float32), token, row, bias_starts, bias_ids, bias, bitmask, mask_row, words, vocabulary, MASK
            )
            kept = (order_key(value) >= low) & (value > float("-inf"))
            tokens += tl.sum(kept.to(tl.int32), 0)
            mass += tl.sum(tl.where(kept, tl.exp((value - top) / heat) / total, 0.0).to(tl.float64), 0)
    return tokens, mass


@triton.jit
def draw(
    logits, stride, bias_starts, bias_ids, bias, bitmask, mask_row, words, temperature, top_ks, top_ps, min_ps,
    uniforms, seeds, positions, raw_max, raw_sum, most, mass, noisy, noisy_id, bad, tokens, chosen_logprob, lses,
    V, vocabulary, count, greedy_below,
    MASK: tl.constexpr, GUMBEL: tl.constexpr, BLOCK: tl.constexpr, COUNTS: tl.constexpr,
):  # fmt: skip
    """A program: one row. Its blocks' numbers from `scan` are combined in registers; COUNTS holds `count` of them."""
    row = tl.program_id(0)
    nth = tl.arange(0, COUNTS)
    in_count = nth < count
    at = row * count + nth
    # The model's own distribution.
    raw_tops = tl.load(raw_max + at, mask=in_count, other=float("-inf"))
    raw_top = tl.max(raw_tops, 0)
    lse = raw_top + tl.log(tl.sum(tl.load(raw_sum + at, mask=in_count, other=0.0) * tl.exp(raw_tops - raw_top), 0))
    tl.store(lses + row, lse)

    tops = tl.load(most + at, mask=in_count, other=float("-inf"))
    top = tl.max(tops, 0)
    heat = tl.load(temperature + row)
    top_k = tl.load(top_ks + row)
    top_p = tl.load(top_ps + row)
    min_p = tl.load(min_ps + row)
    wrong = tl.max(tl.load(bad + at, mask=in_count, other=0), 0)
    token_id = row * 0 - 1
    if (wrong == 0) & (top > float("-inf")):
        if (heat < greedy_below) | (top_k == 1):
            block = tl.min(tl.where(tops == top, nth, _ALL), 0)
            token = block * BLOCK + tl.arange(0, BLOCK)
            raw = tl.load(logits + row.to(tl.int64) * stride + token, mask=token < V, other=float("-inf"))
            value = adjusted(
                raw.to(tl.float32), token, row, bias_starts, bias_ids, bias, bitmask, mask_row, words, vocabulary, MASK
            )
            token_id = tl.min(tl.where(value == top, token, _ALL), 0)
        else:
            sums = tl.load(mass + at, mask=in_count, other=0.0)
            total = tl.sum(sums * tl.exp((tops - top) / heat), 0)
            uncut = (top_k <= 0) & (top_p >= 1) & (min_p <= 0)
            if GUMBEL and uncut:
                scored = tl.load(noisy + at, mask=in_count, other=float("-inf"))
                ids = tl.load(noisy_id + at, mask=in_count, other=_ALL)
                token_id = tl.min(tl.where(scored == tl.max(scored, 0), ids, _ALL), 0)
            else:
                # top_k: the largest key that k tokens reach. hi is never reached by k, lo always.
                key = order_key(top) * 0 - _LOW
                quota = row * 0 + _ALL
                whole = tl.sum(tl.full([1], 1.0, tl.float64), 0)
                if top_k > 0:
                    lo = key
                    hi = order_key(top) + 1
                    exact = top_k * 0
                    while (hi.to(tl.int64) - lo.to(tl.int64) > 1) & (exact == 0):
                        mid = ((lo.to(tl.int64) + hi.to(tl.int64)) >> 1).to(tl.int32)
                        n, kept = above(mid, logits, row, stride, bias_starts, bias_ids, bias, bitmask, mask_row, words,
                                        most, heat, top, total, V, vocabulary, count, MASK, BLOCK)  # fmt: skip
                        if n >= top_k:
                            lo = mid
                        else:
                            hi = mid
                        if n == top_k:
                            exact = exact + 1
                    key = lo
                    n, whole = above(key, logits, row, stride, bias_starts, bias_ids, bias, bitmask, mask_row, words,
                                     most, heat, top, total, V, vocabulary, count, MASK, BLOCK)  # fmt: skip
                    if n > top_k:  # several have this key, of which the first by id are kept
                        n, whole = above(key + 1, logits, row, stride, bias_starts, bias_ids, bias, bitmask, mask_row,
                                         words, most, heat, top, total, V, vocabulary, count, MASK, BLOCK)  # fmt: skip
                        quota = top_k - n
                        whole += (tl.exp((key_value(key) - top) / heat) / total).to(tl.float64) * quota
                if top_p < 1:
                    # top_p: the largest key whose tokens together reach the wanted mass.
                    wanted = top_p * whole
                    lo = key
                    hi = order_key(top) + 1
                    between = row * 0 + _ALL
                    n_lo = row * 0 + _ALL
                    n_hi = row * 0
                    while (hi.to(tl.int64) - lo.to(tl.int64) > 1) & (between > 1):
                        mid = ((lo.to(tl.int64) + hi.to(tl.int64)) >> 1).to(tl.int32)
                        n, kept = above(mid, logits, row, stride, bias_starts, bias_ids, bias, bitmask, mask_row, words,
                                        most, heat, top, total, V, vocabulary, count, MASK, BLOCK)  # fmt: skip
                        if kept >= wanted:
                            lo = mid
                            n_lo = n
                        else:
                            hi = mid
                            n_hi = n
                        between = n_lo - n_hi
                    if between > 1:  # hi is lo + 1: the tokens at lo are equals, and only so many of them are needed
                        n, before = above(hi, logits, row, stride, bias_starts, bias_ids, bias, bitmask, mask_row,
                                          words, most, heat, top, total, V, vocabulary, count, MASK, BLOCK)  # fmt: skip
                        each = (tl.exp((key_value(lo) - top) / heat) / total).to(tl.float64)
                        needed = tl.ceil((wanted - before) / tl.maximum(each, 1e-300))
                        needed = tl.minimum(tl.maximum(needed, 0.0), 2147483647.0).to(tl.int64).to(tl.int32)
                        if lo == key:
                            quota = tl.minimum(quota, needed)
                        else:
                            quota = needed
                    else:
                        if lo != key:
                            quota = row * 0 + _ALL
                    key = lo
                floor = min_p * (1.0 / total)
                # What is kept, block by block.
                ties = row * 0
                kept_sums = tl.zeros([COUNTS], tl.float64)
                ties_before = tl.zeros([COUNTS], tl.int32)
                best = heat * 0 + float("-inf")
                for block in range(0, count):
                    if order_key(tl.load(most + row * count + block)) >= key:
                        token = block * BLOCK + tl.arange(0, BLOCK)
                        raw = tl.load(logits + row.to(tl.int64) * stride + token, mask=token < V, other=float("-inf"))
                        value = adjusted(raw.to(tl.float32), token, row, bias_starts, bias_ids, bias, bitmask,
                                         mask_row, words, vocabulary, MASK)  # fmt: skip
                        weight, equal = kept_weight(value, key, quota, ties, heat, top, total, floor)
                        if GUMBEL:
                            noise = value / heat + gumbel(tl.load(seeds + row), tl.load(positions + row), token)
                            noise = tl.where(weight > 0, noise, float("-inf"))
                            winner = tl.max(noise, 0)
                            if winner > best:
                                best = winner
                                token_id = tl.min(tl.where(noise == winner, token, _ALL), 0)
                        kept_sums = tl.where(nth == block, tl.sum(weight, 0), kept_sums)
                        ties_before = tl.where(nth == block, ties, ties_before)
                        ties += equal
                if not GUMBEL:
                    upto = tl.cumsum(kept_sums, 0)
                    full = tl.max(upto, 0)
                    target = tl.load(uniforms + row) * full
                    # The first block whose running sum exceeds the target; where rounding leaves none, the last kept.
                    block = tl.min(tl.where((upto > target) & (kept_sums > 0), nth, _ALL), 0)
                    block = tl.minimum(block, tl.max(tl.where(kept_sums > 0, nth, 0), 0))
                    start = tl.sum(tl.where(nth == block, upto - kept_sums, 0.0), 0)
                    ties = tl.sum(tl.where(nth == block, ties_before, 0), 0)
                    token = block * BLOCK + tl.arange(0, BLOCK)
                    raw = tl.load(logits + row.to(tl.int64) * stride + token, mask=token < V, other=float("-inf"))
                    value = adjusted(raw.to(tl.float32), token, row, bias_starts, bias_ids, bias, bitmask, mask_row,
                                     words, vocabulary, MASK)  # fmt: skip
                    weight, equal = kept_weight(value, key, quota, ties, heat, top, total, floor)
                    hit = (start + tl.cumsum(weight, 0) > target) & (weight > 0)
                    last = tl.max(tl.where(weight > 0, token, 0), 0)
                    token_id = tl.minimum(tl.min(tl.where(hit, token, _ALL), 0), last)
    tl.store(tokens + row, token_id.to(tl.int64))
    own = tl.load(logits + row.to(tl.int64) * stride + tl.maximum(token_id, 0)).to(tl.float32) - lse
    tl.store(chosen_logprob + row, tl.where(token_id < 0, 0.0, tl.minimum(tl.maximum(own, -9999.0), 0.0)))


@triton.jit
def key_value(key):
    """The float32 that has this order key."""
    return (key ^ ((key >> 31) & _LOW)).to(tl.float32, bitcast=True)


@triton.jit
def kept_weight(value, key, quota, ties, heat, top, total, floor):
    """(float64[BLOCK] probabilities, 0 for what the cut drops; how many of the block have the key itself)."""
    keys = order_key(value)
    equal = (keys == key).to(tl.int32)
    rank = ties + tl.cumsum(equal, 0) - equal
    kept = (keys > key) | ((equal == 1) & (rank < quota))
    probability = tl.exp((value - top) / heat) / total
    kept = kept & (value > float("-inf")) & (probability >= floor)
    return tl.where(kept, probability, 0.0).to(tl.float64), tl.sum(equal, 0)


@triton.jit
def top_tokens(
    logits, stride, raw_max, lses, ids, logprobs, V, count, n: tl.constexpr, BLOCK: tl.constexpr, COUNTS: tl.constexpr
):
    """A program: the n most likely tokens of one row, lower ids first among equals: ids, logprobs [K, n].

    The best block is read again with what it has given taken out, n times.
    """
    row = tl.program_id(0)
    nth = tl.arange(0, COUNTS)
    tops = tl.load(raw_max + row * count + nth, mask=nth < count, other=float("-inf"))
    lse = tl.load(lses + row)
    last = tl.full([COUNTS], -1, tl.int32)  # of each block: the token it gave last, whose logit is `given`
    given = tl.full([COUNTS], float("inf"), tl.float32)
    for i in range(n):
        top = tl.max(tops, 0)
        block = tl.min(tl.where((tops == top) & (nth < count), nth, _ALL), 0)
        block = tl.minimum(block, count - 1)
        token = block * BLOCK + tl.arange(0, BLOCK)
        raw = tl.load(logits + row.to(tl.int64) * stride + token, mask=token < V, other=float("-inf")).to(tl.float32)
        block_given = tl.max(tl.where(nth == block, given, float("-inf")), 0)
        block_last = tl.max(tl.where(nth == block, last, -1), 0)
        fresh = ((raw < block_given) | ((raw == block_given) & (token > block_last))) & (token < V)
        best = tl.max(tl.where(fresh, raw, float("-inf")), 0)
        found = tl.min(tl.where(fresh & (raw == best), token, _ALL), 0)
        tl.store(ids + row * n + i, found)
        tl.store(logprobs + row * n + i, tl.minimum(tl.maximum(best - lse, -9999.0), 0.0))
        still = fresh & ((raw < best) | ((raw == best) & (token > found)))
        left = tl.max(tl.where(still, raw, float("-inf")), 0)
        given = tl.where(nth == block, best, given)
        last = tl.where(nth == block, found, last)
        tops = tl.where(nth == block, left, tops)
