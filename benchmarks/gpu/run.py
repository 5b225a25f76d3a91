"""A whole model with random weights through the runner, steps launched ahead as the runner's loop does."""

from __future__ import annotations

import os
from collections.abc import Callable
from time import perf_counter
from typing import Any

import numpy as np
import torch

from radixrt.checkpoint.config import ModelConfig
from radixrt.checkpoint.config_hf import config_from_hf
from radixrt.checkpoint.shapes import SHAPES
from radixrt.kernels import triton
from radixrt.messages import RowOpen, StepMasks, StepPlan
from radixrt.models.dummy import dummy_model
from radixrt.runner import cells
from radixrt.runner.ahead import AheadStepper
from radixrt.runner.cells import Planner
from radixrt.runner.device import CudaDevice
from radixrt.runner.draws import draw_triton

TINY = {
    "hidden_size": 32, "intermediate_size": 64, "moe_intermediate_size": 32, "num_experts": 4, "num_experts_per_tok": 2,
    "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 300,
}  # fmt: skip


class AtOnce:
    """A `Device` for a smoke run: a CPU that does everything when it is asked to."""

    def __init__(self) -> None:
        self.device = torch.device("cpu")
        self.wake = os.eventfd(0, os.EFD_NONBLOCK)

    def run(self, work: Callable[[], None]) -> None:
        work()

    def upload(self, staged: torch.Tensor) -> torch.Tensor:
        return staged.clone()

    def bring(self, staged: torch.Tensor) -> torch.Tensor:
        return staged.clone()

    def download(self, make: Callable[[], torch.Tensor], size: int) -> tuple[torch.Tensor, AtOnce]:
        return make().reshape(-1).view(torch.uint8), self

    def event(self) -> AtOnce:
        return self

    copied = event

    def wait(self) -> None:
        """It is done."""

    def done(self) -> bool:
        return True

    def watch(self, event: object) -> None:
        os.eventfd_write(self.wake, 1)

    def host(self, size: int) -> torch.Tensor:
        return torch.zeros(size, dtype=torch.uint8)

    def fetch(self, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    def record(self, work: Callable[[], None]) -> Any:
        return type("Recorded", (), {"replay": staticmethod(work)})()


def measure(device: str, small: bool, name: str, ceilings: dict[str, float]) -> list[dict[str, Any]]:
    if small:
        cells.LEAST_ITEMS = 3  # the interpreter takes its time for programs that do nothing
    config = config_from_hf(SHAPES[name] | ({k: v for k, v in TINY.items() if k in SHAPES[name]} if small else {}), {})
    dtype = torch.float32 if small else torch.bfloat16
    model = dummy_model(config, dtype=dtype, device=device)
    model.use(triton)
    read = sum(_read(name, view, config) for name, view in model.parameters().items())
    rows, context, steps = (2, 66, 1) if small else (64, 4096, 64)
    slots = rows * (context // 8) + context + rows * (steps + 4) * 3
    pool = torch.zeros(
        config.num_layers, 2, config.num_kv_heads, slots + 1, config.head_dim, dtype=dtype, device=device
    )
    gpu: Any = AtOnce() if small else CudaDevice(torch.device(device, torch.cuda.current_device()))

    def fresh() -> Rig:
        # One slot of the pool is spare; what the slots hold makes no difference to speed.
        sizes = {"vocab_size": config.vocab_size, "vocabulary": config.vocab_size}
        stepper = AheadStepper(gpu, model, pool, **sizes, context_length=config.context_length, drawer=draw_triton,
                               planner=Planner(config, None, gpu.device, dtype))  # fmt: skip
        return Rig(stepper, config)

    found = [fresh().prefill(context, 512)]
    one = fresh().decode(1, context // 8, steps, shared=False)
    if "copy GB/s" in ceilings:
        one["of the weight-bandwidth bound"] = read / (ceilings["copy GB/s"] * 1e9) * one["tokens/s"]
    found.append({"what": f"{name}, decode of one row over {context // 8} tokens", "weights GB": read / 1e9, **one})
    own = fresh().decode(rows, context // 8, steps, shared=False)
    found.append({"what": f"{name}, decode of {rows} rows over {context // 8} tokens each", **own})
    tree = fresh().decode(rows, context, steps, shared=True)
    found.append({"what": f"{name}, decode of {rows} rows below one prefix of {context} tokens", **tree})
    return found


def _read(name: str, view: torch.Tensor, config: ModelConfig) -> float:
    """Bytes of a weight that one token reads: a line of the embedding, of experts those that it chooses."""
    if "embed_tokens" in name:
        return 0.0
    share = config.experts_per_token / config.num_experts if ".experts." in name else 1.0
    return float(view.nbytes * share)


class Rig:
    """Plans for rows that all do the same, and the time that they take."""

    def __init__(self, stepper: AheadStepper, config: ModelConfig) -> None:
        self._stepper = stepper
        self._config = config

    def prefill(self, tokens: int, chunk: int) -> dict[str, Any]:
        plans = [
            _prefill(step, first, min(chunk, tokens - first)) for step, first in enumerate(range(0, tokens, chunk))
        ]
        if self._stepper.device.device.type != "cpu":
            self._run(plans)  # compiles the kernels, and finds their best tiles
        seconds = self._run(plans)["seconds"]
        return {"what": f"prefill of {tokens} tokens in chunks of {chunk}", "tokens/s": tokens / seconds}

    def decode(self, rows: int, context: int, steps: int, *, shared: bool) -> dict[str, Any]:
        """`steps` greedy tokens of each row, after some that record the graphs."""
        warm = 1 if steps < 8 else 16
        plans = [_decode(step, rows, context, shared) for step in range(warm + steps)]
        self._run(plans[:warm])
        times = self._run(plans[warm:])
        each = times.pop("seconds") / steps
        return {"tokens/s": rows / each, "ITL ms": each * 1e3, **{k: v / steps * 1e3 for k, v in times.items()}}

    def _run(self, plans: list[StepPlan]) -> dict[str, float]:
        """All plans, each launched before the one before it is settled; seconds in all, and of the host by part."""
        stepper, flight = self._stepper, None
        times = dict.fromkeys(("launch ms", "draw ms", "wait ms"), 0.0)
        began = perf_counter()
        for plan in plans:
            t0 = perf_counter()
            launched = stepper.launch(plan)
            t1 = perf_counter()
            if flight is not None:
                stepper.settle(flight)
            t2 = perf_counter()
            stepper.draw(launched, _no_masks)
            times["launch ms"] += t1 - t0
            times["wait ms"] += t2 - t1
            times["draw ms"] += perf_counter() - t2
            flight = launched
        if flight is not None:
            t0 = perf_counter()
            stepper.settle(flight)
            times["wait ms"] += perf_counter() - t0
        return {"seconds": perf_counter() - began, **times}


def _no_masks() -> StepMasks:
    raise RuntimeError("nothing is masked here")


def _plan(step: int, rows: np.ndarray, lens: np.ndarray, **arrays: Any) -> StepPlan:
    none = np.zeros(0, np.int32)
    count = len(rows)
    given: dict[str, Any] = {
        "opens": [], "closes": [], "private_lens": np.zeros(count, np.int32), "private_slots": none,
        "spans": np.zeros((0, 4), np.int32), "span_slots": none, "sample": np.ones(count, np.uint8),
        "drafts": np.zeros(count, np.int32), "masked": none, "scores": [],
    }  # fmt: skip
    return StepPlan(step=step, rows=rows.astype(np.int32), new_lens=lens.astype(np.int32), **(given | arrays))


def _prefill(step: int, first: int, count: int) -> StepPlan:
    places = np.arange(first, first + count, dtype=np.int32)
    return _plan(
        step, np.array([-1]), np.array([count]), tokens=places % 250, positions=places, slots=places,
        private_lens=np.array([first], np.int32), private_slots=np.arange(first, dtype=np.int32),
        sample=np.zeros(1, np.uint8),
    )  # fmt: skip


def _decode(step: int, rows: int, context: int, shared: bool) -> StepPlan:
    """Step `step` of rows that read `context` tokens, theirs or all the same, and what they have generated."""
    ids = np.arange(rows)
    base = context if shared else rows * context
    own = [base + row + rows * np.arange(step) for row in range(rows)]
    if not shared:
        own = [np.concatenate([row * context + np.arange(context), part]) for row, part in enumerate(own)]
    arrays: dict[str, Any] = {
        "private_lens": np.array([len(part) for part in own], np.int32),
        "private_slots": np.concatenate(own).astype(np.int32),
    }
    if shared:
        arrays |= {
            "spans": np.array([[0, context, 0, rows]], np.int32),
            "span_slots": np.arange(context, dtype=np.int32),
        }
    opens = [RowOpen(row=int(row), temperature=0.0) for row in ids] if step == 0 else []
    return _plan(
        step, ids, np.ones(rows), tokens=np.full(rows, 5 if step == 0 else -1, np.int32), opens=opens,
        positions=np.full(rows, context + step, np.int32), slots=(base + ids + rows * step).astype(np.int32), **arrays,
    )  # fmt: skip
