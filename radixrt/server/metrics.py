"""Prometheus metrics: the engine's counters as they are when scraped, and HTTP requests by route template."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric, SummaryMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector
from starlette.types import Scope

from radixrt.results import EngineStats, TierStats

METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
FINISH_REASONS = ("stop", "length", "embed", "abort", "error")

GAUGES = {
    "requests_running": ("running", "Requests with rows in the current step."),
    "requests_waiting": ("waiting", "Requests that wait for their first step."),
    "kv_tokens": ("kv_tokens", "Slots of the KV pool."),
    "kv_used_tokens": ("kv_used", "Slots that running rows hold or lock."),
    "kv_cached_tokens": ("kv_cached", "Slots in the prefix tree that nobody locks."),
    "cache_nodes": ("cache_nodes", "Nodes of the prefix tree."),
    "cache_pins": ("pins", "Pins that stand."),
    "cache_pinned_tokens": ("pinned_tokens", "Tokens that they keep in the prefix tree."),
    "draft_index_tokens": ("draft_index_tokens", "Tokens that guesses from the tree are searched in."),
}
COUNTERS = {
    "preemptions": ("preemptions", "Rows retracted under pressure, to be resumed."),
    "prefix_queries_tokens": ("prompt_tokens", "Prompt tokens looked up in the prefix tree."),
    "prefix_hits_tokens": ("cached_tokens", "Prompt tokens found there."),
    "cache_pins_broken": ("pins_broken", "Pins that gave way before their time so that a request could go on."),
    "shared_attention_saved_tokens": (
        "shared_read_tokens",
        "Reads of cached tokens spared by reading a shared span once for all its rows.",
    ),
    "cache_checks": ("checks", "Proofs of the cache's invariants."),
    "cache_check_seconds": ("check_s", "Time spent on them."),
    "generation_tokens": ("generation_tokens", "Tokens generated."),
    "embedded_texts": ("embedded_texts", "Texts that a vector was made of."),
    "steps": ("steps", "Steps of the model runner."),
    "plan_seconds": ("plan_s", "Time spent planning steps."),
    "step_seconds": ("step_s", "Time spent in the model runner."),
    "mask_fill_seconds": ("mask_s", "Time spent filling token masks."),
    "mask_wait_seconds": ("mask_wait_s", "Time that steps waited for token masks."),
    "grammar_compiles": ("grammar_compiles", "Constraints compiled."),
    "grammar_refusals": ("grammar_refusals", "Constraints refused: malformed, above a limit, or not enforced."),
    "grammar_workers_lost": ("grammar_workers_lost", "Compile workers killed or crashed over a constraint."),
    "grammar_cache_hits": ("grammar_cache_hits", "Constraints found compiled."),
    "grammar_compile_seconds": ("grammar_compile_s", "Time spent compiling constraints."),
}
TIER_GAUGES = {
    "tokens": ("tokens", "Tokens that the tier holds."),
    "used_bytes": ("used_bytes", "Bytes that it takes."),
    "capacity_bytes": ("capacity_bytes", "Bytes that it may take."),
}
TIER_COUNTERS = {
    "stored_tokens": ("stored", "Tokens copied from the pool to the tier."),
    "refused_tokens": ("refused", "Tokens that could not be: the disk is full or too slow."),
    "restored_tokens": ("restored", "Tokens brought back into the pool."),
    "prefetches": ("prefetches", "Prefetches begun for waiting requests."),
    "prefetch_hits": ("prefetch_hits", "Of these, those that brought all they were asked for."),
    "prefetches_given_up": ("given_up", "Requests that stopped waiting for a prefetch, since computing was faster."),
    "errors": ("errors", "Failed calls of the tier, broken chunks included."),
}
SUMMARIES = {
    "queue_seconds": ("queue_s", "From arrival to the first planned step."),
    "time_to_first_token_seconds": ("ttft_s", "From arrival to the first token."),
    "inter_token_seconds": ("inter_token_s", "Between two tokens of a sample."),
    "request_seconds": ("total_s", "From arrival to the end."),
    "cache_lock_seconds": ("lock_s", "Time that rows held their paths in the prefix tree."),
}


class HttpMetrics:
    """Requests answered by this server. One a server, with its own registry: nothing global."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._requests = Counter(
            "radixrt_http_requests",
            "HTTP requests by method, route template and status code.",
            ["method", "route", "code"],
            registry=self.registry,
        )

    def count(self, scope: Scope, status: int) -> None:
        self._requests.labels(*route_of(scope), str(status)).inc()


def route_of(scope: Scope) -> tuple[str, str]:
    """Method and route template of a request. Neither a client's path nor an invented method may become a label: each
    new one would live for ever."""
    method = scope["method"] if scope["method"] in METHODS else "other"
    return method, getattr(scope.get("route"), "path", "unmatched")


def exposition(http: HttpMetrics, stats: EngineStats | None) -> tuple[bytes, str]:
    """The metrics page and its content type; without `stats` the engine is not there (`radixrt_up` is 0)."""
    registry = CollectorRegistry()
    registry.register(_EngineCollector(stats))
    return generate_latest(registry) + generate_latest(http.registry), CONTENT_TYPE_LATEST


def _tier(tier: TierStats) -> Iterator[Metric]:
    for name, (field, text) in TIER_GAUGES.items():
        yield GaugeMetricFamily(f"radixrt_tier_{name}", text, value=getattr(tier, field))
    for name, (field, text) in TIER_COUNTERS.items():
        yield CounterMetricFamily(f"radixrt_tier_{name}", text, value=getattr(tier, field))


class _EngineCollector(Collector):
    def __init__(self, stats: EngineStats | None) -> None:
        self._stats = stats

    def collect(self) -> Iterator[Metric]:
        stats = self._stats
        yield GaugeMetricFamily("radixrt_up", "1 while the engine serves.", value=0.0 if stats is None else 1.0)
        if stats is None:
            return
        for name, (field, text) in GAUGES.items():
            yield GaugeMetricFamily(f"radixrt_{name}", text, value=getattr(stats, field))
        usage = stats.kv_used / stats.kv_tokens if stats.kv_tokens else 0.0
        yield GaugeMetricFamily("radixrt_kv_usage_ratio", "Share of the KV pool that running rows hold.", value=usage)
        for name, (field, text) in COUNTERS.items():
            yield CounterMetricFamily(f"radixrt_{name}", text, value=getattr(stats, field))
        for name, value, text in (
            ("evicted_tokens", stats.evicted_tokens, "Cached tokens dropped for new ones, by eviction policy."),
            ("evictions", stats.evictions, "Nodes, or tails of nodes, that were dropped for new ones."),
        ):
            evicted = CounterMetricFamily(f"radixrt_{name}", text, labels=["policy"])
            evicted.add_metric([stats.eviction_policy], value)
            yield evicted
        hits = CounterMetricFamily(
            "radixrt_cache_hit_tokens",
            "Prompt tokens found when a request began: in the tree, in flight (a step computes them), or in a tier.",
            labels=["source"],
        )
        for source in sorted({"tree", "in_flight", *stats.hit_tokens}):
            hits.add_metric([source], stats.hit_tokens.get(source, 0))
        yield hits
        prompt = CounterMetricFamily(
            "radixrt_prompt_tokens", "Prompt tokens by where they came from.", labels=["source"]
        )
        prompt.add_metric(["cached"], stats.cached_tokens - stats.restored_tokens)
        prompt.add_metric(["restored"], stats.restored_tokens)
        prompt.add_metric(["computed"], stats.prompt_tokens - stats.cached_tokens)
        yield prompt
        if stats.tier is not None:
            yield from _tier(stats.tier)
        backends = CounterMetricFamily(
            "radixrt_grammar_backend_compiles",
            "Constraints compiled, by library.",
            labels=["backend"],
        )
        for name in sorted(stats.grammar_backends):
            backends.add_metric([name], stats.grammar_backends[name])
        yield backends
        finished = CounterMetricFamily("radixrt_requests_finished", "Requests ended, by reason.", labels=["reason"])
        for reason in sorted({*FINISH_REASONS, *stats.finished}):
            finished.add_metric([reason], stats.finished.get(reason, 0))
        yield finished
        drafts = CounterMetricFamily("radixrt_draft_tokens", "Tokens guessed and verified.", labels=["source"])
        accepted = CounterMetricFamily("radixrt_accepted_draft_tokens", "Of these, that held.", labels=["source"])
        for source, (proposed, held) in stats.drafts_by_source.items():
            drafts.add_metric([source], proposed)
            accepted.add_metric([source], held)
        yield from (drafts, accepted)
        parts = CounterMetricFamily("radixrt_step_part_seconds", "Time of the runner's steps by part.", labels=["part"])
        for part, seconds in stats.step_parts.items():
            parts.add_metric([part], seconds)
        yield parts
        for name, (field, text) in SUMMARIES.items():
            total, count = getattr(stats, field)
            yield SummaryMetricFamily(f"radixrt_{name}", text, count_value=count, sum_value=total)
