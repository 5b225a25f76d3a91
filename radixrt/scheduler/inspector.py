"""Looking at the scheduler from outside: counters, gauges and the tree; nothing is changed but by flush and unpin."""

from __future__ import annotations

from collections.abc import Callable, Hashable

from radixrt.errors import RadixrtError
from radixrt.messages import Namespace, SchedulerAnswer, SchedulerQuery, TreeNode, TreeView
from radixrt.results import EngineStats, TierStats
from radixrt.scheduler.core import Scheduler
from radixrt.scheduler.memory import pin_info, unpin
from radixrt.tiers.keys import CHUNK


def answer(scheduler: Scheduler, query: SchedulerQuery) -> SchedulerAnswer:
    """The answer to a query; everything but `stats` is about the query's namespace alone."""
    if query.what == "tree":
        return SchedulerAnswer(query_id=query.query_id, tree=tree_view(scheduler, query.namespace))
    if query.what == "flush":
        where, owner = _flushed(query.namespace), query.namespace.owner
        scheduler.drafter.forget(where)
        scheduler.tiering.clear(None if owner.tenant is None else owner)
        freed = scheduler.cache.tree.clear(where)
        return SchedulerAnswer(query_id=query.query_id, freed_tokens=freed)
    if query.what == "unpin":
        try:
            return SchedulerAnswer(query_id=query.query_id, pin=unpin(scheduler.cache, query.namespace, query.pin_id))
        except RadixrtError as error:
            return SchedulerAnswer(query_id=query.query_id, error=error.info())
    return SchedulerAnswer(query_id=query.query_id, stats=snapshot(scheduler))


def snapshot(scheduler: Scheduler) -> EngineStats:
    """Counters and gauges as they stand. `grammar_*` and `check*` are filled in by the loop."""
    cache, tree, stats, drafter = scheduler.cache, scheduler.cache.tree, scheduler.stats, scheduler.drafter
    cache.pins.expire()
    return EngineStats(
        running=len(scheduler.rows.running) + scheduler.selects.started,
        waiting=len(scheduler.rows.waiting) + len(scheduler.compiling) + scheduler.selects.unstarted,
        kv_tokens=cache.capacity,
        kv_used=cache.capacity - cache.available,
        kv_cached=tree.evictable,
        preemptions=scheduler.rows.retractions,
        evicted_tokens=tree.evicted,
        evictions=tree.evictions,
        eviction_policy=tree.policy.name,
        cache_nodes=tree.nodes,
        pinned_tokens=cache.pins.tokens,
        pins=len(cache.pins),
        pins_broken=cache.pins.broken,
        hit_tokens=dict(cache.hit_tokens),
        lock_s=scheduler.rows.locked.pair,
        shared_read_tokens=stats.shared_read_tokens,
        prompt_tokens=stats.prompt_tokens,
        cached_tokens=stats.cached_tokens,
        restored_tokens=stats.restored_tokens,
        tier=tier_stats(scheduler),
        generation_tokens=stats.generation_tokens,
        embedded_texts=scheduler.embeds.texts,
        draft_tokens=sum(drafter.proposed.values()),
        accepted_draft_tokens=sum(drafter.accepted.values()),
        drafts_by_source={name: (count, drafter.accepted[name]) for name, count in drafter.proposed.items()},
        draft_index_tokens=drafter.tree.tokens if drafter.tree is not None else 0,
        steps=stats.steps,
        plan_s=stats.plan_s,
        step_s=stats.step_s,
        mask_s=stats.mask_s,
        mask_wait_s=stats.mask_wait_s,
        step_parts=dict(stats.parts),
        finished=dict(stats.finished),
        queue_s=stats.queue.pair,
        ttft_s=stats.first_token.pair,
        inter_token_s=stats.inter_token.pair,
        total_s=stats.total.pair,
    )


def tier_stats(scheduler: Scheduler) -> TierStats | None:
    """What the tier holds and did; None where there is none."""
    tiering = scheduler.tiering
    if tiering.state is None:
        return None
    counts = tiering.counts
    return TierStats(
        kind=tiering.state.kind,
        tokens=len(tiering.index) * CHUNK,
        used_bytes=tiering.used_bytes,
        capacity_bytes=tiering.state.capacity_bytes,
        stored=counts.stored,
        refused=counts.refused,
        restored=counts.restored,
        prefetches=counts.prefetches,
        prefetch_hits=counts.hits,
        given_up=counts.given_up,
        errors=counts.errors,
    )


def tree_view(scheduler: Scheduler, namespace: Namespace, limit: int = 10_000, head: int = 48) -> TreeView:
    """A namespace's tree in depth-first order: at most `limit` nodes, the first `head` token ids of each."""
    cache, now = scheduler.cache, scheduler.clock()
    pins = [pin_info(cache, pin) for pin in cache.pins.of(namespace)]
    nodes: list[TreeNode] = []
    tokens = seen = 0
    for depth, node in cache.tree.walk(lambda key: key == namespace):
        if node.is_root:
            continue
        seen += 1
        tokens += len(node)
        if len(nodes) == limit:
            continue
        nodes.append(
            TreeNode(
                depth=depth,
                start=node.start,
                tokens=len(node),
                hits=node.hits,
                locks=node.locks - node.pins,
                pins=node.pins,
                age_s=max(now - node.last_used, 0.0),
                head=node.tokens[:head].tolist(),
            )
        )
    return TreeView(
        nodes=nodes,
        tokens=tokens,
        truncated=seen > len(nodes),
        pins=pins,
        pinned_tokens=cache.pins.pinned(namespace.owner),
        pin_quota=cache.pins.quota,
    )


def _flushed(asking: Namespace) -> Callable[[Hashable], bool] | None:
    """A tenant's flush drops what is its own, under any salt; without tenants everything goes."""
    if asking.tenant is None:
        return None
    return lambda key: isinstance(key, Namespace) and key.owner == asking.owner
