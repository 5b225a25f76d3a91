"""The most likely token without logits, against the logits of the same product."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from radixrt.kernels.cpu.native.packed import NarrowLinear, quantize

OUTPUTS, INPUTS = 337, 64  # the last tile is not whole


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def head(bits: int, weight: torch.Tensor, bias: torch.Tensor | None = None) -> NarrowLinear:
    return NarrowLinear(weight.bfloat16() if bits == 16 else quantize(weight, bits), bias)


def random_masks(lines: int, seed: int) -> np.ndarray:
    """int32[lines, words]: one that allows all but a few, one that allows a handful, one a single output, and so on."""
    rng = np.random.default_rng(seed)
    share = np.array([0.95, 0.01, 0.0])[np.arange(lines) % 3]
    bits = rng.random((lines, -(-OUTPUTS // 32) * 32)) < share[:, None]
    bits[np.arange(lines), rng.integers(0, OUTPUTS, lines)] = True
    return np.packbits(bits, axis=1, bitorder="little").view(np.int32)


def best(logits: torch.Tensor, allowed: int, masks: np.ndarray | None, mask_of: np.ndarray | None) -> list[int]:
    logits = logits.clone()
    logits[:, allowed:] = -torch.inf
    if masks is not None and mask_of is not None:
        for row in np.flatnonzero(mask_of >= 0):
            bits = np.unpackbits(masks[mask_of[row]].view(np.uint8), bitorder="little")[:OUTPUTS].astype(bool)
            logits[row, : len(bits)][~torch.from_numpy(bits)] = -torch.inf
            logits[row, len(bits) :] = -torch.inf
    values = logits.numpy()
    return [int(line.argmax()) if np.isfinite(line.max()) else -1 for line in values]


@pytest.mark.parametrize("rows", [1, 3, 8, 21])
@pytest.mark.parametrize("bits", [4, 8, 16])
def test_it_is_the_first_of_the_largest_logits(target: str, bits: int, rows: int) -> None:
    for bias in (None, random(OUTPUTS, seed=2)):
        linear = head(bits, random(OUTPUTS, INPUTS), bias)
        for seed in range(3):
            x = random(rows, INPUTS, seed=10 + seed)
            for allowed in (OUTPUTS, 100, 3):
                assert linear.choose(x, allowed)[0].tolist() == best(linear(x), allowed, None, None)


@pytest.mark.parametrize("rows", [1, 5, 19])
@pytest.mark.parametrize("bits", [4, 16])
def test_masks(target: str, bits: int, rows: int) -> None:
    linear = head(bits, random(OUTPUTS, INPUTS))
    x = random(rows, INPUTS, seed=1)
    mask_of = np.where(np.arange(rows) % 4 == 3, -1, np.arange(rows))
    masks = random_masks(rows, seed=rows)
    assert linear.choose(x, OUTPUTS, mask_of, masks)[0].tolist() == best(linear(x), OUTPUTS, masks, mask_of)
    short = masks[:, :4]  # what lies beyond a mask is not allowed
    assert linear.choose(x, OUTPUTS, mask_of, short)[0].tolist() == best(linear(x), OUTPUTS, short, mask_of)


def test_equals_nothing_and_nan(target: str) -> None:
    weight = random(OUTPUTS, INPUTS)
    weight[7] = weight[40] = weight[200] = 3 * weight[0]  # in tiles of several threads
    linear = head(16, weight)
    x = torch.stack([weight[0], weight[0], -weight[0], torch.full((INPUTS,), torch.nan)])
    masks = np.zeros((1, 11), np.int32)
    mask_of = np.array([-1, -1, 0, -1])
    assert linear.choose(x, OUTPUTS, mask_of, masks)[0].tolist() == [7, 7, -1, -1]
    masks[0, [40 // 32, 200 // 32]] = [1 << 40 % 32, 1 << 200 % 32]
    assert linear.choose(x, OUTPUTS, np.array([0, -1, 0, 0]), masks)[0].tolist() == [40, 7, 40, -1]


@pytest.mark.parametrize("rows", [1, 5, 21])
@pytest.mark.parametrize("bits", [4, 8, 16])
def test_rows_that_need_their_logits_get_them(target: str, bits: int, rows: int) -> None:
    """The bits of the product of all rows; the other rows are chosen for as without them."""
    linear = head(bits, random(OUTPUTS, INPUTS), random(OUTPUTS, seed=2))
    x = random(rows, INPUTS, seed=1)
    logits = linear(x)
    for whole in (np.arange(rows), np.flatnonzero(np.arange(rows) % 3 != 1)[::-1].copy()):
        chosen, made = linear.choose(x, 100, whole=whole)
        expected = np.array(best(logits, 100, None, None))
        expected[whole] = -1
        assert chosen.tolist() == expected.tolist()
        assert torch.equal(made, logits[torch.from_numpy(whole)])


@pytest.mark.parametrize("rows", [1, 6, 19])
@pytest.mark.parametrize("bits", [4, 16])
def test_logits_leave_out_tiles_that_a_mask_forbids(target: str, bits: int, rows: int) -> None:
    linear = head(bits, random(OUTPUTS, INPUTS))
    x = random(rows, INPUTS, seed=1)
    mask_of = np.where(np.arange(rows) % 4 == 3, -1, np.arange(rows))
    masks = random_masks(rows, seed=rows)[:, :6]  # what lies beyond a mask is not allowed
    whole = np.flatnonzero(np.arange(rows) % 5 != 4)
    chosen, made = linear.choose(x, OUTPUTS, mask_of, masks, whole)
    expected = np.array(best(linear(x), OUTPUTS, masks, mask_of))
    expected[whole] = -1
    assert chosen.tolist() == expected.tolist()
    allowed = np.zeros((rows, OUTPUTS + 15), bool)
    allowed[:, : 6 * 32] = np.unpackbits(masks.view(np.uint8), axis=1, bitorder="little")
    allowed[mask_of < 0] = True
    tiles = allowed[:, : OUTPUTS // 16 * 16 + 16].reshape(rows, -1, 16).any(-1).repeat(16, axis=1)[:, :OUTPUTS]
    assert not tiles.all()
    assert torch.equal(made, linear(x).masked_fill(~torch.from_numpy(tiles), -torch.inf)[torch.from_numpy(whole)])
