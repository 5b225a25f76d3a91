"""How much a key may still do: requests and tokens a minute as token buckets, tokens in all as a budget.

The number of tokens is known only when a request has ended, so they are charged then, and a bucket may go below zero: a
key whose bucket is empty waits until it is above zero again (a token bucket with debt).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from radixrt.errors import RateLimited
from radixrt.server.keys import ApiKey


class Bucket:
    """`per_minute` units flow in evenly; at most as many are kept."""

    def __init__(self, per_minute: int, now: float) -> None:
        self.per_minute = per_minute
        self._level = float(per_minute)
        self._at = now

    def level(self, now: float) -> float:
        # A clock that goes backwards brings nothing and takes nothing.
        self._level = min(self.per_minute, self._level + max(0.0, now - self._at) * self.per_minute / 60)
        self._at = now
        return self._level

    def take(self, count: int, now: float) -> None:
        self._level = self.level(now) - count

    def wait(self, needed: float, now: float) -> float:
        """Seconds until `needed` units are there."""
        return max(0.0, (needed - self.level(now)) * 60 / self.per_minute)


class Allowance:
    """What one key has used. Used by one event loop alone."""

    def __init__(self, key: ApiKey, clock: Callable[[], float] = time.monotonic) -> None:
        self.key = key
        self.used_tokens = 0
        self._clock = clock
        now = clock()
        self._requests = Bucket(key.requests_per_minute, now) if key.requests_per_minute else None
        self._tokens = Bucket(key.tokens_per_minute, now) if key.tokens_per_minute else None

    def admit(self) -> None:
        """Take one request, or raise RateLimited, which says when to come back."""
        now = self._clock()
        budget = self.key.token_budget
        if budget is not None and self.used_tokens >= budget:
            raise RateLimited(f"the {budget:,} tokens of this key are used up", code="insufficient_quota")
        if self._tokens is not None and self._tokens.level(now) <= 0:
            raise self._late("tokens", self._tokens, self._tokens.wait(1, now))
        if self._requests is not None:
            if self._requests.level(now) < 1:
                raise self._late("requests", self._requests, self._requests.wait(1, now))
            self._requests.take(1, now)

    def charge(self, tokens: int) -> None:
        """Count what a request has used."""
        self.used_tokens += tokens
        if self._tokens is not None:
            self._tokens.take(tokens, self._clock())

    def headers(self) -> dict[str, str]:
        """What is left, in OpenAI's header names."""
        now, out = self._clock(), dict[str, str]()
        for name, bucket in (("requests", self._requests), ("tokens", self._tokens)):
            if bucket is not None:
                out[f"x-ratelimit-limit-{name}"] = str(bucket.per_minute)
                out[f"x-ratelimit-remaining-{name}"] = str(max(0, math.floor(bucket.level(now))))
        return out

    @staticmethod
    def _late(what: str, bucket: Bucket, wait_s: float) -> RateLimited:
        return RateLimited(
            f"this key may use {bucket.per_minute:,} {what} a minute: come back in {math.ceil(wait_s)} s",
            code="rate_limit_exceeded",
            retry_after_s=wait_s,
        )
