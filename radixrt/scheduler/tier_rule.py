"""Restore or compute: whichever is expected to be done first.

    restore(n) = latency + n / restore rate          compute(n) = n / prefill rate

Both rates are measured while serving: tokens a second of prefill steps, and of prefetches that ended. What is not known
yet counts as being in favour of restoring, or nothing would ever be learnt.
"""

from __future__ import annotations

from dataclasses import dataclass

_KEEP = 0.7
"""Weight of the past in the running means."""
PREFILL_FROM = 64
"""New tokens from which a step tells how fast prefill is; a smaller one is all overhead."""
FORGET_S = 60.0
"""A restore rate that lost is tried again after so long: the disk may have been busy."""


@dataclass(eq=False)
class RestoreRule:
    latency_s: float = 0.005
    """A prefetch takes at least a turn of the runner."""
    prefill_rate: float = 0.0
    restore_rate: float = 0.0
    restored_at: float = 0.0

    def computed(self, tokens: int, seconds: float) -> None:
        """A step of `tokens` new tokens took so long."""
        if tokens >= PREFILL_FROM and seconds > 0:
            self.prefill_rate = _mean(self.prefill_rate, tokens / seconds)

    def restored(self, tokens: int, seconds: float, now: float) -> None:
        if tokens and seconds > 0:
            self.restore_rate = _mean(self.restore_rate, tokens / seconds)
            self.restored_at = now

    def pays(self, tokens: int, now: float) -> bool:
        """Restoring `tokens` is expected to be faster than computing them."""
        if not self.prefill_rate or not self.restore_rate or now - self.restored_at > FORGET_S:
            return True
        return self.latency_s + tokens / self.restore_rate < tokens / self.prefill_rate

    def patience(self, tokens: int) -> float:
        """Seconds after which a request stops waiting for a prefetch of `tokens`: by then it could have computed them
        (with a margin for the step under way), so the disk is not what it was."""
        return 0.1 + 2 * tokens / self.prefill_rate if self.prefill_rate else 5.0


def _mean(old: float, new: float) -> float:
    return _KEEP * old + (1 - _KEEP) * new if old else new
