"""What it costs that blocks of a GGUF file are multiplied as groups of 32 integers (`models/dequantize.as_groups`).

    python benchmarks/blocks.py [MODEL.gguf] [--types Q6_K Q2_K] [--every 1] [--positions 1000]

The model's matrices are quantized to each type (by scales from the largest number; llama.cpp's own search finds better
ones). `of the type`: the mean Kullback-Leibler divergence, in nats, of the model with the blocks' numbers from the
model as it is; `of the groups`: that of the groups' numbers from the blocks'; all in float32. `type error` and
`groups error` are differences between the same numbers, RMS, as fractions of the RMS of what they differ from. Text and
windows are those of `quality.py`. A small model in Q2_K or Q3_K says nothing any more: `--every 10` quantizes one layer
in ten.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator, Sequence

import gguf
import torch
from quality import WINDOW, distributions, tokens_of

from radixrt.checkpoint import GgufTensor, open_checkpoint, resolve
from radixrt.kernels.cpu.native.packed import Groups
from radixrt.models import load_model
from radixrt.models.blocks import Decoder
from radixrt.models.dequantize import as_groups, dequantize
from radixrt.models.gguf_blocks import IQ4_VALUES


def halves(numbers: torch.Tensor) -> torch.Tensor:
    """float32[n] -> uint8[n, 2], the bytes of each as a float16."""
    return numbers.half().view(torch.uint8).view(-1, 2)


def multiples(scales: torch.Tensor, most: int) -> tuple[torch.Tensor, torch.Tensor]:
    """float32[n, k] -> one number for each n, as a float16 can hold it, and the integers up to `most` that it takes."""
    unit = (scales.gather(1, scales.abs().argmax(1, keepdim=True)) / most)[:, 0].half().float()
    integers = torch.where(unit[:, None] != 0, scales / unit[:, None], 0).round().clamp(-abs(most), abs(most))
    return unit, integers


def nearest(groups: torch.Tensor, steps: torch.Tensor, low: int, high: int) -> torch.Tensor:
    return torch.where(steps != 0, groups / steps, 0).round().clamp(low, high).to(torch.int16)


def extreme(groups: torch.Tensor) -> torch.Tensor:
    """Of each group the number that is furthest from 0, with its sign."""
    return groups.gather(-1, groups.abs().argmax(-1, keepdim=True))[..., 0]


def two_bits(q: torch.Tensor) -> torch.Tensor:
    """int16[n, 8, 32] below 4 -> int16[n, 64]: of four groups each in one byte."""
    return (q.view(-1, 2, 4, 32) << torch.tensor([0, 2, 4, 6], dtype=torch.int16)[:, None]).sum(2).flatten(1)


def q6_k(x: torch.Tensor) -> torch.Tensor:
    groups = x.view(-1, 16, 16)
    unit, scales = multiples(extreme(groups) / -32, 127)
    q = nearest(groups, (unit[:, None] * scales)[..., None], -32, 31).view(-1, 2, 4, 32) + 32
    low = (q[:, :, :2] & 15) | (q[:, :, 2:] & 15) << 4
    parts = [low.flatten(1), two_bits(q >> 4), scales.to(torch.int8).view(torch.uint8), halves(unit)]
    return torch.cat([part.to(torch.uint8) for part in parts], dim=1)


def q3_k(x: torch.Tensor) -> torch.Tensor:
    groups = x.view(-1, 16, 16)
    unit, scales = multiples(extreme(groups) / -4, -32)
    scales = scales.clamp(max=31)
    q = nearest(groups, (unit[:, None] * scales)[..., None], -4, 3).view(-1, 8, 32) + 4
    high = (q >> 2 << torch.arange(8, dtype=torch.int16)[:, None]).sum(1)
    six = (scales + 32).to(torch.int16)
    low = (six[:, :8] & 15) | (six[:, 8:] & 15) << 4
    upper = (six.view(-1, 4, 4) >> 4 << torch.tensor([0, 2, 4, 6], dtype=torch.int16)[:, None]).sum(1)
    parts = [high, two_bits(q & 3), low, upper, halves(unit)]
    return torch.cat([part.to(torch.uint8) for part in parts], dim=1)


def q2_k(x: torch.Tensor) -> torch.Tensor:
    groups = x.view(-1, 16, 16)
    low, high = groups.aminmax(dim=-1)
    low = low.clamp(max=0)
    unit, scales = multiples((high - low) / 3, 15)
    least, shifts = multiples(-low, 15)
    steps = (unit[:, None] * scales)[..., None]
    q = nearest(groups + (least[:, None] * shifts)[..., None], steps, 0, 3).view(-1, 8, 32)
    parts = [scales.int() | shifts.int() << 4, two_bits(q), halves(unit), halves(least)]
    return torch.cat([part.to(torch.uint8) for part in parts], dim=1)


def iq4_xs(x: torch.Tensor) -> torch.Tensor:
    groups = x.view(-1, 8, 32)
    unit, scales = multiples(extreme(groups) / -127, 31)
    steps = (unit[:, None] * scales)[..., None]
    places = torch.where(steps != 0, groups / steps, 0)
    codes = torch.bucketize(places, (IQ4_VALUES[1:] + IQ4_VALUES[:-1]) / 2)
    six = (scales + 32).int()
    low = (six[:, 0::2] & 15) | (six[:, 1::2] & 15) << 4
    high = (six >> 4).view(-1, 2, 4) << torch.tensor([0, 2, 4, 6])
    packed = codes[..., :16] | codes[..., 16:] << 4
    parts = [halves(unit), high.sum(2), low, packed.flatten(1)]
    return torch.cat([part.to(torch.uint8) for part in parts], dim=1)


ENCODERS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "Q6_K": q6_k, "Q3_K": q3_k, "Q2_K": q2_k, "IQ4_XS": iq4_xs,
}  # fmt: skip
"""float32[n, 256] -> uint8[n, bytes of a block]."""


def matrices(model: Decoder, every: int) -> Iterator[tuple[object, str]]:
    """What is multiplied in one layer of `every`, for 1 in the head, too: its holder, and the attribute's name."""
    for layer in model.layers[::every]:
        for linear, _ in layer.linears().values():
            yield linear, "weight"
    if every == 1:
        yield model, "head"


def through(kind: str, dense: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """What blocks of the type say of a matrix, and what their groups say. A block may reach over the end of a row."""
    blocks = ENCODERS[kind](dense.flatten().view(-1, 256))
    number = gguf.GGMLQuantizationType[kind]
    tensor = GgufTensor(
        name="", shape=(len(blocks), 256), ggml_type=int(number), type_name=kind, offset=0, nbytes=blocks.numel()
    )
    said = dequantize(blocks.numpy(), tensor).view(dense.shape)
    return said, Groups(*as_groups(blocks.numpy(), tensor)).dense().view(dense.shape)


def divergence(truth: list[torch.Tensor], found: list[torch.Tensor]) -> float:
    total = sum(float((p.exp() * (p - q)).sum()) for p, q in zip(truth, found, strict=True))
    return total / sum(map(len, truth))


def error(found: Sequence[torch.Tensor], truth: Sequence[torch.Tensor]) -> float:
    """RMS difference of the numbers, as a fraction of the RMS of the true ones."""
    wrong = sum(float((a - b).square().sum()) for a, b in zip(found, truth, strict=True))
    return math.sqrt(wrong / sum(float(matrix.square().sum()) for matrix in truth))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="smollm2-135m")
    parser.add_argument("--types", nargs="+", choices=ENCODERS, default=list(ENCODERS))
    parser.add_argument("--every", type=int, default=1, help="layers from one that is quantized to the next")
    parser.add_argument("--positions", type=int, default=1000)
    args = parser.parse_args()
    count = max(1, args.positions // WINDOW)
    ids = tokens_of(args.model, count * (WINDOW + 1))
    windows = [ids[first : first + WINDOW + 1] for first in range(0, len(ids), WINDOW + 1)]
    model = load_model(open_checkpoint(resolve(args.model)), dtype=torch.float32, weights="float32")
    dense = [getattr(holder, name) for holder, name in matrices(model, args.every)]
    if any(matrix.device.type == "meta" or matrix.dtype != torch.float32 for matrix in dense):
        raise SystemExit("the model is not dense: this needs float32 matrices")
    original = list(distributions(model, windows))
    print(f"{'type':8}{'of the type':>14}{'of the groups':>16}{'type error':>16}{'groups error':>16}")
    for kind in args.types:
        said, grouped = zip(*(through(kind, matrix) for matrix in dense), strict=True)
        results = []
        for version in (said, grouped):
            for (holder, name), matrix in zip(matrices(model, args.every), version, strict=True):
                setattr(holder, name, matrix)
            results.append(list(distributions(model, windows)))
        print(
            f"{kind:8}{divergence(original, results[0]):14.5f}{divergence(results[0], results[1]):16.7f}"
            f"{error(said, dense):16.5f}{error(grouped, said):16.5f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
