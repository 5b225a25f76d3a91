"""What a config and a request want of the cache's memory, in the cache's own terms: its parts, pins, reports."""

from __future__ import annotations

from radixrt.cache import Miss, Pin, PinQuota, PrefixCache, UnknownPin, Watermarks, make_eviction
from radixrt.config import SchedulerConfig
from radixrt.errors import InvalidRequest, NotFound, RadixrtError, StartupError
from radixrt.messages import Enqueue, Namespace
from radixrt.results import CacheBranch, CacheReport
from radixrt.results import Pin as PinInfo
from radixrt.scheduler.requests import Request, Row

LONGEST_PIN_S = 7 * 24 * 3600.0


def make_cache(config: SchedulerConfig, kv_tokens: int) -> PrefixCache:
    """The cache over a pool of `kv_tokens` slots. StartupError where the options do not fit together."""
    try:
        low, high = int(config.low_watermark * kv_tokens), int(config.high_watermark * kv_tokens)
        return PrefixCache(
            kv_tokens,
            policy=make_eviction(config.eviction, kv_tokens),
            pin_quota=config.pin_quota,
            watermarks=Watermarks(low, high),
        )
    except ValueError as error:
        raise StartupError(f"the cache's options are wrong: {error}") from error


def check_pin(cache: PrefixCache, message: Enqueue, request: Request) -> None:
    """Refuse a pin that can never be, or not now, before anything is computed for it."""
    ttl = message.pin_s
    if ttl is None:
        return
    if not 0 < ttl <= LONGEST_PIN_S:
        raise InvalidRequest(f"ttl must be above 0 and at most {LONGEST_PIN_S:.0f} seconds, but is {ttl}", param="ttl")
    if request.max_tokens or request.sampling.n > 1:
        raise InvalidRequest("a request that pins its prompt generates nothing: max_tokens 0, n 1", param="max_tokens")
    if not isinstance(request.namespace, Namespace):
        raise InvalidRequest("nothing can be pinned: the prefix cache is off", code="no_prefix_cache")
    try:
        cache.pins.check_room(request.namespace, request.namespace.owner, request.prompt)
    except PinQuota as error:
        raise _refused(error) from error


def keep_prompt(cache: PrefixCache, row: Row) -> RadixrtError | None:
    """Pin a row's prompt, if that is wanted, before the row lets go of it; what stands against it, if anything."""
    request = row.request
    if request.pin_s is None or row.node is None or not isinstance(request.namespace, Namespace):
        return None
    if row.in_tree < len(request.prompt):
        return None  # it ends before its prompt is whole: it failed or was aborted
    try:
        pin = cache.pins.add(request.namespace, request.namespace.owner, row.node, request.pin_s)
    except PinQuota as error:
        return _refused(error)
    request.pin = pin_info(cache, pin)
    return None


def unpin(cache: PrefixCache, namespace: Namespace, pin_id: str) -> PinInfo:
    """End a pin; NotFound where the namespace has none of that name."""
    try:
        return pin_info(cache, cache.pins.remove(namespace, pin_id))
    except UnknownPin:
        raise NotFound(
            "there is no such pin here: it was unpinned, has expired, or gave way", param="id", code="pin_not_found"
        ) from None


def pin_info(cache: PrefixCache, pin: Pin) -> PinInfo:
    return PinInfo(id=pin.id, tokens=pin.tokens, expires_in_s=max(pin.expires - cache.clock(), 0.0))


def cache_report(request: Request) -> CacheReport | None:
    """What the request asked to know of its luck with the tree; None where it did not ask."""
    if not request.sampling.return_cache_report:
        return None
    return report_of(len(request.prompt), request.cached_tokens, request.miss)


def report_of(prompt_tokens: int, cached: int, miss: Miss | None) -> CacheReport:
    """What the tree had of a prompt; the tokenizer fills in the text."""
    return CacheReport(
        cached=cached,
        computed=prompt_tokens - cached,
        missed_at=miss.at if miss else None,
        reason=miss.reason if miss else None,
        diverged_from=tuple(CacheBranch(ids) for ids in miss.instead) if miss else (),
    )


def _refused(error: PinQuota) -> InvalidRequest:
    return InvalidRequest(str(error), param="prompt", code="pin_quota")
