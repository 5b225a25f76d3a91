"""One frozen config a process. `EngineConfig` is the user's; the others are made from it once, in `engine.py`."""

from __future__ import annotations

from typing import Literal

import msgspec

from radixrt.errors import StartupError
from radixrt.limits import Limits

LogFormat = Literal["text", "json"]
DType = Literal["auto", "float32", "bfloat16"]
Weights = Literal["auto", "float32", "bf16", "int8", "int4"]
KvDType = Literal["auto", "float32", "bfloat16", "float16", "int8"]
DeviceName = Literal["auto", "cpu", "cuda"]
Attention = Literal["auto", "triton", "torch", "flashinfer"]
LoadFormat = Literal["auto", "dummy"]
PoolingChoice = Literal["auto", "mean", "cls", "last"]
Eviction = Literal["lru", "lfu", "slru", "priority", "cost"]


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What a user may choose. Names follow the peers' flags (`--served-model-name`, `--max-num-seqs`)."""

    model: str
    """Short name, local directory, GGUF file or hub name."""
    served_model_name: str | None = None
    tokenizer: str | None = None
    """A tokenizer.json, or a directory that holds one, instead of the model's own."""
    chat_template: str | None = None
    """A file that holds a Jinja template, instead of the model's own."""
    dtype: DType = "auto"
    """Number type of activations. auto: bfloat16 where the GPU, or the CPU, multiplies it natively, else float32; for
    an encoder always float32."""
    kv_dtype: KvDType = "auto"
    """Number type of cached keys and values. auto: on a CPU bfloat16 where it multiplies that natively, float16
    elsewhere, float32 under dtype float32; without the compiled decoder and on a GPU that of activations, which is then
    the only one. int8: one float32 scale for each head of each token."""
    load_format: LoadFormat = "auto"
    """dummy: random weights, made on the device; `model` is then a directory with config.json, or llama-3-8b, qwen3-8b,
    qwen3-30b-a3b (`radixrt.checkpoint.shapes`)."""
    device: DeviceName = "auto"
    """auto: a GPU where torch finds one, else the CPU."""
    attention: Attention = "auto"
    """Which kernels compute: auto: the device's own; torch: plain torch, the reference; triton: Triton's, on a GPU;
    flashinfer: the same with FlashInfer's attention, where it is installed (not tried on a GPU yet)."""
    weights: Weights = "auto"
    """In which form matrices are stored and multiplied, whatever dtype says of activations. auto: as the file is
    quantized (Q4_0, Q4_1 and Q8_0 exactly); else bf16, or float32 where dtype is float32. int8 and int4 need the
    compiled kernels. float32: dense, through torch's products, the slow and exact way."""
    threads: int | None = None
    """Compute threads of the runner; None: OMP_NUM_THREADS, else the cores that affinity and cgroup allow."""
    tp: int = 1
    """Ranks that hold the model together, each a process: NCCL between GPUs, gloo between CPU processes."""
    context_length: int | None = None
    """None: the model's own."""
    pooling: PoolingChoice = "auto"
    """How hidden states become an embedding. auto: as the model's files say, else mean for an encoder and last for a
    decoder."""
    kv_tokens: int | None = None
    """Slots of the KV pool; None: from free memory."""
    max_num_seqs: int = 64
    """Rows in one step."""
    max_num_batched_tokens: int = 512
    """Token budget of one step, decode rows and prefill chunks together."""
    max_waiting: int = 1024
    """Requests that may wait; one more is refused (503)."""
    policy: Literal["lpm", "fcfs"] = "lpm"
    """Order of waiting requests of one priority and share: longest cached prefix first, or first come first served.
    Under each, a lower priority number goes first, and a request goes to the front when half its timeout has passed."""
    prefix_cache: bool = True
    share_from: int = 256
    """Attention reads a prefix once for all rows of a step that share it where that spares at least so many token
    reads; below, and everywhere if the number is huge, each row reads its own. The text is the same."""
    cache_dir: str | None = None
    """Directory that keeps what the pool has no room for, also beyond the engine's end; one engine at a time."""
    cache_dir_bytes: int = 8 << 30
    """Most bytes in it."""
    cache_host_bytes: int = 0
    """The same in the runner's memory, in front of the directory if there is one; 0: not at all."""
    eviction: Eviction = "lru"
    """Which cached text goes first when room is needed (`radixrt.cache.eviction`)."""
    pin_quota: int | None = None
    """Tokens that one tenant may pin; None: a quarter of the pool."""
    low_watermark: float = 0.0
    """With fewer free slots than this share of the pool, cached text is evicted ahead of need ..."""
    high_watermark: float = 0.0
    """... until this share is free. 0 and 0: only what is needed, when it is."""
    check_every_s: float = 1.0
    """Prove the cache's invariants so often, at most 2 % of the time; 0: never. One that is broken ends the engine."""
    kv_events: str | None = None
    """ZeroMQ endpoint on which the tree's changes are published for routers; None: none are."""
    kv_events_replay: str | None = None
    """Endpoint that answers for events already published; None: made from `kv_events` (tcp: the next port)."""
    max_wait_s: float = 10.0
    """Under lpm, ageing: who has waited this long goes before all of the same priority and share who have not."""
    fair: bool = True
    """Tenants (without API keys: cache salts) that wait at the same time get equal shares of the computed tokens."""
    namespace_weights: dict[str, float] = {}
    """Shares other than 1, by tenant, or by cache salt for requests without a tenant."""
    lookahead: int = 1
    """Steps planned ahead of the one whose tokens are not known yet; 0: one step at a time."""
    max_drafts: int = 8
    """Tokens that are guessed, at most so many a row, and verified with their predecessor in one step; 0: every token
    has its own step. The text is the same."""
    draft_sources: str = "forced,tree"
    """Where guesses come from, in order of preference, separated by commas: forced (by the constraint), tree (what
    followed the row's last tokens before, in its namespace), model (of `draft_model`)."""
    draft_model: str | None = None
    """A small model with the same vocabulary that guesses; named like `model`. It adds `model` to the sources."""
    max_draft_rows: int | None = None
    """Steps of more rows carry no guesses but forced ones; with it no step is timed, and the same requests take the
    same steps. None: while guesses pay, by the measured cost of a step."""
    check: bool = False
    """Prove the cache's invariants after every step (debugging; tests set it)."""
    log_level: Literal["debug", "info", "warning", "error"] = "warning"
    log_format: LogFormat = "text"
    """Log lines of all processes, on stderr, as text or as one JSON object a line."""
    start_timeout_s: float = 300.0
    grammar: Limits = Limits()
    """What a constraint may cost (`--grammar-...`)."""
    grammar_backend: Literal["auto", "llguidance", "xgrammar", "outlines"] = "auto"
    """Library that a constraint which names none is given first; what it cannot enforce goes on as with auto."""


DRAFT_SOURCES = ("forced", "tree", "model")


def draft_sources(config: EngineConfig) -> tuple[str, ...]:
    """The sources of guesses in order. StartupError for a name that is none, or a model that is not there."""
    names = tuple(dict.fromkeys(name.strip() for name in config.draft_sources.split(",") if name.strip()))
    unknown = [name for name in names if name not in DRAFT_SOURCES]
    if unknown:
        raise StartupError(
            f"unknown source of drafts {unknown[0]!r}: there are {', '.join(DRAFT_SOURCES)}", param="draft_sources"
        )
    if "model" in names and config.draft_model is None:
        raise StartupError("drafts from a model need one: name it with --draft-model", param="draft_model")
    if config.draft_model is not None and "model" not in names:
        names = (*names, "model")
    return names


class TokenizerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Config of process 1. Addresses are ZeroMQ endpoints."""

    model_path: str
    model_name: str
    tokenizer: str | None
    chat_template: str | None
    client_address: str
    scheduler_in: str
    """Tokenizer -> scheduler."""
    scheduler_out: str
    """Scheduler -> tokenizer."""
    ipc_dir: str
    log_level: str
    log_format: LogFormat = "text"


class SchedulerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Config of process 2."""

    model_path: str
    model_name: str
    tokenizer: str | None
    scheduler_in: str
    scheduler_out: str
    runner_address: str
    ipc_dir: str
    context_length: int | None
    max_num_seqs: int
    max_num_batched_tokens: int
    max_waiting: int
    policy: str
    prefix_cache: bool
    share_from: int = 256
    pooling: PoolingChoice = "auto"
    eviction: str = "lru"
    pin_quota: int | None = None
    low_watermark: float = 0.0
    high_watermark: float = 0.0
    check_every_s: float = 0.0
    kv_events: str | None = None
    kv_events_replay: str | None = None
    max_wait_s: float
    fair: bool
    namespace_weights: dict[str, float]
    lookahead: int
    max_drafts: int
    draft_sources: tuple[str, ...] = ("forced", "tree")
    max_draft_rows: int | None = None
    grammar: Limits = Limits()
    grammar_backend: str = "auto"
    check: bool
    log_level: str
    log_format: LogFormat = "text"


class RunnerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Config of process 3."""

    model_path: str
    tokenizer: str | None = None
    """As in EngineConfig: ids that this tokenizer does not know are never sampled."""
    dtype: str
    load_format: LoadFormat = "auto"
    device: DeviceName = "auto"
    attention: Attention = "auto"
    weights: Weights = "auto"
    kv_dtype: KvDType = "auto"
    threads: int
    tp: int = 1
    rank: int = 0
    """Which of the `tp` ranks this process is; the scheduler talks to rank 0."""
    context_length: int | None
    kv_tokens: int | None
    cache_dir: str | None = None
    cache_dir_bytes: int = 0
    cache_host_bytes: int = 0
    draft_path: str | None = None
    """Directory or file of the draft model."""
    runner_address: str
    ipc_dir: str
    log_level: str
    log_format: LogFormat = "text"
