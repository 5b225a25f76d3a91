"""Pass one over the logits: what each block of the vocabulary holds, before and after what changes them.

Logits are never rewritten: bias and mask are applied wherever they are read.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def adjusted(raw, token, row, bias_starts, bias_ids, bias, bitmask, mask_row, words, vocabulary, MASK: tl.constexpr):
    """float32[BLOCK]: logits with the row's biases added, and -inf where its mask, or the vocabulary's end, forbids."""
    value = raw
    for at in range(tl.load(bias_starts + row), tl.load(bias_starts + row + 1)):
        value += tl.where(token == tl.load(bias_ids + at), tl.load(bias + at), 0.0)
    allowed = token < vocabulary
    if MASK:
        line = tl.load(mask_row + row)
        if line >= 0:
            word = token >> 5
            bits = tl.load(bitmask + line.to(tl.int64) * words + word, mask=word < words, other=0)
            allowed = allowed & (((bits >> (token & 31)) & 1) != 0)
    return tl.where(allowed, value, float("-inf"))


@triton.jit
def gumbel(seed, position, token):
    """Standard Gumbel noise float32[BLOCK], a function of (seed, position, token) alone (Philox: Salmon, SC 2011).

    -log(E) with E = -log(1 - v) exponential; for small v, where the largest noise comes from, by its series.
    """
    word, _, _, _ = tl.philox(seed, token.to(tl.uint32), position.to(tl.uint32), 0, 0)
    v = (word.to(tl.float32) + 0.5) * 2.3283064e-10
    v = tl.minimum(v, 0.99999994)
    small = v * (1 + v * (0.5 + v * (0.33333333 + v * 0.25)))
    return -tl.log(tl.where(v < 0.01, small, -tl.log(1 - v)))


@triton.jit
def scan(
    logits, stride, bias_starts, bias_ids, bias, bitmask, mask_row, words, temperature, seeds, positions,
    raw_max, raw_sum, most, mass, noisy, noisy_id, bad, V, vocabulary, count,
    MASK: tl.constexpr, GUMBEL: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """A program: block program_id(0) of row program_id(1). Each output is [K, count], a number a block:

    largest raw logit and sum of exp(raw - that); largest adjusted logit and sum of exp((adjusted - that) / T); with
    GUMBEL the largest adjusted / T + noise and its token; whether there is a NaN or +inf.
    """
    block = tl.program_id(0)
    row = tl.program_id(1)
    token = block * BLOCK + tl.arange(0, BLOCK)
    raw = tl.load(logits + row.to(tl.int64) * stride + token, mask=token < V, other=float("-inf")).to(tl.float32)
    place = row * count + block
    wrong = ((raw != raw) | (raw == float("inf"))) & (token < vocabulary)
    tl.store(bad + place, tl.max(wrong.to(tl.int32), 0))
    top = tl.max(raw, 0)
    tl.store(raw_max + place, top)
    tl.store(raw_sum + place, tl.sum(tl.exp(raw - tl.where(top == float("-inf"), 0.0, top)), 0))
    value = adjusted(raw, token, row, bias_starts, bias_ids, bias, bitmask, mask_row, words, vocabulary, MASK)
    heat = tl.load(temperature + row)
    top = tl.max(value, 0)
    tl.store(most + place, top)
    tl.store(mass + place, tl.sum(tl.exp((value - tl.where(top == float("-inf"), 0.0, top)) / heat), 0))
    if GUMBEL:
        noise = value / heat + gumbel(tl.load(seeds + row), tl.load(positions + row), token)
        winner = tl.max(noise, 0)
        tl.store(noisy + place, winner)
        tl.store(noisy_id + place, tl.min(tl.where(noise == winner, token, 2147483647), 0))
