"""From what was asked for to what computes: the device, the kernels, and the stepper that fits both."""

from __future__ import annotations

import os
from importlib.util import find_spec

import torch

from radixrt import kernels
from radixrt.errors import StartupError
from radixrt.kernels import Kernels
from radixrt.models import CausalLM
from radixrt.models.blocks import Decoder
from radixrt.runner.ahead import AheadStepper
from radixrt.runner.cells import Planner
from radixrt.runner.device import CudaDevice, Device
from radixrt.runner.draft import Loaded as LoadedDraft
from radixrt.runner.draft_ahead import AheadPasses
from radixrt.runner.draws import draw_plain, draw_triton
from radixrt.runner.tier import Mover
from radixrt.runner.tier_device import DeviceMover


def choose_device(name: str, rank: int) -> torch.device:
    """auto: a GPU where torch finds one; of several, each rank its own. StartupError where there is none to have."""
    match name:
        case "cpu":
            return torch.device("cpu")
        case "auto" | "cuda":
            count = torch.cuda.device_count() if torch.cuda.is_available() else 0
            if name == "auto" and not count:
                return torch.device("cpu")
            if not count:
                raise StartupError("torch finds no GPU here: choose --device cpu", param="device")
            if rank >= count:
                raise StartupError(f"rank {rank} has no GPU: torch finds {count}, a rank needs one each", param="tp")
            return torch.device("cuda", rank)
        case _:
            raise StartupError(f"device must be auto, cpu or cuda, but is {name!r}", param="device")


def choose_kernels(name: str, device: torch.device) -> Kernels | None:
    """The operations for --attention; None: those the device gets by itself. StartupError where they cannot run."""
    match name:
        case "auto":
            return None
        case "torch":
            return kernels.select(device, reference=True)
        case "triton" | "flashinfer":
            interpreted = os.environ.get("TRITON_INTERPRET") == "1"
            if device.type == "cpu" and not interpreted:
                owner = "Triton's" if name == "triton" else "FlashInfer's"
                raise StartupError(f"{owner} kernels need a GPU: choose --attention auto or torch", param="attention")
            if find_spec("triton") is None:
                raise StartupError("triton is not installed: pip install 'radixrt[gpu]'", param="attention")
            if name == "triton":
                from radixrt.kernels import triton

                return triton
            if find_spec("flashinfer") is None:
                raise StartupError(
                    "flashinfer is not installed: pip install flashinfer-python, or choose --attention triton",
                    param="attention",
                )
            from radixrt.kernels import flashinfer

            return flashinfer
        case _:
            raise StartupError(
                f"attention must be auto, triton, torch or flashinfer, but is {name!r}", param="attention"
            )


def uses_triton(model: Decoder) -> bool:
    """For all but attention, which may be FlashInfer's: that is planned where it is first asked for."""
    return getattr(model.kernels, "sample", None) is not None


def check_kernels(ops: Kernels | None, model: Decoder) -> None:
    """StartupError where the operations for --attention cannot compute a model."""
    check = getattr(ops, "check", None)
    if check is not None:
        check(model.config.head_dim, model.dtype)


def ahead_stepper(
    model: CausalLM,
    part: Decoder,
    kv: torch.Tensor,
    *,
    vocab_size: int,
    vocabulary: int,
    context_length: int,
    draft: LoadedDraft | None = None,
) -> AheadStepper:
    """A stepper for a GPU. `part`: what of `model` is here, `model` itself but for a model over several ranks."""
    device = CudaDevice(part.device)
    drawer = draw_triton if uses_triton(part) else draw_plain
    beside = None
    if draft is not None:
        slots = kv.shape[3] - 1
        passes = AheadPasses(
            device, draft.model, draft.pool(slots), vocabulary=draft.vocabulary, drawer=drawer,
            planner=planner_of(draft.model),
        )  # fmt: skip
        beside = draft.beside(slots, passes)
    return AheadStepper(
        device,
        model,
        kv,
        vocab_size=vocab_size,
        vocabulary=vocabulary,
        context_length=context_length,
        drawer=drawer,
        planner=planner_of(part),
        draft=beside,
    )


def planner_of(part: Decoder) -> Planner | None:
    """How a model's attention is cut ahead of it; None where its kernels take steps as they come."""
    planned = getattr(part.kernels, "make_plan", None) is not None
    return Planner(part.config, part.layers[0].window, part.device, part.dtype) if planned else None


def device_mover(device: Device, part: Decoder, kv: torch.Tensor) -> Mover | None:
    """How a tier's chunks leave a GPU's pool; None where Triton is not used: the plain copies, which wait."""
    if not uses_triton(part):
        return None
    from radixrt.kernels.triton import gather_kv, scatter_kv

    return DeviceMover(device, kv, gather_kv, scatter_kv)
