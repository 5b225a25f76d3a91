"""The engine's options, written once: a command with an `engine_options` parameter offers them all as flags.

Names, types and defaults are those of `EngineConfig`; the table below adds what a reader of `--help` needs.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Annotated, Any, TypeAlias, get_type_hints

import msgspec
import typer

from radixrt.cli import combinations, grammar_options, share_options
from radixrt.config import EngineConfig

EngineOptions: TypeAlias = dict[str, Any]
"""Keyword arguments of `Engine` and `EngineConfig`, all but the model."""

MODEL, ENGINE, CACHE, SCHEDULER = (f"Options of the {part}" for part in ("model", "engine", "cache", "scheduler"))

FLAGS: dict[str, Any] = {
    "served_model_name": typer.Option(
        "--served-model-name",
        metavar="NAME",
        help="Name to serve the model under.",
        rich_help_panel=MODEL,
        show_default="as given",
    ),
    "tokenizer": typer.Option(
        "--tokenizer",
        metavar="PATH",
        help="A tokenizer.json, or a directory that holds one.",
        rich_help_panel=MODEL,
        show_default="the model's own",
    ),
    "chat_template": typer.Option(
        "--chat-template",
        metavar="PATH",
        help="A file that holds a Jinja chat template.",
        rich_help_panel=MODEL,
        show_default="the model's own",
    ),
    "context_length": typer.Option(
        "--context-length",
        "--max-model-len",
        metavar="N",
        min=1,
        help="Most tokens of one prompt with its answer; also --max-model-len.",
        rich_help_panel=MODEL,
        show_default="the model's own",
    ),
    "pooling": typer.Option(
        "--pooling",
        help="How hidden states become an embedding; auto: as the model's files say, else mean for an encoder and last "
        "for a decoder.",
        rich_help_panel=MODEL,
    ),
    "load_format": typer.Option(
        "--load-format",
        help="dummy: random weights in the shape of MODEL, a directory with config.json, llama-3-8b, qwen3-8b or "
        "qwen3-30b-a3b: to measure speed.",
        rich_help_panel=MODEL,
    ),
    "dtype": typer.Option(
        "--dtype",
        help="Number type of activations; auto: bfloat16 where GPU or CPU multiply it natively, else float32; "
        "for an encoder float32.",
        rich_help_panel=ENGINE,
    ),
    "device": typer.Option("--device", help="auto: a GPU where torch finds one, else the CPU.", rich_help_panel=ENGINE),
    "attention": typer.Option(
        "--attention",
        "--attention-backend",
        help="Kernels: auto: the device's own; torch: plain; triton: Triton's, on GPUs; flashinfer: its attention.",
        rich_help_panel=ENGINE,
    ),
    "weights": typer.Option(
        "--weights",
        help="Form of the matrices: auto: as the file is quantized; int8, int4: packed when loaded; float32: dense, "
        "exact and slow.",
        rich_help_panel=ENGINE,
    ),
    "threads": typer.Option(
        "--threads",
        metavar="N",
        min=1,
        help="Compute threads of the model runner.",
        rich_help_panel=ENGINE,
        show_default="OMP_NUM_THREADS, else the usable cores",
    ),
    "tp": typer.Option(
        "--tp",
        "--tensor-parallel-size",
        metavar="N",
        min=1,
        help="Split the model over N ranks, a process each.",
        rich_help_panel=ENGINE,
    ),
    "log_level": typer.Option("--log-level", help="debug also shows tracebacks of errors.", rich_help_panel=ENGINE),
    "log_format": typer.Option("--log-format", help="json: one object a line.", rich_help_panel=ENGINE),
    "start_timeout_s": typer.Option(
        "--start-timeout-s",
        metavar="SECONDS",
        min=1,
        help="Give up when the model is not loaded after so long.",
        rich_help_panel=ENGINE,
    ),
    "kv_dtype": typer.Option(
        "--kv-dtype",
        help="Number type of the KV cache; auto: bfloat16 where the CPU multiplies it natively, else float16, under "
        "--dtype float32 float32; int8: half the memory of 16 bits.",
        rich_help_panel=CACHE,
    ),
    "kv_tokens": typer.Option(
        "--kv-tokens",
        metavar="N",
        min=1,
        help="Tokens that the KV cache holds.",
        rich_help_panel=CACHE,
        show_default="from free memory",
    ),
    "prefix_cache": typer.Option(
        " /--no-prefix-cache",
        help="Forget what was computed once a request is done, instead of keeping it in the tree.",
        show_default=False,
        rich_help_panel=CACHE,
    ),
    "share_from": typer.Option(
        "--share-from",
        metavar="N",
        min=1,
        help="Token reads that reading a prefix once for several sequences must spare.",
        rich_help_panel=CACHE,
    ),
    "cache_dir": typer.Option(
        "--cache-dir",
        metavar="DIRECTORY",
        help="Keep what the KV cache has no room for in this directory, and be warm at the next start.",
        show_default=False,
        rich_help_panel=CACHE,
    ),
    "cache_dir_bytes": typer.Option(
        "--cache-dir-bytes",
        metavar="BYTES",
        min=1,
        help="Most bytes in the cache directory.",
        show_default="8 GiB",
        rich_help_panel=CACHE,
    ),
    "cache_host_bytes": typer.Option(
        "--cache-host-bytes",
        metavar="BYTES",
        min=0,
        help="Keep so many bytes of it in memory, in front of the directory if there is one; 0: none.",
        rich_help_panel=CACHE,
    ),
    "eviction": typer.Option(
        "--eviction",
        help="Which cached text goes first: lru, lfu, slru, priority (of the requests), cost (of computing it again).",
        rich_help_panel=CACHE,
    ),
    "pin_quota": typer.Option(
        "--pin-quota",
        metavar="N",
        min=0,
        help="Most tokens that one tenant may pin.",
        rich_help_panel=CACHE,
        show_default="a quarter of the pool",
    ),
    "low_watermark": typer.Option(
        "--low-watermark",
        metavar="SHARE",
        min=0,
        max=1,
        help="Evict ahead of need when less than this share of the KV cache is free ...",
        rich_help_panel=CACHE,
    ),
    "high_watermark": typer.Option(
        "--high-watermark", metavar="SHARE", min=0, max=1, help="... until this share is.", rich_help_panel=CACHE
    ),
    "check_every_s": typer.Option(
        "--check-every-s",
        metavar="SECONDS",
        min=0,
        help="Prove the cache's invariants so often, in at most 2 % of the time; 0: never.",
        rich_help_panel=CACHE,
    ),
    "kv_events": typer.Option(
        "--kv-events",
        metavar="ENDPOINT",
        help="Publish what enters and leaves the prefix tree, for routers (ZeroMQ PUB, e.g. tcp://127.0.0.1:5557).",
        rich_help_panel=CACHE,
        show_default="off",
    ),
    "kv_events_replay": typer.Option(
        "--kv-events-replay",
        metavar="ENDPOINT",
        help="Where events already published can be asked for.",
        rich_help_panel=CACHE,
        show_default="the port after --kv-events",
    ),
    "policy": typer.Option(
        "--policy",
        help="Who goes first: lpm, the longest cached prefix (with ageing); fcfs, who came first. Before that count, "
        "under both: priority, fair shares, and timeouts of which half has passed.",
        rich_help_panel=SCHEDULER,
    ),
    "max_wait_s": typer.Option(
        "--max-wait-s",
        metavar="SECONDS",
        min=0,
        help="Under lpm, who has waited so long goes before all others of the same priority and share.",
        rich_help_panel=SCHEDULER,
    ),
    "fair": typer.Option(
        " /--no-fair",
        help="Let one tenant's (or cache salt's) thousand waiting requests go before another's one.",
        show_default=False,
        rich_help_panel=SCHEDULER,
    ),
    "max_num_seqs": typer.Option(
        "--max-num-seqs", metavar="N", min=1, help="Most sequences in one step.", rich_help_panel=SCHEDULER
    ),
    "max_num_batched_tokens": typer.Option(
        "--max-num-batched-tokens",
        metavar="N",
        min=1,
        help="Most tokens in one step, decoding and prefill together.",
        rich_help_panel=SCHEDULER,
    ),
    "max_waiting": typer.Option(
        "--max-waiting",
        metavar="N",
        min=1,
        help="Most requests that may wait; the next one is refused.",
        rich_help_panel=SCHEDULER,
    ),
    "lookahead": typer.Option(
        "--lookahead",
        min=0,
        metavar="N",
        help="Steps planned ahead of the one whose tokens are not known yet.",
        rich_help_panel=SCHEDULER,
    ),
    "max_drafts": typer.Option(
        "--max-drafts",
        min=0,
        metavar="N",
        help="Most tokens of a sequence that are guessed and verified in one step; 0: one token a step.",
        rich_help_panel=SCHEDULER,
    ),
    "draft_sources": typer.Option(
        "--draft-sources",
        metavar="LIST",
        help="Where guesses come from: forced (by a constraint), tree (what followed before), model.",
        rich_help_panel=SCHEDULER,
    ),
    "draft_model": typer.Option(
        "--draft-model",
        metavar="NAME",
        help="A small model of the same vocabulary that guesses for the large one.",
        rich_help_panel=SCHEDULER,
        show_default="none",
    ),
    "max_draft_rows": typer.Option(
        "--max-draft-rows",
        metavar="N",
        min=0,
        help="Steps of more sequences carry no guesses but forced ones.",
        rich_help_panel=SCHEDULER,
        show_default="while they pay, as measured",
    ),
    "grammar_backend": typer.Option(
        "--grammar-backend",
        help="Library that is asked first for a constraint that names none.",
        rich_help_panel=grammar_options.PANEL,
    ),
    "check": typer.Option(
        "--check", help="Prove the cache's invariants after every step (slow; for debugging).", rich_help_panel=CACHE
    ),
}

CONTEXT = "engine_context"
"""Where typer puts what it knows of the command line, for a command that does not ask for it."""
ENGINE_FLAGS = (*FLAGS, share_options.NAME, *grammar_options.NAMES)
"""Parameters that `engine_options` is made of."""

Command: TypeAlias = Callable[..., None]


def with_engine_options(command: Command) -> Command:
    """`command` with its keyword-only parameter `engine_options: EngineOptions` spread out into one flag a field."""
    hints = get_type_hints(command, include_extras=True)
    own = [
        p.replace(annotation=hints[p.name])
        for p in inspect.signature(command).parameters.values()
        if p.name != "engine_options"
    ]
    fields = {field.name: field for field in msgspec.structs.fields(EngineConfig)}
    spread = [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=fields[name].default,
            annotation=Annotated[fields[name].type, flag],
        )
        for name, flag in FLAGS.items()
    ]
    spread += [share_options.parameter(SCHEDULER), *grammar_options.parameters()]
    context = next((p for p in own if p.annotation is typer.Context), None)
    asked = inspect.Parameter(CONTEXT, inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)

    @wraps(command)
    def spread_command(**values: Any) -> None:
        combinations.check(
            values[context.name] if context is not None else values.pop(CONTEXT), values, combinations.ENGINE
        )
        engine_options = {name: values.pop(name) for name in FLAGS}
        engine_options |= share_options.take(values) | grammar_options.take(values)
        command(**values, engine_options=engine_options)

    if context is None:
        own.append(asked)
    spread_command.__signature__ = inspect.Signature(own + spread)  # type: ignore[attr-defined]
    spread_command.__annotations__ = {p.name: p.annotation for p in own + spread}
    return spread_command
