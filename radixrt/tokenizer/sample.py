"""One sample of a request: its tokens become text, logprobs and a finish.

    open --a stop string is final--> matched --the scheduler's finish--> finished
    open ------------------------------------the scheduler's finish----> finished

While open, a token's id goes out in the step that brought it, its text when no stop string can take it back, and its
logprob entry with the first character of its text. A matched sample shows nothing more until it is finished.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from radixrt.checkpoint import Vocabulary
from radixrt.messages import TokenDelta
from radixrt.params import SamplingParams
from radixrt.results import Delta, FinishReason, TokenLogprob
from radixrt.tokenizer.detokenize import Detokenizer
from radixrt.tokenizer.logprobs import token_logprob
from radixrt.tokenizer.stops import StopScanner


@dataclass
class Step:
    """What one TokenDelta, or several joined, brought to a sample."""

    text: str = ""
    ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    forced: list[tuple[int, int]] = field(default_factory=list)
    """Characters of the sample's text that the constraint forced, a token each."""
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    stop_keep: int | None = None
    """The sample matched a stop string within its first `stop_keep` tokens, and the scheduler does not know yet."""

    def __bool__(self) -> bool:
        return bool(self.text or self.ids or self.logprobs or self.forced or self.finish_reason)


class Sample:
    """State of one sample; `step` takes what the scheduler sent for it."""

    def __init__(self, index: int, vocabulary: Vocabulary, sampling: SamplingParams, *, strip_space: bool) -> None:
        self.index = index
        self.finished = False
        self._vocabulary = vocabulary
        self._detokenizer = Detokenizer(
            vocabulary, skip_special_tokens=sampling.skip_special_tokens, strip_space=strip_space
        )
        self._scanner = StopScanner(
            sampling.stop,
            sampling.stop_regex,
            include=sampling.include_stop_str_in_output,
            min_tokens=sampling.min_tokens,
        )
        self._wants_logprobs = sampling.logprobs is not None
        self._ids: list[int] = []
        """Ids that have not gone out yet."""
        self._sent = 0
        """Ids that have gone out."""
        self._entries: list[tuple[int, TokenLogprob]] = []
        """Logprob entries that have not gone out yet, each with the number of characters before its token."""
        self._texts: list[str] = []
        self._kept = Step()

    def step(self, delta: TokenDelta) -> Step:
        """Feed new tokens and the finish, if it is there."""
        scanner = self._scanner
        if self.finished:
            return Step()
        was_matched = scanner.match is not None
        text = ""
        forced: list[tuple[int, int]] = []
        for i, token in enumerate(delta.ids):
            if scanner.match is not None:
                break
            self._ids.append(token)
            if self._wants_logprobs and self._detokenizer.shows(token):
                self._entries.append((scanner.seen, self._entry(delta, i)))
            before = scanner.seen
            text += scanner.push(self._detokenizer.push(token))
            if delta.forced and scanner.seen > before:
                forced.append((before, scanner.seen))
        done = delta.finish_reason is not None
        if done and scanner.match is None:
            text += scanner.finish(self._detokenizer.flush())
        match = scanner.match
        step = Step(text=text, ids=self._take_ids(), logprobs=self._take_entries(done), forced=forced)
        if match is not None and not was_matched and not done:
            step.stop_keep = match.keep
        if done:
            self.finished = True
            step.finish_reason = "stop" if match is not None else delta.finish_reason
            step.stop_reason = match.stop if match is not None else delta.stop_token
        return step

    def collect(self, step: Step) -> Step | None:
        """For a request that is not streamed: None until the sample is finished, and then all of it at once."""
        kept = self._kept
        self._texts.append(step.text)
        kept.ids += step.ids
        kept.logprobs += step.logprobs
        kept.forced += step.forced
        if step.finish_reason is None:
            return None
        kept.text = "".join(self._texts)
        kept.finish_reason, kept.stop_reason = step.finish_reason, step.stop_reason
        return kept

    def delta(self, step: Step) -> Delta:
        """`step` as the client gets it."""
        return Delta(
            index=self.index,
            text=step.text,
            token_ids=tuple(step.ids),
            logprobs=tuple(step.logprobs) if self._wants_logprobs else None,
            finish_reason=step.finish_reason,
            stop_reason=step.stop_reason,
            forced=tuple(step.forced),
        )

    def _entry(self, delta: TokenDelta, i: int) -> TokenLogprob:
        top_ids, top_logprobs = (delta.top_ids[i], delta.top_logprobs[i]) if delta.top_ids else ((), ())
        return token_logprob(self._vocabulary, delta.ids[i], delta.logprobs[i], top_ids, top_logprobs)

    def _take_ids(self) -> list[int]:
        decided = self._scanner.match or self._scanner.candidate
        count = len(self._ids) if decided is None else decided.keep - self._sent
        out = self._ids[:count]
        self._ids = [] if self._scanner.match is not None else self._ids[count:]
        self._sent += len(out)
        return out

    def _take_entries(self, done: bool) -> list[TokenLogprob]:
        if not self._entries:
            return []
        cut = self._scanner.cut
        shown = cut if cut is not None else None if done else self._scanner.released
        if shown is None:
            count = len(self._entries)
        else:
            count = sum(start < shown for start, _ in self._entries)
        out = [entry for _, entry in self._entries[:count]]
        self._entries = [] if cut is not None else self._entries[count:]
        return out
