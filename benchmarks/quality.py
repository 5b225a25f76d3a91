"""What each form of the weights and each type of the KV pool costs in quality, against the same weights in float32.

    python benchmarks/quality.py [MODEL] [--weights auto int8 int4 bf16 float32] [--kv float32 bfloat16 float16 int8]
        [--dtype auto] [--positions 1000]

The text is this repository's LICENSE and README, in windows of 250 predicted tokens, each one step that reads keys and
values from the pool. For each pair: perplexity, the mean Kullback-Leibler divergence from the distribution of dense
float32 weights over a float32 pool in nats, how often the most likely token is the same. Activations are of `--dtype`;
under dense float32 weights they are float32. RADIXRT_CPU names the instruction set.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from pathlib import Path

import torch
from step import step

from radixrt.checkpoint import open_checkpoint, resolve
from radixrt.kernels import instruction_sets
from radixrt.models import CausalLM, load_model
from radixrt.runner.pool import PoolShape, allocate_pool
from radixrt.runner.precision import KV_TYPES, choose_dtype

WINDOW = 250
LINES = 32
"""Of logits at a time, as a step of a server has them."""


def tokens_of(model: str, count: int) -> list[int]:
    """`count` tokens of English text."""
    root = Path(__file__).parents[1]
    text = "\n".join((root / name).read_text(encoding="utf-8") for name in ("LICENSE", "README.md"))
    ids = open_checkpoint(resolve(model)).vocabulary().encode(text)
    if len(ids) < count:
        raise SystemExit(f"the text has {len(ids)} tokens: ask for fewer --positions")
    return ids[:count]


def distributions(model: CausalLM, windows: list[list[int]], kv_type: torch.dtype) -> Iterator[torch.Tensor]:
    """For each window of T tokens its log-probabilities of what follows each but the last: float32[T - 1, V]."""
    for window in windows:
        layout = step(1, len(window), 0, 0)
        kv = allocate_pool(PoolShape.of(model.config, kv_type), 2048)
        slots, positions = torch.from_numpy(layout.slots), torch.from_numpy(layout.positions)
        with torch.inference_mode():
            hidden = model.forward(torch.tensor(window), positions, slots, kv, layout)[:-1]
            yield torch.cat([model.logits(part) for part in hidden.split(LINES)]).log_softmax(-1)


def main() -> None:
    forms = ["auto", "int8", "int4", "bf16"]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="smollm2-135m")
    parser.add_argument("--weights", nargs="+", choices=[*forms, "float32"], default=forms)
    parser.add_argument("--kv", nargs="+", choices=list(KV_TYPES), default=None, help="default: that of activations")
    parser.add_argument("--dtype", choices=["auto", "float32", "bfloat16"], default="auto")
    parser.add_argument("--positions", type=int, default=1000)
    args = parser.parse_args()
    count = max(1, args.positions // WINDOW)
    ids = tokens_of(args.model, count * (WINDOW + 1))
    windows = [ids[first : first + WINDOW + 1] for first in range(0, len(ids), WINDOW + 1)]
    checkpoint = open_checkpoint(resolve(args.model))
    dense = load_model(checkpoint, dtype=torch.float32, weights="float32")
    truth = list(distributions(dense, windows, torch.float32))
    dtype = choose_dtype(args.dtype)
    print(f"{instruction_sets.current().name}, activations {str(dtype).removeprefix('torch.')}")
    print(f"{'weights':10}{'KV':10}{'perplexity':>12}{'KL':>10}{'same token':>12}")
    report("float32", "float32", windows, truth, truth)
    for form in args.weights:
        model = dense if form == "float32" else load_model(checkpoint, dtype=dtype, weights=form)
        own = str(model.dtype).removeprefix("torch.")
        for kv in args.kv or [own]:
            report(form, kv, windows, list(distributions(model, windows, KV_TYPES[kv])), truth)


def report(form: str, kv: str, windows: list[list[int]], found: list[torch.Tensor], truth: list[torch.Tensor]) -> None:
    loss = divergence = same = 0.0
    for window, ours, theirs in zip(windows, found, truth, strict=True):
        loss -= float(ours.gather(1, torch.tensor(window[1:])[:, None]).sum())
        divergence += float((theirs.exp() * (theirs - ours)).sum())
        same += float((ours.argmax(-1) == theirs.argmax(-1)).sum())
    total = len(windows) * WINDOW
    print(
        f"{form:10}{kv:10}{math.exp(loss / total):12.2f}{divergence / total:10.4f}{100 * same / total:11.1f} %",
        flush=True,
    )


if __name__ == "__main__":
    main()
