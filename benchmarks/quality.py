"""What each form of the weights costs in quality, against the same weights in float32.

    python benchmarks/quality.py [MODEL] [--weights auto int8 int4 bf16] [--positions 1000]

The text is this repository's LICENSE and README, in windows of 250 predicted tokens. For each form: perplexity,
the mean Kullback-Leibler divergence from float32's distribution in nats, how often the most likely token is the same.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from pathlib import Path

import torch
from step import step

from radixrt import Engine
from radixrt.checkpoint import open_checkpoint, resolve
from radixrt.models import CausalLM, load_model

WINDOW = 250
LINES = 32
"""Of logits at a time, as a step of a server has them."""


def tokens_of(model: str, count: int) -> list[int]:
    """`count` tokens of English text."""
    root = Path(__file__).parents[1]
    text = "\n".join((root / name).read_text(encoding="utf-8") for name in ("LICENSE", "README.md"))
    with Engine(model, kv_tokens=4096) as engine:
        ids = engine.tokenize(text).ids
    if len(ids) < count:
        raise SystemExit(f"the text has {len(ids)} tokens: ask for fewer --positions")
    return ids[:count]


def distributions(model: CausalLM, windows: list[list[int]]) -> Iterator[torch.Tensor]:
    """For each window of T tokens its log-probabilities of what follows each but the last: float32[T - 1, V]."""
    config = model.config
    for window in windows:
        layout = step(1, len(window), 0, 0)
        kv = torch.zeros(config.num_layers, 2, config.num_kv_heads, 2048, config.head_dim, dtype=model.dtype)
        slots, positions = torch.from_numpy(layout.slots), torch.from_numpy(layout.positions)
        with torch.inference_mode():
            hidden = model.forward(torch.tensor(window), positions, slots, kv, layout)[:-1]
            yield torch.cat([model.logits(part) for part in hidden.split(LINES)]).log_softmax(-1)


def main() -> None:
    forms = ["auto", "int8", "int4", "bf16"]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="smollm2-135m")
    parser.add_argument("--weights", nargs="+", choices=forms, default=forms)
    parser.add_argument("--positions", type=int, default=1000)
    args = parser.parse_args()
    count = max(1, args.positions // WINDOW)
    ids = tokens_of(args.model, count * (WINDOW + 1))
    windows = [ids[first : first + WINDOW + 1] for first in range(0, len(ids), WINDOW + 1)]
    checkpoint = open_checkpoint(resolve(args.model))
    truth = list(distributions(load_model(checkpoint, dtype=torch.float32, weights="auto"), windows))
    print(f"{'weights':10}{'perplexity':>12}{'KL':>10}{'same token':>12}")
    for form in ["float32", *args.weights]:
        found = truth
        if form != "float32":
            found = list(distributions(load_model(checkpoint, dtype=torch.bfloat16, weights=form), windows))
        loss = divergence = same = 0.0
        for window, ours, theirs in zip(windows, found, truth, strict=True):
            loss -= float(ours.gather(1, torch.tensor(window[1:])[:, None]).sum())
            divergence += float((theirs.exp() * (theirs - ours)).sum())
            same += float((ours.argmax(-1) == theirs.argmax(-1)).sum())
        total = count * WINDOW
        print(
            f"{form:10}{math.exp(loss / total):12.2f}{divergence / total:10.4f}{100 * same / total:11.1f} %", flush=True
        )


if __name__ == "__main__":
    main()
