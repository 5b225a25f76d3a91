"""What radixrt does on this machine's GPU: are the kernels right, how fast is each, how fast is a model.

    python benchmarks/gpu_check.py --out results       under 8 minutes on one GPU
    python benchmarks/gpu_check.py --smoke             the same code on a CPU, tiny, in seconds (Triton's interpreter)

It needs this repository, torch, numpy and triton, and nothing else. The table comes last; `--out` (or $OUT) gets
gpu_check.json. It exits with 1 where a kernel is wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smoke", action="store_true", help="tiny sizes on a CPU, under Triton's interpreter")
    parser.add_argument("--out", default=os.environ.get("OUT"), help="folder for gpu_check.json (default: $OUT)")
    parser.add_argument(
        "--model", default="llama-3-8b", help="llama-3-8b, qwen3-8b or qwen3-30b-a3b, with random weights"
    )
    parser.add_argument("--parts", default="123", help="1: kernels against float64; 2: their speed; 3: a model")
    arguments = parser.parse_args()
    if arguments.smoke:
        os.environ["TRITON_INTERPRET"] = "1"  # read when triton is imported
    sys.path[:0] = [str(HERE.parent), str(HERE)]
    from gpu import stand_ins

    stand_ins.install()
    import torch

    if not arguments.smoke and not torch.cuda.is_available():
        print("torch finds no GPU here; --smoke runs the same code on a CPU", file=sys.stderr)
        return 2
    from gpu import correct, run, speed

    device = "cpu" if arguments.smoke else "cuda"
    report: dict[str, Any] = {"machine": machine(device), "smoke": arguments.smoke}
    with torch.inference_mode():
        if "1" in arguments.parts:
            began = time.perf_counter()
            dtypes = [torch.bfloat16, torch.float32, torch.float16][: 1 if arguments.smoke else 3]
            rounds = 1 if arguments.smoke else 3
            report["kernels"] = correct.check(device, arguments.smoke, dtypes, rounds)
            print(f"kernels against float64: {time.perf_counter() - began:.0f} s", flush=True)
        if "2" in arguments.parts:
            began = time.perf_counter()
            report["ceilings"], report["speed"] = speed.measure(device, arguments.smoke)
            print(f"speed of kernels: {time.perf_counter() - began:.0f} s", flush=True)
        if "3" in arguments.parts:
            began = time.perf_counter()
            report["model"] = run.measure(device, arguments.smoke, arguments.model, report.get("ceilings", {}))
            print(f"a model: {time.perf_counter() - began:.0f} s", flush=True)
    if arguments.out:
        folder = Path(arguments.out)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "gpu_check.json").write_text(json.dumps(report, indent=1))
    table(report)
    return 1 if any(not line["ok"] for line in report.get("kernels", [])) else 0


def machine(device: str) -> dict[str, str]:
    import torch
    import triton

    name = torch.cuda.get_device_name() if device == "cuda" else "CPU, Triton's interpreter"
    return {"device": name, "torch": torch.__version__, "triton": triton.__version__}


def table(report: dict[str, Any]) -> None:
    """Everything measured, as text."""
    print("\n" + ", ".join(f"{key} {value}" for key, value in report["machine"].items()))
    if report["smoke"]:
        print("a smoke run on a CPU: its times say nothing")
    if kernels := report.get("kernels"):
        wrong = [line for line in kernels if not line["ok"]]
        print(f"\nkernels right: {len(kernels) - len(wrong)} of {len(kernels)}")
        for line in wrong:
            print(f"  WRONG {line['kernel']} {line['dtype']}: {line['error']:.2e}, allowed {line['limit']:.0e}")
    if ceilings := report.get("ceilings"):
        print("\nmeasured ceilings: " + ", ".join(f"{key} {value:.3g}" for key, value in ceilings.items()))
        print(f"{'kernel':<44}{'ms':>10}{'GB/s':>9}{'TFLOP/s':>9}{'of ceiling':>12}{'torch ms':>10}"
              f"{'FlashInfer':>12}")  # fmt: skip
        for line in report["speed"]:
            other, third = (
                f"{line[name]:.4f}" if line[name] is not None else "-" for name in ("torch_ms", "flashinfer_ms")
            )
            print(f"{line['kernel']:<44}{line['ms']:>10.4f}{line['gbps']:>9.0f}{line['tflops']:>9.1f}"
                  f"{line['share']:>12.0%}{other:>10}{third:>12}")  # fmt: skip
    for goal, share, least in goals(report):
        print(f"goal: {goal}: {share:.2f}, at least {least:.2f} is wanted: {'met' if share >= least else 'NOT MET'}")
    for line in report.get("model", []):
        parts = ", ".join(f"{key} {value:.4g}" for key, value in line.items() if key != "what")
        print(f"\n{line['what']}: {parts}")


def goals(report: dict[str, Any]) -> list[tuple[str, float, float]]:
    """(what, what it is, what it should be at least); nothing of a smoke run."""
    if report["smoke"]:
        return []
    found = []
    lines = {line["kernel"]: line for line in report.get("speed", [])}
    for name, line in lines.items():
        if name.startswith("decode attention, 64"):
            found.append(("decode attention, of the copy's bandwidth", line["gbps"] / _copy(report), 0.85))
        if name.startswith("one prefix, row by row"):
            tree = lines[name.replace("row by row", "tree attention")]
            found.append(("tree attention, times as fast as row by row", line["ms"] / tree["ms"], 5.0))
    for line in report.get("model", []):
        if (share := line.get("of the weight-bandwidth bound")) is not None:
            found.append(("decode of one row, of the weight-bandwidth bound", share, 0.8))
    return found


def _copy(report: dict[str, Any]) -> float:
    return float(report["ceilings"]["copy GB/s"])


if __name__ == "__main__":
    sys.exit(main())
