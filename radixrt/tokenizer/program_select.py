"""Selects inside a program: scored by the scheduler as any select is, and decided here."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from radixrt.checkpoint import Vocabulary
from radixrt.choosing import check_options, selection
from radixrt.conversation import at_once
from radixrt.errors import Overloaded
from radixrt.messages import EnqueueSelect, Selected, SelectScores, TokensPrompt, ToScheduler
from radixrt.messages import Select as SelectMessage
from radixrt.prompts import token_array
from radixrt.segments import Chosen, Select
from radixrt.tokenizer.cache_text import with_text
from radixrt.tokenizer.encode import PromptEncoder
from radixrt.tokenizer.options import prepare
from radixrt.tokenizer.program import Choosing, LocalTokens, Program, opened


class ProgramSelects:
    """What a program's Select asks the scheduler for, and what its conversation becomes by the answer."""

    def __init__(
        self,
        vocabulary: Vocabulary,
        encoder: PromptEncoder,
        local: LocalTokens,
        next_id: Callable[[], int],
        send_scheduler: Callable[[ToScheduler], bool],
    ) -> None:
        self._vocabulary = vocabulary
        self._encoder = encoder
        self._local = local
        self._next_id = next_id
        self._send_scheduler = send_scheduler

    def begin(self, program: Program, item: Select) -> int:
        """Score its options behind what stands; the request id that the scheduler answers under."""
        check_options(item.options, item.method)
        story, whole = program.story, list(program.story.ids)
        story.told, story.anew = [], None
        before = at_once(story.open(self._local))
        message = SelectMessage(
            request_id=program.client_id,
            prompt=TokensPrompt(ids=token_array(story.ids)),
            text=before,
            options=item.options,
            begins_turn=story.turn is not None and story.turn.content == before,
            unconditional=item.method == "unconditional_likelihood_normalized",
        )
        request = prepare(message, self._encoder, self._next_id(), program.peer)
        if before:
            story.wrote_text(before)
        story.pending = ""
        program.events.append(opened(story, item.index, whole))
        enqueue = EnqueueSelect(
            request_id=request.id,
            prompt=np.asarray(request.prompt, dtype=np.int32),
            options=request.token_ids,
            base=np.asarray(request.base, dtype=np.int32),
            namespace=program.namespace,
            priority=program.priority,
            return_cache_report=item.return_cache_report,
        )
        if not self._send_scheduler(enqueue):
            raise Overloaded("the engine does not take requests at the moment: try again later")
        program.choosing = Choosing(item, request)
        return request.id

    def take(self, program: Program, choosing: Choosing, scores: SelectScores) -> None:
        """The best option is written, and the program may go on."""
        item, request = choosing.item, choosing.request
        program.choosing = None
        answer = Selected(
            request_id=program.client_id,
            token_ids=request.token_ids,
            logprobs=scores.logprobs,
            unconditional=scores.unconditional,
            written=request.written,
            usage=with_text(scores.usage, self._vocabulary),
        )
        result = selection(answer, item.options, item.method)
        program.story.append_generated(result.written, item.options[result.index])
        program.events.append(Chosen(index=item.index, selection=result))
