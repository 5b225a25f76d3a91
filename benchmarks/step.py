"""What one forward step costs, without scheduler or server: decode rows alone and over a shared span, and prefill.

    OMP_NUM_THREADS=2 GOMP_SPINCOUNT=1000 python benchmarks/step.py [MODEL] [--dtype bfloat16] [--only TEXT] [--profile]

A call is layout, forward and logits of the rows' last tokens. Each path is a column, and they take turns: `torch` is
torch's operators put together, `wide` the compiled operations around torch's matrix products, then the compiled decoder
with the weights that `--weights` names.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial

import numpy as np
import torch

from radixrt import kernels
from radixrt.checkpoint import Checkpoint, open_checkpoint, resolve
from radixrt.config import Weights
from radixrt.kernels import AttentionLayout
from radixrt.models import CausalLM, load_model
from radixrt.models.blocks import Decoder

PRIVATE = 130
SHARED = 1400
POOL = 40_000


def step(rows: int, new: int, private: int, shared: int) -> AttentionLayout:
    """`rows` rows with `new` new tokens each, over `private` slots of their own and one span of `shared` slots."""
    width = private + new
    base = shared + 1000 + np.arange(rows)[:, None] * (width + 50)
    return AttentionLayout(
        new_lens=np.full(rows, new),
        slots=(base + np.arange(private, width)).reshape(-1),
        positions=np.tile(np.arange(shared + private, shared + width), rows),
        private_lens=np.full(rows, private),
        private_slots=(base + np.arange(private)).reshape(-1),
        spans=np.array([[0, shared, 0, rows]] if shared else []).reshape(-1, 4),
        span_slots=np.arange(shared),
    )


def cases() -> dict[str, Callable[[], AttentionLayout]]:
    named: dict[str, Callable[[], AttentionLayout]] = {}
    for rows in (1, 4, 16, 32):
        named[f"decode {rows} rows, {PRIVATE} own"] = lambda rows=rows: step(rows, 1, PRIVATE, 0)
    for rows in (1, 4, 16, 32):
        named[f"decode {rows} rows, {PRIVATE} own + {SHARED} shared"] = lambda rows=rows: step(rows, 1, PRIVATE, SHARED)
    named[f"decode 1 row, {SHARED} own"] = lambda: step(1, 1, SHARED, 0)
    named[f"decode 16 rows, {SHARED} own"] = lambda: step(16, 1, SHARED, 0)
    named["prefill 512"] = lambda: step(1, 512, 0, 0)
    named[f"prefill 512 after {SHARED}"] = lambda: step(1, 512, SHARED, 0)
    named[f"prefill 16 rows of 20 over {SHARED} shared"] = lambda: step(16, 20, 0, SHARED)
    return named


def run(model: CausalLM, kv: torch.Tensor, make: Callable[[], AttentionLayout]) -> None:
    layout = make()
    tokens = torch.arange(layout.num_tokens) % 1000
    last = torch.from_numpy(layout.starts[1:] - 1)
    slots, positions = torch.from_numpy(layout.slots), torch.from_numpy(layout.positions)
    hidden = model.forward(tokens, positions, slots, kv, layout)
    model.logits(hidden.index_select(0, last))


def times_ms(calls: dict[str, Callable[[], None]], seconds: float) -> dict[str, list[float]]:
    """Times of repeated calls, in milliseconds, sorted; the calls take turns, each for about `seconds` in all."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        call()
    end = time.perf_counter() + seconds * len(calls)
    while time.perf_counter() < end or len(next(iter(times.values()))) < 4:
        for name, call in calls.items():
            for _ in range(2):  # the second finds the caches as a run of such steps does
                start = time.perf_counter()
                call()
            times[name].append((time.perf_counter() - start) * 1e3)
    return {name: sorted(taken) for name, taken in times.items()}


def load_paths(checkpoint: Checkpoint, dtype: torch.dtype, forms: list[Weights]) -> dict[str, CausalLM]:
    """The model once a path."""
    form: Weights = "bf16" if dtype == torch.bfloat16 else "float32"
    torch_path, wide = (load_model(checkpoint, dtype=dtype, weights=form) for _ in range(2))
    for model in (torch_path, wide):
        if not isinstance(model, Decoder):
            raise SystemExit("this architecture has one path only")
        model.narrow = None
    plain = kernels.select("cpu", native=False)
    torch_path.kernels = plain
    for layer in torch_path.layers:
        layer.kernels = plain
    compiled = {form: load_model(checkpoint, dtype=dtype, weights=form) for form in forms}
    return {"torch": torch_path, "wide": wide, **(compiled if dtype == torch.bfloat16 else {})}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="smollm2-135m")
    parser.add_argument("--dtype", choices=["bfloat16", "float32"], default="bfloat16")
    parser.add_argument("--weights", nargs="*", choices=["auto", "bf16", "int8", "int4"], default=["bf16", "auto"])
    parser.add_argument("--seconds", type=float, default=1.0, help="time for each case and path")
    parser.add_argument("--only", default="", help="cases whose name holds this text")
    parser.add_argument("--profile", action="store_true", help="print torch's profile of the path `wide` as well")
    args = parser.parse_args()
    dtype = getattr(torch, args.dtype)
    models = load_paths(open_checkpoint(resolve(args.model)), dtype, args.weights)
    config = models["torch"].config
    kv = torch.randn(config.num_layers, 2, config.num_kv_heads, POOL, config.head_dim).to(dtype)
    print(f"{'fastest | median, ms':45}" + "".join(f"{name:>18}" for name in models))
    with torch.inference_mode():
        for name, make in cases().items():
            if args.only not in name:
                continue
            calls = {path: partial(run, model, kv, make) for path, model in models.items()}
            times = times_ms(calls, args.seconds)
            columns = (f"{taken[0]:9.1f} | {statistics.median(taken):6.1f}" for taken in times.values())
            print(f"{name:45}" + "".join(columns), flush=True)
            if args.profile:
                with torch.profiler.profile() as profile:
                    for _ in range(5):
                        calls["wide"]()
                print(
                    profile.key_averages().table(sort_by="self_cpu_time_total", row_limit=25, max_name_column_width=60)
                )


if __name__ == "__main__":
    main()
