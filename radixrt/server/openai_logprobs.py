"""Log-probabilities in the shapes of both protocols. The values are the model's own (see SamplingParams.logprobs)."""

from __future__ import annotations

import codecs
import math
from collections.abc import Sequence

from radixrt.results import TokenLogprob
from radixrt.server.openai_shapes import ChatLogprobs, ChatToken, PromptToken, TextLogprobs, TopToken

FLOOR = -9999.0
"""Stands for minus infinity, which JSON does not have."""


def finite(logprob: float) -> float:
    return logprob if math.isfinite(logprob) and logprob > FLOOR else FLOOR


def chat_logprobs(entries: Sequence[TokenLogprob]) -> ChatLogprobs:
    """`bytes` are exact, also where a token holds part of a character and `token` shows U+FFFD."""
    return ChatLogprobs(
        content=[
            ChatToken(
                token=entry.token,
                logprob=finite(entry.logprob) if entry.logprob is not None else FLOOR,
                bytes=list(entry.bytes),
                top_logprobs=[
                    TopToken(token=top.token, logprob=finite(top.logprob), bytes=list(top.bytes)) for top in entry.top
                ],
            )
            for entry in entries
        ]
    )


def prompt_logprobs(entries: Sequence[TokenLogprob]) -> list[dict[int, PromptToken] | None]:
    """vLLM's shape: null for the first token, else the token itself and the most likely ones, by id."""
    answer: list[dict[int, PromptToken] | None] = []
    for entry in entries:
        if entry.logprob is None:
            answer.append(None)
            continue
        at = {entry.token_id: PromptToken(logprob=finite(entry.logprob), rank=None, decoded_token=entry.token)}
        for rank, top in enumerate(entry.top, start=1):
            at[top.token_id] = PromptToken(logprob=finite(top.logprob), rank=rank, decoded_token=top.token)
        answer.append(at)
    return answer


class TextLogprobsBuilder:
    """The completions shape of one choice, piece by piece.

    Token strings joined are the text. So a character that spreads over several tokens belongs to the one that
    completes it, the others are empty strings, and nothing is given out before the character is complete.
    """

    def __init__(self) -> None:
        self._pending: list[TokenLogprob] = []
        self._offset = 0

    def skip(self, text: str) -> None:
        """Text that stands before the first token and has no entries."""
        self._offset += len(text)

    def feed(self, entries: Sequence[TokenLogprob], *, last: bool, hidden: int = 0) -> TextLogprobs:
        """Shape the entries; with `last` a broken character at the end is given out as U+FFFD.

        The first `hidden` entries get empty strings: tokens in front of the prompt that its text does not show.
        """
        entries = [*self._pending, *entries]
        strings: list[str] = []
        decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        complete = 0
        for i, entry in enumerate(entries):
            strings.append("" if i < hidden else decoder.decode(entry.bytes))
            if not decoder.getstate()[0]:
                complete = i + 1
        if last and entries:
            strings[-1] += decoder.decode(b"", final=True)
            complete = len(entries)
        self._pending = entries[complete:]
        return self._shape(entries[:complete], strings[:complete])

    def _shape(self, entries: Sequence[TokenLogprob], strings: Sequence[str]) -> TextLogprobs:
        shape = TextLogprobs(tokens=list(strings), token_logprobs=[], top_logprobs=[], text_offset=[])
        for entry, string in zip(entries, strings, strict=True):
            shape.text_offset.append(self._offset)
            self._offset += len(string)
            if entry.logprob is None:
                shape.token_logprobs.append(None)
                shape.top_logprobs.append(None)
                continue
            shape.token_logprobs.append(finite(entry.logprob))
            top: dict[str, float] = {}
            for other in entry.top:
                # The token itself goes under the string that `tokens` has, so that a reader finds it again.
                name = string if other.token_id == entry.token_id else other.token
                top.setdefault(name, finite(other.logprob))
            # It is always there, even as one more than were asked for.
            top[string] = finite(entry.logprob)
            shape.top_logprobs.append(top)
        return shape
