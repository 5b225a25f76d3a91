"""What one forward step costs, without scheduler or server: decode rows alone and over a shared span, and prefill.

    OMP_NUM_THREADS=2 GOMP_SPINCOUNT=1000 python benchmarks/step.py [MODEL] [--dtype bfloat16] [--only TEXT] [--profile]

A call is layout, forward and logits of the rows' last tokens.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch

from radixrt.checkpoint import open_checkpoint, resolve
from radixrt.kernels import AttentionLayout
from radixrt.models import CausalLM, load_model

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


def times_ms(call: Callable[[], None], seconds: float) -> list[float]:
    """Times of repeated calls, in milliseconds, sorted."""
    call()
    times: list[float] = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times) < 5:
        start = time.perf_counter()
        call()
        times.append((time.perf_counter() - start) * 1e3)
    return sorted(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="smollm2-135m")
    parser.add_argument("--dtype", choices=["bfloat16", "float32"], default="bfloat16")
    parser.add_argument("--seconds", type=float, default=1.5, help="time for each case")
    parser.add_argument("--only", default="", help="cases whose name holds this text")
    parser.add_argument("--profile", action="store_true", help="print torch's profile of each case as well")
    args = parser.parse_args()
    dtype = getattr(torch, args.dtype)
    model = load_model(open_checkpoint(resolve(args.model)), dtype=dtype)
    config = model.config
    kv = torch.randn(config.num_layers, 2, config.num_kv_heads, POOL, config.head_dim).to(dtype)
    print(f"{'milliseconds':45} {'fastest':>8} {'median':>8}")
    with torch.inference_mode():
        for name, make in cases().items():
            if args.only not in name:
                continue
            times = times_ms(lambda make=make: run(model, kv, make), args.seconds)
            print(f"{name:45} {times[0]:8.1f} {statistics.median(times):8.1f}", flush=True)
            if args.profile:
                with torch.profiler.profile() as profile:
                    for _ in range(5):
                        run(model, kv, make)
                print(
                    profile.key_averages().table(sort_by="self_cpu_time_total", row_limit=25, max_name_column_width=60)
                )


if __name__ == "__main__":
    main()
