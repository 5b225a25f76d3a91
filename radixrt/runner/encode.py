"""The runner of an encoder: each plan's texts become vectors. There is no KV pool, and no row outlives a step."""

from __future__ import annotations

import logging
from collections.abc import Callable
from time import perf_counter

import numpy as np
import torch

from radixrt.checkpoint import Checkpoint, EncoderConfig
from radixrt.config import RunnerConfig
from radixrt.errors import StartupError
from radixrt.messages import EncodePlan, EncodeResult, RunnerReady
from radixrt.models.bert import BertEncoder
from radixrt.models.load_encoder import load_encoder
from radixrt.runner.backend import choose_device
from radixrt.runner.failure import fail
from radixrt.runner.inbox import Inbox
from radixrt.runner.pool import free_memory, size
from radixrt.runner.pooling import pool_texts
from radixrt.runner.precision import choose_dtype
from radixrt.runner.rows import PlanError

log = logging.getLogger(__name__)

_NEVER: dict[str, tuple[object, str]] = {
    "tp": (1, "--tp"),
    "draft_path": (None, "--draft-model"),
    "kv_tokens": (None, "--kv-tokens"),
    "cache_dir": (None, "--cache-dir"),
    "cache_host_bytes": (0, "--cache-host-bytes"),
    "weights": ("auto", "--weights"),
    "kv_dtype": ("auto", "--kv-dtype"),
    "attention": ("auto", "--attention"),
    "load_format": ("auto", "--load-format"),
}
"""Options that say nothing about an encoder: their defaults, and how users spell them."""


def set_threads(config: RunnerConfig) -> None:
    """Once a process, before anything is computed."""
    torch.set_num_threads(config.threads)
    torch.set_num_interop_threads(1)


def load(
    config: RunnerConfig, checkpoint: Checkpoint, progress: Callable[[str, float], None]
) -> tuple[BertEncoder, RunnerReady]:
    """The encoder, ready to run. Raises RadixrtError where it cannot be had, or an option does not fit it."""
    facts = checkpoint.encoder
    if facts is None:
        raise StartupError("the model is no encoder")
    for name, (default, flag) in _NEVER.items():
        if getattr(config, name) != default:
            raise StartupError(f"the model is an encoder, which has no use for it: leave out {flag}", param=name)
    progress("opening the model", 0.0)
    device = choose_device(config.device, config.rank)
    # An encoder is small, and who compares vectors wants them to the last digit: bfloat16 only where it is asked for.
    dtype = torch.float32 if config.dtype == "auto" else choose_dtype(config.dtype, device)
    context_length = config.context_length or facts.context_length
    if context_length > facts.positions:
        raise StartupError(
            f"the model knows {facts.positions} positions: --context-length cannot be {context_length}",
            param="context_length",
        )
    _check_room(facts, dtype, device)
    model = load_encoder(checkpoint, dtype=dtype, device=device, progress=progress)
    progress("warming up", 1.0)
    with torch.inference_mode():
        model.forward(torch.zeros(2, dtype=torch.int64, device=device), [2])
    ready = RunnerReady(
        kv_tokens=0,
        context_length=context_length,
        vocab_size=facts.vocab_size,
        dtype=str(dtype).removeprefix("torch."),
        device=str(device),
        threads=torch.get_num_threads(),
        embedding_size=facts.hidden_size,
    )
    log.info("ready: %s", ready)
    return model, ready


def _check_room(facts: EncoderConfig, dtype: torch.dtype, device: torch.device) -> None:
    hidden, inner = facts.hidden_size, facts.intermediate_size
    tables = (facts.vocab_size + facts.positions + facts.token_types) * hidden
    need = (tables + facts.num_layers * (4 * hidden * hidden + 2 * hidden * inner)) * dtype.itemsize
    free = free_memory(device)
    if need > free:
        raise StartupError(
            f"the model does not fit: its weights take {size(need)} and {size(free)} are free: free some memory, or "
            "choose a smaller model"
        )


def serve(inbox: Inbox, model: BertEncoder, ready: RunnerReady) -> None:
    """Answer every Connect with `ready`, and every plan, in order, with EncodeResult or StepFailed."""
    with torch.inference_mode():
        while True:
            turn(inbox, model, ready)


def turn(inbox: Inbox, model: BertEncoder, ready: RunnerReady) -> None:
    """One turn of the loop: greet a scheduler that has connected, run one plan, or wait for a message."""
    inbox.drain()
    if inbox.connected:
        inbox.connected = False
        inbox.send(ready)
    elif inbox.plans:
        plan = inbox.plans.popleft()
        if not isinstance(plan, EncodePlan):
            raise RuntimeError(f"an encoder was sent a {type(plan).__name__}")
        try:
            inbox.send(run(model, plan))
        except Exception as error:
            log.exception("step %d failed", plan.step)
            fail(inbox, plan, error)
    else:
        inbox.wait()


def run(model: BertEncoder, plan: EncodePlan) -> EncodeResult:
    """Compute `plan`; PlanError, naming the field, where it contradicts itself or the model."""
    started = perf_counter()
    lengths, tokens = plan.lengths, plan.tokens
    for name, array in (("lengths", lengths), ("tokens", tokens)):
        if array.ndim != 1 or array.dtype.kind not in "iu" or not array.size:
            raise PlanError(f"{name} must be one list of integers that is not empty")
    if lengths.min() < 1 or int(lengths.sum()) != tokens.size:
        raise PlanError("lengths does not add up to the tokens")
    if lengths.max() > model.config.positions:
        raise PlanError("lengths holds more tokens than the model has positions")
    if tokens.min() < 0 or tokens.max() >= model.config.vocab_size:
        raise PlanError("tokens holds an id that the model does not know")
    if plan.pooling not in ("mean", "cls", "last"):
        raise PlanError("pooling must be mean, cls or last")
    counts: list[int] = lengths.tolist()
    hidden = model.forward(torch.from_numpy(tokens.astype(np.int64)).to(model.device), counts)
    vectors = pool_texts(hidden, counts, plan.pooling).cpu().numpy()
    return EncodeResult(step=plan.step, vectors=vectors, forward_s=perf_counter() - started)
