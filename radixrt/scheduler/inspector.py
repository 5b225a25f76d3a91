"""Looking at the scheduler from outside: counters, gauges and the tree; nothing is changed."""

from __future__ import annotations

from radixrt.messages import TreeNode
from radixrt.results import EngineStats, TierStats
from radixrt.scheduler.core import Scheduler
from radixrt.tiers.keys import CHUNK


def snapshot(scheduler: Scheduler) -> EngineStats:
    """Counters and gauges as they stand. `grammar_*` are the compile service's, filled in by the loop."""
    cache, tree, stats = scheduler.cache, scheduler.cache.tree, scheduler.stats
    return EngineStats(
        running=len(scheduler.rows.running) + scheduler.selects.started,
        waiting=len(scheduler.rows.waiting) + len(scheduler.compiling) + scheduler.selects.unstarted,
        kv_tokens=cache.capacity,
        kv_used=cache.capacity - cache.available,
        kv_cached=tree.evictable,
        preemptions=scheduler.rows.retractions,
        evicted_tokens=tree.evicted,
        prompt_tokens=stats.prompt_tokens,
        cached_tokens=stats.cached_tokens,
        restored_tokens=stats.restored_tokens,
        tier=tier_stats(scheduler),
        generation_tokens=stats.generation_tokens,
        draft_tokens=stats.drafts,
        accepted_draft_tokens=stats.accepted_drafts,
        steps=stats.steps,
        plan_s=stats.plan_s,
        step_s=stats.step_s,
        mask_s=stats.mask_s,
        mask_wait_s=stats.mask_wait_s,
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


def tree_nodes(scheduler: Scheduler, limit: int = 10_000, head: int = 48) -> list[TreeNode]:
    """The tree in depth-first order, at most `limit` nodes, the first `head` token ids of each."""
    now = scheduler.clock()
    nodes: list[TreeNode] = []
    for depth, node in scheduler.cache.tree.walk():
        if node.is_root:
            continue
        if len(nodes) == limit:
            break
        nodes.append(
            TreeNode(
                depth=depth,
                tokens=len(node),
                hits=node.hits,
                locks=node.locks,
                age_s=max(now - node.last_used, 0.0),
                head=node.tokens[:head].tolist(),
            )
        )
    return nodes
