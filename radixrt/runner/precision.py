"""Which number types a model computes in: its activations, its KV pool and its weights, each chosen without the others.

The compiled decoder (`radixrt.models.narrow`) takes every combination. Where it cannot run a model, the layers are
composed of single operators: weights are then of the type of activations, float32 or bfloat16.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from radixrt.checkpoint import Checkpoint
from radixrt.config import KvDType, RunnerConfig, Weights
from radixrt.errors import StartupError
from radixrt.kernels import Kernels, instruction_sets
from radixrt.kernels.build import rung_of
from radixrt.kernels.cpu.native.binding import library
from radixrt.kernels.instruction_sets import InstructionSet
from radixrt.models import narrow, torch_packed
from radixrt.models.blocks import Decoder
from radixrt.models.narrow import Obstacle

KV_TYPES: dict[KvDType, torch.dtype] = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "int8": torch.int8,
}
COMPILED_ONLY = ("int8", "int4")
"""Forms of the weights that nothing but the compiled decoder multiplies."""


@dataclass(frozen=True)
class Precision:
    """What a model computes in on a device."""

    dtype: torch.dtype
    """Of activations: embedded tokens, hidden states."""
    kv: torch.dtype
    """Of the KV pool; torch.int8: see `pool.PoolShape`."""
    weights: Weights
    """Form of the matrices, as `load_model` takes it; auto: as the file is quantized."""
    obstacle: Obstacle | None
    """Why the compiled decoder does not run the model; None: it does."""

    @property
    def packs(self) -> bool:
        """Whether matrices are, or may be, packed."""
        return self.obstacle is None and self.weights in ("auto", *COMPILED_ONLY)


def choose_dtype(name: str, device: torch.device | None = None) -> torch.dtype:
    """The type of activations for --dtype. Raises StartupError for a name that is not offered."""
    match name:
        case "auto":
            if device is not None and device.type == "cuda":
                return torch.bfloat16 if torch.cuda.is_bf16_supported(including_emulation=False) else torch.float32
            return torch.bfloat16 if instruction_sets.current().bf16 else torch.float32
        case "float32":
            return torch.float32
        case "bfloat16":
            return torch.bfloat16
        case _:
            raise StartupError(f"dtype must be auto, float32 or bfloat16, but is {name!r}", param="dtype")


def choose(config: RunnerConfig, checkpoint: Checkpoint, device: torch.device, ops: Kernels | None = None) -> Precision:
    """What --dtype, --weights and --kv-dtype come to for this model and machine.

    `ops`: the kernels that --attention named, which take the compiled decoder's place. May wait until the kernels are
    compiled. Raises StartupError for a combination that cannot be had, and says what to choose.
    """
    dense = config.weights == "float32"
    if dense and config.dtype == "bfloat16":
        raise StartupError(
            "weights=float32 is dense float32, activations included: leave out --dtype bfloat16, or choose "
            "--weights bf16",
            param="weights",
        )
    dtype = torch.float32 if dense else choose_dtype(config.dtype, device)
    weights = config.weights if config.weights != "auto" else _stored_form(config, checkpoint, dtype)
    obstacle = _obstacle(config, checkpoint, device, ops, weights)
    if obstacle is not None:
        if config.weights in COMPILED_ONLY or (config.weights == "bf16" and dtype != torch.bfloat16):
            raise StartupError(
                f"weights={config.weights} needs the compiled decoder with --dtype {_name(dtype)}, but {obstacle}",
                param="weights",
            )
        if weights != "auto" or not torch_packed.possible(device, config.tp):
            weights = "float32" if dtype == torch.float32 else "bf16"
    if config.load_format == "dummy" and config.weights in COMPILED_ONLY:
        raise StartupError(f"weights={config.weights} needs weights: leave out --load-format dummy", param="weights")
    return Precision(dtype, _choose_kv(config, device, dtype, obstacle), weights, obstacle)


def _stored_form(config: RunnerConfig, checkpoint: Checkpoint, dtype: torch.dtype) -> Weights:
    """What --weights auto comes to where the compiled decoder can be had."""
    facts = checkpoint.config
    if checkpoint.gguf is not None and facts.quantization is not None:
        return "auto"
    if dtype == torch.bfloat16:
        return "bf16"
    # A file of 16 bits stays one, unless float32 was asked for by name; float32 is not rounded unasked.
    return "bf16" if config.dtype == "auto" and facts.dtype in ("bfloat16", "float16") else "float32"


def _obstacle(
    config: RunnerConfig, checkpoint: Checkpoint, device: torch.device, ops: Kernels | None, weights: Weights
) -> Obstacle | None:
    if weights == "float32":
        if config.weights == "float32":
            return Obstacle("--weights float32 asks for torch's products", "leave it out")
        asked = "--dtype float32 keeps them so" if config.dtype == "float32" else "this CPU multiplies no bfloat16"
        return Obstacle(f"the weights are dense float32, and {asked}", "choose --weights bf16 or int8")
    if ops is not None:
        return Obstacle(f"--attention {config.attention} names other kernels", "choose --attention auto")
    return narrow.obstacle(checkpoint.config, device, config.tp)


def _choose_kv(
    config: RunnerConfig, device: torch.device, dtype: torch.dtype, obstacle: Obstacle | None
) -> torch.dtype:
    if config.kv_dtype == "auto":
        if obstacle is not None or config.dtype == "float32":
            return dtype
        return torch.bfloat16 if kernels_rung().bf16 else torch.float16
    if config.kv_dtype not in KV_TYPES:
        raise StartupError(
            f"kv_dtype must be auto, {', '.join(KV_TYPES)}, but is {config.kv_dtype!r}", param="kv_dtype"
        )
    asked = KV_TYPES[config.kv_dtype]
    triton = config.attention in ("triton", "flashinfer") or (device.type != "cpu" and config.attention == "auto")
    if triton and asked != dtype:
        raise StartupError(
            f"Triton's kernels keep keys and values in the type of activations, here {_name(dtype)}: choose --kv-dtype "
            f"{_name(dtype)}, or with plain torch operators, which are slow, --attention torch",
            param="kv_dtype",
        )
    return asked


def slow_path(precision: Precision, device: torch.device) -> str:
    """Why steps do not take the fast path of a CPU, and what to do about it; empty where they do."""
    if precision.obstacle is None or device.type != "cpu":
        return ""
    return f"the model runs slowly, through torch's operators: {precision.obstacle}"


def describe(precision: Precision, model: Decoder, threads: int) -> str:
    """What computes, and in which number types, in one line."""
    kv = f"{_name(precision.kv)} KV"
    if model.device.type != "cpu":
        where = torch.cuda.get_device_name(model.device) if model.device.type == "cuda" else str(model.device)
        return f"{where}, {_name(model.dtype)} weights, {kv}"
    if model.narrow is not None:
        form = model.narrow.description
    else:
        form = f"{'packed' if model.packed_head is not None else _name(model.dtype)} weights by torch"
    count = f"{threads} thread{'s' if threads != 1 else ''}"
    return f"{kernels_rung().name}, {form}, {kv}, {count}"


def kernels_rung() -> InstructionSet:
    """What the compiled kernels in use were made for, which may be less than this CPU has; without any: what it has."""
    loaded, rung = library(), instruction_sets.current()
    if loaded is None:
        return rung
    name = rung_of(Path(loaded._name))
    return next((lower for lower in instruction_sets.available() if lower.name == name), rung)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
