"""What a program's gens write: tokens become text and events, and the program's conversation goes on from them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
import numpy as np

from radixrt.checkpoint import Vocabulary
from radixrt.conversation import at_once, cut_ids
from radixrt.messages import StopRow, TokenDelta, ToScheduler
from radixrt.results import Delta, TokenLogprob, Usage
from radixrt.segments import Heal, Kept, Part
from radixrt.tokenizer.cache_text import with_text
from radixrt.tokenizer.healing import Healer
from radixrt.tokenizer.logprobs import token_logprob
from radixrt.tokenizer.program import LocalTokens, Program, Running


class ProgramOutput:
    """Takes the scheduler's tokens. `forget` is told of request ids that nothing more comes for."""

    def __init__(
        self,
        vocabulary: Vocabulary,
        local: LocalTokens,
        healer: Healer,
        send_scheduler: Callable[[ToScheduler], bool],
        forget: Callable[[Program, int], None],
    ) -> None:
        self._vocabulary = vocabulary
        self._local = local
        self._healer = healer
        self._send_scheduler = send_scheduler
        self._forget = forget

    def take(self, program: Program, item: TokenDelta) -> None:
        """New tokens of one of its gens; when that one is over, the program has gone on from it."""
        running = program.running
        if (
            running is not None
            and running.segment.heal is not None
            and item.request_id == running.segment.heal.request_id
        ):
            self._healed(program, running, running.segment.heal, item)
            return
        if running is None or item.request_id != running.segment.request_id:
            running = program.closing.get(item.request_id)
        if running is None:
            return
        sample = running.samples[item.index]
        step = sample.step(item)
        if step.stop_keep is not None:
            self._send_scheduler(StopRow(request_id=item.request_id, index=item.index, keep=step.stop_keep))
        if item.index == 0 and not running.over:
            running.text += step.text
            running.ids.extend(step.ids)
            running.matched = step.stop_keep is not None or isinstance(step.stop_reason, str)
        last = item.usage is not None
        shown = step if program.stream else sample.collect(step)
        if shown is not None and (shown or last):
            delta = sample.delta(shown)
            if item.usage is not None:
                delta = msgspec.structs.replace(delta, usage=with_text(_joined(running, item.usage), self._vocabulary))
            program.events.append(Part(index=running.gen.index, delta=delta))
        finished = running.matched and len(running.samples) == 1
        if not running.over and (finished or last):
            self._went_on(program, running)
            if not last:
                program.closing[item.request_id] = running
        if last:
            program.closing.pop(item.request_id, None)
            self._forget(program, item.request_id)

    def _went_on(self, program: Program, running: Running) -> None:
        """The first sample is whole: the program goes on from it."""
        running.over = True
        program.running = None
        story = program.story
        ids = running.ids
        if running.matched:
            ids = at_once(cut_ids(self._local, ids, running.text))
        stands = [*story.ids, *running.ids]
        story.append_generated(ids, running.text, running.gen.calls)
        program.sent = stands
        keep = running.base - (1 if running.rest else 0)
        program.events.append(Kept(index=running.gen.index, keep=keep, ids=_array(story.ids[keep:])))

    def _healed(self, program: Program, running: Running, heal: Heal, item: TokenDelta) -> None:
        """The token that the model writes in place of the text's last one, and its counts."""
        if item.ids:
            token, story = item.ids[0], program.story
            if token != story.ids[-1] and token not in heal.refused:
                rest = running.rest = self._healer.rest(running.piece, token)
                story.ids[-1] = program.sent[-1] = token
                story.append_generated((), rest)
                entries: tuple[TokenLogprob, ...] | None = None
                if item.logprobs:
                    tops = (item.top_ids[0], item.top_logprobs[0]) if item.top_ids else ((), ())
                    entries = (token_logprob(self._vocabulary, token, item.logprobs[0], *tops),)
                delta = Delta(text=rest, token_ids=(token,), logprobs=entries)
                program.events.append(Part(index=running.gen.index, delta=delta))
        if item.usage is not None:
            running.healed = item.usage
            self._forget(program, item.request_id)


def _joined(running: Running, usage: Usage) -> Usage:
    """A gen's counts with those of its healing, as the one request that they are to a program."""
    join = running.healed
    if join is None:
        return usage
    first = 1 if running.rest else 0
    prompt = usage.prompt_tokens - first
    report = join.cache and msgspec.structs.replace(join.cache, computed=prompt - join.cache.cached)
    return msgspec.structs.replace(
        usage,
        prompt_tokens=prompt,
        cached_tokens=min(join.cached_tokens, prompt),
        restored_tokens=min(join.restored_tokens, join.cached_tokens, prompt),
        completion_tokens=usage.completion_tokens + first,
        queue_s=join.queue_s + usage.queue_s,
        ttft_s=join.total_s + usage.ttft_s,
        total_s=join.total_s + usage.total_s,
        cache=report or usage.cache,
    )


def _array(ids: Sequence[int]) -> np.ndarray:
    return np.asarray(ids, dtype=np.int32)
