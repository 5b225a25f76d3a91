"""From a config to a runner that can step: threads, model, KV pool, a first step to warm up."""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec
import numpy as np
import torch

from radixrt.checkpoint import Checkpoint, open_checkpoint
from radixrt.config import RunnerConfig
from radixrt.errors import ModelError, StartupError
from radixrt.messages import RowOpen, RunnerReady, StepMasks, StepPlan
from radixrt.models import CausalLM, load_model
from radixrt.models.blocks import Decoder
from radixrt.models.dummy import dummy_model
from radixrt.runner.backend import ahead_stepper, check_kernels, choose_device, choose_kernels, device_mover
from radixrt.runner.draft import Loaded as LoadedDraft
from radixrt.runner.draft import load_draft
from radixrt.runner.group import DistributedGroup
from radixrt.runner.packed import hash_ahead, packed_file
from radixrt.runner.pool import PoolShape, allocate_pool, free_memory, pool_tokens
from radixrt.runner.precision import COMPILED_ONLY, Precision, choose, describe, slow_path
from radixrt.runner.ranks import Begin, RankedModel, Ranks, rendezvous
from radixrt.runner.room import check_room
from radixrt.runner.step import Stepper
from radixrt.runner.tier import Mover, TierWorker
from radixrt.runner.tier_open import hash_weights, open_tier
from radixrt.runner.tier_ranks import RankChunks, RankedMover

log = logging.getLogger(__name__)

Progress = Callable[[str, float], None]
"""Called with a stage and the fraction of it that is done."""


@dataclass(frozen=True)
class Part:
    """What this process holds of a model: all of it, or one rank's part."""

    checkpoint: Checkpoint
    model: Decoder
    precision: Precision
    shape: PoolShape
    context_length: int
    kv_tokens: int
    """Slots that its pool can have."""
    group: DistributedGroup | None
    draft: LoadedDraft | None


def load(
    config: RunnerConfig, progress: Progress, checkpoint: Checkpoint | None = None
) -> tuple[Stepper, RunnerReady, TierWorker | None]:
    """Everything before the first plan. Raises RadixrtError where the model or its pool cannot be had."""
    checkpoint = open_checkpoint(Path(config.model_path)) if checkpoint is None else checkpoint
    ranks = Ranks(config) if config.tp > 1 else None
    with ThreadPoolExecutor(2) as pool:
        vocabulary = pool.submit(_vocabulary_size, checkpoint, config.tokenizer)
        hashing = pool.submit(hash_weights, config, checkpoint)
        part = load_part(config, progress, checkpoint)
        known = vocabulary.result()
        hashed = hashing.result()
    facts, shape, tokens = checkpoint.config, part.shape, part.kv_tokens
    if ranks is not None and part.group is not None:
        progress("waiting for the other ranks", 0.0)
        tokens = min(tokens, ranks.gather())
        ranks.tell(Begin(kv_tokens=tokens))
        part.group.join(rendezvous(config))
    kv = allocate_pool(shape, tokens, part.model.device)
    model: CausalLM = part.model
    if ranks is not None and part.group is not None:
        model = RankedModel(part.model, facts, part.group, ranks.tell)
    mover: Mover | None = None
    sizes = {
        "vocab_size": facts.vocab_size, "vocabulary": known or facts.vocab_size,
        "context_length": part.context_length,
    }  # fmt: skip
    if model.device.type == "cuda":
        ahead = ahead_stepper(model, part.model, kv, **sizes, draft=part.draft)
        stepper: Stepper = ahead
        mover = device_mover(ahead.device, part.model, kv)
    else:
        stepper = Stepper(model, kv, **sizes, draft=None if part.draft is None else part.draft.beside(tokens))
    whole = PoolShape.of(facts, shape.dtype)
    dtype, form = str(model.dtype).removeprefix("torch."), _weights_form(part.model)
    tier = open_tier(config, checkpoint, whole, dtype, form, hashed)
    if tier is not None and ranks is not None and part.group is not None:
        mover = RankedMover(kv, RankChunks(facts, part.group), ranks.tell)
    worker = TierWorker(tier, kv, mover) if tier is not None else None
    progress("warming up", 1.0)
    warm_up(stepper)
    ready = RunnerReady(
        kv_tokens=tokens,
        context_length=part.context_length,
        vocab_size=facts.vocab_size,
        dtype=dtype,
        kv_dtype=str(shape.dtype).removeprefix("torch."),
        device=str(model.device),
        threads=torch.get_num_threads(),
        description=describe(part.precision, part.model, torch.get_num_threads()),
        slow=slow_path(part.precision, model.device),
        embedding_size=facts.hidden_size,
        tier=worker.state if worker is not None else None,
    )
    if ready.slow:
        log.warning("%s", ready.slow)
    facts_only = msgspec.structs.replace(ready, tier=None)
    log.info("ready: %s, %.1f MiB of KV pool", facts_only, tokens * shape.token_bytes / 2**20)
    return stepper, ready, worker


def load_part(config: RunnerConfig, progress: Progress, checkpoint: Checkpoint | None = None) -> Part:
    """This rank's weights, and the room that is left for its pool. Raises RadixrtError as `load` does."""
    torch.set_num_threads(config.threads)
    torch.set_num_interop_threads(1)
    progress("opening the model", 0.0)
    checkpoint = open_checkpoint(Path(config.model_path)) if checkpoint is None else checkpoint
    device = choose_device(config.device, config.rank)
    group = DistributedGroup(config.rank, config.tp, device) if config.tp > 1 else None
    ops = choose_kernels(config.attention, device)
    packs = config.weights in COMPILED_ONLY or (config.weights == "auto" and checkpoint.gguf is not None)
    if packs and device.type == "cpu" and config.load_format != "dummy":
        hash_ahead(checkpoint)
    precision = choose(config, checkpoint, device, ops)
    if config.load_format == "dummy":
        progress("making random weights", 0.0)
        compiled = precision.obstacle is None
        model = dummy_model(checkpoint.config, dtype=precision.dtype, device=device, group=group, compiled=compiled)
    else:
        if device.type == "cpu":
            free = free_memory(device)
            check_room(checkpoint, precision, free_bytes=free, ranks=config.tp, kv_tokens=config.kv_tokens)
        model = load_model(
            checkpoint,
            dtype=precision.dtype,
            device=device,
            weights=precision.weights,
            progress=progress,
            group=group,
            packed_file=partial(packed_file, checkpoint),
        )
    if ops is not None:
        check_kernels(ops, model)
        model.use(ops)
    facts = model.config
    shape = PoolShape.of(facts, precision.kv)
    context_length = config.context_length or facts.context_length
    if context_length > facts.context_length:
        raise StartupError(
            f"the model's context is {facts.context_length} tokens: --context-length cannot be {context_length}"
        )
    # Ranks on CPUs share the machine's memory; each has a GPU of its own.
    draft, share = None, 1.0 if device.type == "cuda" else 1 / config.tp
    if config.draft_path is not None and config.rank == 0:
        draft = load_draft(config, checkpoint, progress, device, ops)
        share *= shape.token_bytes / (shape.token_bytes + draft.shape.token_bytes)
    free = int(free_memory(device) * share)
    tokens = pool_tokens(
        shape, wanted=config.kv_tokens, context_length=context_length, free_bytes=free, own=device.type == "cuda"
    )  # fmt: skip
    return Part(checkpoint, model, precision, shape, context_length, tokens, group, draft)


def _weights_form(model: Decoder) -> str:
    """In which form the model's matrices are multiplied, in words."""
    if model.narrow is not None:
        return model.narrow.description
    return "as loaded" if model.packed_head is None else "packed, by torch"


def warm_up(stepper: Stepper) -> None:
    """Run a small prefill and a decode step, so that the first request does not wait for what is made once.

    Writes to the first slots of the pool, which nobody owns yet, and leaves no row open.
    """
    count = min(4, stepper.limits.kv_tokens - 1, stepper.limits.context_length - 1)
    if count < 1:
        return
    with torch.inference_mode():
        stepper.run(_plain_plan([RowOpen(row=0, temperature=1.0)], [0] * count, 0), _no_masks)
        stepper.run(_plain_plan([], [-1], count), _no_masks)
    stepper.rows.clear()


def _plain_plan(opens: list[RowOpen], tokens: list[int], at: int) -> StepPlan:
    """One row that continues at position and slot `at` and has all before it in the slots from 0."""
    places = np.arange(at, at + len(tokens), dtype=np.int32)
    return StepPlan(
        step=0,
        opens=opens,
        closes=[],
        rows=np.zeros(1, np.int32),
        new_lens=np.array([len(tokens)], np.int32),
        tokens=np.array(tokens, np.int32),
        positions=places,
        slots=places,
        private_lens=np.array([at], np.int32),
        private_slots=np.arange(at, dtype=np.int32),
        spans=np.zeros((0, 4), np.int32),
        span_slots=np.zeros(0, np.int32),
        sample=np.ones(1, np.uint8),
        drafts=np.zeros(1, np.int32),
        masked=np.zeros(0, np.int32),
        scores=[],
    )


def _no_masks() -> StepMasks:
    raise RuntimeError("a warm-up step has no masks")


def _vocabulary_size(checkpoint: Checkpoint, override: str | None) -> int | None:
    """How many ids the tokenizer knows; None where the model has no tokenizer that can be read (the tokenizer process
    will say so, if anybody wants text)."""
    try:
        return checkpoint.vocabulary_size(override)
    except ModelError as error:
        log.info("the width of the logits counts as vocabulary: %s", error)
        return None
