"""What scale costs, as curves: one figure (SVG or PNG) and the numbers as JSON.

    python benchmarks/scale.py [MODEL] [--part steps|tree|concurrency|ttft] [--out scale]

steps: what a decode step costs beside the model's forward pass, against rows; tree: operations of the prefix tree
against cached tokens, without a model; concurrency: tokens a second against streams at once; ttft: time to the first
token against the prompt's length, cold and with the prompt in the cache. Medians; what is served has ROUNDS rounds.
The figure needs matplotlib (extra `bench`).
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from measure import Record, Server
from servers import radixrt
from workloads import at_once, prose

Curve = dict[str, list[float]]
"""A curve's name -> its values, beside "x"."""
ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
CACHED = (1_000, 4_000, 16_000, 64_000, 256_000, 1_000_000)
STREAMS = (1, 2, 4, 8, 16, 32, 64, 128)
ROUNDS = 3
WORDS = (50, 100, 200, 400, 800, 1600, 3200)


def median_us(call: Callable[[], object], times: int) -> float:
    taken = []
    for _ in range(times):
        began = time.perf_counter()
        call()
        taken.append(time.perf_counter() - began)
    return statistics.median(taken) * 1e6


def steps() -> Curve:
    """Microseconds of a whole decode step of the runner around a model that computes nothing: checks, layout, sampling,
    and the plan's way through the wire format and back."""
    import numpy as np
    import torch

    from radixrt.messages import RowOpen, StepPlan, StepResult
    from radixrt.runner.step import Stepper
    from radixrt.transport import Codec

    vocabulary = 1024

    class Nothing:
        device = torch.device("cpu")

        def forward(self, tokens: torch.Tensor, *_: object) -> torch.Tensor:
            return torch.zeros(len(tokens), 8)

        def logits(self, hidden: torch.Tensor) -> torch.Tensor:
            return torch.zeros(len(hidden), vocabulary)

    plans: Codec[StepPlan, StepPlan] = Codec(StepPlan)
    results: Codec[StepResult, StepResult] = Codec(StepResult)
    found: Curve = {"x": list(ROWS), "step": [], "plan and result on the wire": []}
    for rows in ROWS:
        kv = torch.zeros(1, 2, 1, 200 * rows, 8)
        stepper = Stepper(Nothing(), kv, vocab_size=vocabulary, vocabulary=vocabulary, context_length=4096)
        ids = np.arange(rows, dtype=np.int32)

        def plan(opens: list[RowOpen], tokens: np.ndarray, rows: int = rows, ids: np.ndarray = ids) -> StepPlan:
            return StepPlan(
                step=0, opens=opens, closes=[], rows=ids, new_lens=np.ones(rows, np.int32), tokens=tokens,
                positions=np.full(rows, 129, np.int32), slots=ids * 200 + 129,
                private_lens=np.full(rows, 129, np.int32),
                private_slots=(ids[:, None] * 200 + np.arange(129, dtype=np.int32)).reshape(-1),
                spans=np.zeros((0, 4), np.int32), span_slots=np.zeros(0, np.int32), sample=np.ones(rows, np.uint8),
                drafts=np.zeros(rows, np.int32), masked=np.zeros(0, np.int32), scores=[],
            )  # fmt: skip

        def no_masks() -> object:
            raise RuntimeError("nothing is masked here")

        with torch.inference_mode():
            stepper.run(
                plan([RowOpen(row=i, temperature=0.0) for i in range(rows)], np.zeros(rows, np.int32)), no_masks
            )
            decode = plan([], np.full(rows, -1, np.int32))
            result = stepper.run(decode, no_masks)
            found["step"].append(median_us(lambda s=stepper, d=decode: s.run(d, no_masks), 60))
        found["plan and result on the wire"].append(
            median_us(lambda d=decode, r=result: (plans.decode(plans.encode(d)), results.decode(results.encode(r))), 60)
        )
    return found


def tree() -> Curve:
    """Microseconds of a match of 500 tokens, and of a new branch of 500 with the eviction that makes room for it.

    Beside so many cached tokens in branches of 500, which share their first 200.
    """
    import numpy as np

    from radixrt.cache import PrefixCache

    rng = np.random.default_rng(0)
    start = rng.integers(0, 30_000, 200).tolist()
    found: Curve = {"x": [float(count) for count in CACHED], "match": [], "insert and evict": []}
    for count in CACHED:
        cache = PrefixCache(count)
        branches: list[list[int]] = []

        def insert(cache: PrefixCache = cache, branches: list[list[int]] = branches) -> None:
            branch = start + rng.integers(0, 30_000, 300).tolist()
            branches.append(branch)
            root = cache.tree.root("")
            cache.tree.lock(root)
            slots = cache.allocate(len(branch))
            if slots is None:
                raise SystemExit("the tree has no room though nothing is locked")
            end, twice = cache.tree.extend(root, branch, slots)
            cache.release(slots[:twice])
            cache.tree.unlock(end)

        while cache.tree.tokens < count - 500:
            insert()
        recent = branches[-min(len(branches), 50) :]
        turns = itertools.cycle(recent)
        found["match"].append(median_us(lambda c=cache, t=turns: c.tree.match("", next(t), 500), 200))
        found["insert and evict"].append(median_us(insert, 200))
    return found


async def _concurrency(url: str) -> Curve:
    server = Server(url, None, None, ignore_eos=True, timeout_s=300)
    await server.open()
    rng = random.Random(0)
    found: Curve = {"x": list(STREAMS), "tokens a second": []}
    for streams in STREAMS:
        speeds = []
        for _ in range(ROUNDS):
            prompts = [prose(rng, 40) for _ in range(streams)]
            began = time.perf_counter()
            records = await at_once(streams, [server.complete(prompt, max_tokens=48) for prompt in prompts])
            _must(records)
            speeds.append(sum(r.completion_tokens for r in records) / (time.perf_counter() - began))
        found["tokens a second"].append(statistics.median(speeds))
    await server.close()
    return found


async def _ttft(url: str) -> Curve:
    server = Server(url, None, None, ignore_eos=True, timeout_s=300)
    await server.open()
    rng = random.Random(1)
    found: Curve = {"x": [], "cold": [], "cached": []}
    for words in WORDS:
        cold, warm = [], []
        for _ in range(ROUNDS):
            prompt = prose(rng, words)
            cold.append(await server.complete(prompt, max_tokens=1))
            warm += [await server.complete(f"{prompt} {i}", max_tokens=1) for i in range(3)]
        _must([*cold, *warm])
        found["x"].append(statistics.median(record.prompt_tokens for record in cold))
        found["cold"].append(statistics.median((record.ttft_s or 0) * 1000 for record in cold))
        found["cached"].append(statistics.median((record.ttft_s or 0) * 1000 for record in warm))
    await server.close()
    return found


def _must(records: Sequence[Record]) -> None:
    failed = next((record.error for record in records if record.error), None)
    if failed:
        raise SystemExit(f"a request failed: {failed}")


TITLES = {
    "steps": ("rows", "microseconds a step, without the model"),
    "tree": ("cached tokens", "microseconds an operation"),
    "concurrency": ("streams at once", "tokens a second"),
    "ttft": ("prompt tokens", "milliseconds to the first token"),
}


def plot(curves: dict[str, Curve], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, len(curves), figsize=(5 * len(curves), 4), squeeze=False)
    for axis, (part, curve) in zip(axes[0], curves.items(), strict=True):
        for name, values in curve.items():
            if name != "x":
                axis.plot(curve["x"], values, marker="o", label=name)
        axis.set(xlabel=TITLES[part][0], ylabel=TITLES[part][1], xscale="log")
        if part in ("steps", "ttft"):
            axis.set_yscale("log")
        axis.set_ylim(bottom=None if axis.get_yscale() == "log" else 0)
        axis.grid(alpha=0.3)
        axis.legend()
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None, "Creator": None} if path.suffix == ".svg" else None)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("model", nargs="?", default="smollm2-135m")
    parser.add_argument("--part", action="append", choices=list(TITLES), help="repeatable; default: all")
    parser.add_argument(
        "--out", type=Path, default=Path("scale"), help="path without ending: .json and .svg are written"
    )
    options = parser.parse_args()
    parts = [part for part in TITLES if not options.part or part in options.part]
    curves: dict[str, Curve] = {}
    if "steps" in parts:
        curves["steps"] = steps()
    if "tree" in parts:
        curves["tree"] = tree()
    if served := [part for part in parts if part in ("concurrency", "ttft")]:
        target = radixrt(options.model, "--max-num-seqs", "128")
        try:
            target.start()
            for part in served:
                curves[part] = asyncio.run((_concurrency if part == "concurrency" else _ttft)(target.url))
        finally:
            target.stop()
    for part, curve in curves.items():
        print(f"{part} ({TITLES[part][1]})")
        for name, values in curve.items():
            print(f"  {name if name != 'x' else TITLES[part][0]:<30}" + "".join(f"{value:>12,.1f}" for value in values))
    options.out.with_suffix(".json").write_text(json.dumps(curves))
    try:
        plot(curves, options.out.with_suffix(".svg"))
    except ModuleNotFoundError:
        print("no figure: matplotlib is not installed (pip install 'radixrt[bench]')", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
