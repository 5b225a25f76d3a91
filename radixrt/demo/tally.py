"""The numbers of one job, from the engine's own counters before and after it."""

from __future__ import annotations

from dataclasses import dataclass

from radixrt.results import EngineStats


@dataclass(frozen=True)
class Tally:
    """What a job cost. Seconds are wall time. `ttft_s` is the mean over the job's requests, from their arrival at the
    scheduler; for requests that only score text, it is the time to the scores."""

    prompt_tokens: int
    cached_tokens: int
    generated_tokens: int
    seconds: float
    ttft_s: float | None
    """None: no request got that far."""

    @classmethod
    def between(cls, before: EngineStats, after: EngineStats, seconds: float) -> Tally:
        """The difference of two readings of `Engine.stats()`."""
        ttft_sum, ttft_count = (b - a for a, b in zip(before.ttft_s, after.ttft_s, strict=True))
        return cls(
            prompt_tokens=after.prompt_tokens - before.prompt_tokens,
            cached_tokens=after.cached_tokens - before.cached_tokens,
            generated_tokens=after.generation_tokens - before.generation_tokens,
            seconds=seconds,
            ttft_s=ttft_sum / ttft_count if ttft_count else None,
        )

    def lines(self) -> list[str]:
        """The numbers in words."""
        share = self.cached_tokens / self.prompt_tokens if self.prompt_tokens else 0.0
        rate = self.generated_tokens / self.seconds if self.seconds else 0.0
        what = "first token" if self.generated_tokens else "scores after"
        first = f"{self.ttft_s:.2f} s on average" if self.ttft_s is not None else "-"
        return [
            f"prompt tokens    {self.prompt_tokens:,}, {self.cached_tokens:,} of them from the tree ({share:.0%})",
            f"generated        {self.generated_tokens:,} tokens, {rate:.1f} tokens/s",
            f"{what:<16} {first}",
            f"time             {self.seconds:.1f} s",
        ]
