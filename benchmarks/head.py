"""What rows that need no logits spare a step of which others need theirs: sixteen decode rows of several kinds.

    OMP_NUM_THREADS=2 OMP_WAIT_POLICY=PASSIVE GOMP_SPINCOUNT=1000 python benchmarks/head.py [MODEL] [--rounds 10]

Each case is run with the model as it is, and with one that is not asked to choose (all lines through logits), in turns;
the tokens must be the same. Kinds of rows: `greedy`, `random` (temperature 1), `penalized` (greedy). Masks: `wide`
allows 95 % of the tokens, as inside a string; `narrow` eight of them, as where a schema has a brace or a key.
"""

from __future__ import annotations

import argparse
import statistics
from functools import partial

import numpy as np
import torch

from radixrt.checkpoint import open_checkpoint, resolve
from radixrt.messages import RowOpen, StepMasks, StepPlan
from radixrt.models import CausalLM, load_model
from radixrt.runner.step import Stepper

ROWS, OWN, STEPS = 16, 130, 8
CASES = {
    "15 greedy, 1 random": (["greedy"] * 15 + ["random"], [None] * 16),
    "15 greedy, 1 penalized, wide masks": (["greedy"] * 15 + ["penalized"], ["wide"] * 16),
    "8 greedy, 8 random, narrow masks": (["greedy", "random"] * 8, ["narrow"] * 16),
    "16 greedy, narrow and wide masks": (["greedy"] * 16, ["narrow", "wide"] * 8),
    "16 random, narrow and wide masks": (["random"] * 16, ["narrow", "wide"] * 8),
    "16 random": (["random"] * 16, [None] * 16),
}
PARTS = ("head", "adjust", "mask wait", "sample")


class Logits:
    """A model that cannot choose."""

    def __init__(self, model: CausalLM) -> None:
        self.device, self.forward, self.logits = model.device, model.forward, model.logits


def opened(row: int, kind: str) -> RowOpen:
    if kind == "random":
        return RowOpen(row=row, temperature=1.0, seed=row)
    return RowOpen(row=row, temperature=0.0, frequency_penalty=0.5 if kind == "penalized" else 0.0)


def mask_of(kind: str, vocabulary: int, rng: np.random.Generator) -> np.ndarray:
    """int32[words]."""
    bits = rng.random(-(-vocabulary // 32) * 32) < (0.95 if kind == "wide" else 0)
    bits[rng.integers(0, vocabulary, 8)] = True
    words: np.ndarray = np.packbits(bits, bitorder="little").view(np.int32)
    return words


def decode(stepper: Stepper, kinds: list[str], masks: list[str | None], vocabulary: int) -> tuple[list[float], ...]:
    """STEPS decode steps of new rows: milliseconds of each step but the first, and of its parts behind the layers; the
    tokens of all of them."""
    rng = np.random.default_rng(0)
    held = [mask_of(kind, vocabulary, rng) for kind in masks if kind is not None]
    bitmask = np.stack(held) if held else np.zeros((0, 1), np.int32)
    base = np.arange(ROWS, dtype=np.int32) * (OWN + STEPS)
    steps, behind, tokens = [], [], []
    for number in range(STEPS):
        at = OWN + number
        result = stepper.run(
            StepPlan(
                step=number,
                opens=[] if number else [opened(row, kind) for row, kind in enumerate(kinds)],
                rows=np.arange(ROWS, dtype=np.int32),
                new_lens=np.ones(ROWS, np.int32),
                tokens=np.full(ROWS, -1 if number else 5, np.int32),
                positions=np.full(ROWS, at, np.int32),
                slots=base + np.int32(at),
                private_lens=np.full(ROWS, at, np.int32),
                private_slots=(base[:, None] + np.arange(at, dtype=np.int32)).reshape(-1),
                spans=np.zeros((0, 4), np.int32),
                span_slots=np.zeros(0, np.int32),
                sample=np.ones(ROWS, np.uint8),
                drafts=np.zeros(ROWS, np.int32),
                masked=np.array([row for row, kind in enumerate(masks) if kind is not None], np.int32),
                closes=[],
                scores=[],
            ),
            partial(StepMasks, step=number, bitmask=bitmask),
        )
        tokens += result.tokens.tolist()
        if number:
            steps.append(1e3 * sum(result.parts[part] for part in result.parts if part not in ("wait", "send")))
            behind.append(1e3 * sum(result.parts.get(part, 0.0) for part in PARTS))
    return steps, behind, tokens


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="smollm2-135m")
    parser.add_argument("--weights", choices=["auto", "bf16", "int8", "int4"], default="auto")
    parser.add_argument("--rounds", type=int, default=10, help=f"runs of {STEPS} steps for each case and path")
    args = parser.parse_args()
    model = load_model(open_checkpoint(resolve(args.model)), dtype=torch.bfloat16, weights=args.weights)
    config = model.config
    shape = config.num_layers, 2, config.num_kv_heads, ROWS * (OWN + STEPS), config.head_dim
    kv = torch.randn(shape, generator=torch.Generator().manual_seed(0)).bfloat16()
    sizes = {"vocab_size": config.vocab_size, "vocabulary": config.vocab_size, "context_length": OWN + STEPS}
    paths = {
        "logits of all": Stepper(Logits(model), kv, **sizes),
        "of those that need them": Stepper(model, kv, **sizes),
    }
    print(f"{'fastest | median, ms: step, behind the layers':45}" + "".join(f"{name:>44}" for name in paths))
    with torch.inference_mode():
        for name, (kinds, masks) in CASES.items():
            taken: dict[str, list[tuple[list[float], ...]]] = {path: [] for path in paths}
            for _ in range(args.rounds):
                for path, stepper in paths.items():
                    taken[path].append(decode(stepper, kinds, masks, config.vocab_size))
            if len({tuple(tokens) for runs in taken.values() for *_, tokens in runs}) != 1:
                raise SystemExit(f"{name}: the tokens differ")
            line = ""
            for runs in taken.values():
                for part in (0, 1):
                    all_of = [each for run in runs for each in run[part]]
                    line += f"{min(all_of):12.2f} | {statistics.median(all_of):7.2f}"
            print(f"{name:45}{line}", flush=True)


if __name__ == "__main__":
    main()
