"""From the deltas of a stream to the finished Generation."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from radixrt.results import Choice, Delta, FinishReason, Generation, TokenLogprob, Usage


@dataclass
class _Sample:
    text: list[str] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    forced: list[tuple[int, int]] = field(default_factory=list)
    logprobs: list[TokenLogprob] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None


def joined_spans(spans: Iterable[tuple[int, int]], length: int) -> tuple[tuple[int, int], ...]:
    """Spans in order, adjoining ones made one, and what lies behind `length` cut off."""
    joined: list[tuple[int, int]] = []
    for start, end in spans:
        end = min(end, length)
        if start >= end:
            continue
        if joined and joined[-1][1] == start:
            joined[-1] = joined[-1][0], end
        else:
            joined.append((start, end))
    return tuple(joined)


class Collector:
    """Joins deltas of `n` samples; `done` once each has its finish_reason."""

    def __init__(self, n: int) -> None:
        self._samples = [_Sample() for _ in range(n)]
        self._open = n
        self._usage = Usage()
        self._prompt_logprobs: tuple[TokenLogprob, ...] | None = None

    @property
    def done(self) -> bool:
        return self._open == 0

    def add(self, delta: Delta) -> None:
        sample = self._samples[delta.index]
        sample.text.append(delta.text)
        sample.ids.extend(delta.token_ids)
        sample.forced.extend(delta.forced)
        if delta.logprobs is not None:
            sample.logprobs = [*(sample.logprobs or ()), *delta.logprobs]
        if delta.prompt_logprobs is not None:
            self._prompt_logprobs = delta.prompt_logprobs
        if delta.usage is not None:
            self._usage = delta.usage
        if delta.finish_reason is not None:
            sample.finish_reason, sample.stop_reason = delta.finish_reason, delta.stop_reason
            self._open -= 1

    def text_of(self, index: int) -> str:
        """A sample's text so far."""
        return "".join(self._samples[index].text)

    def generation(self) -> Generation:
        return Generation(
            choices=tuple(
                Choice(
                    index=index,
                    text="".join(sample.text),
                    token_ids=tuple(sample.ids),
                    finish_reason=sample.finish_reason or "abort",
                    stop_reason=sample.stop_reason,
                    forced=joined_spans(sample.forced, sum(map(len, sample.text))),
                    logprobs=None if sample.logprobs is None else tuple(sample.logprobs),
                )
                for index, sample in enumerate(self._samples)
            ),
            usage=self._usage,
            prompt_logprobs=self._prompt_logprobs,
        )
