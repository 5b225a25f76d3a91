"""Where text meets the options of a `select`: which tokens each option adds."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from radixrt.backend import Backend, Tokens
from radixrt.lang.choices import split_options
from radixrt.lang.context import tokenize_text

SHORT = 256
"""Characters up to which a text is tokenized anew with each option; of a longer one only its end is."""


async def option_ids(
    backend: Backend, before: str, choices: Sequence[str], *, first: bool
) -> tuple[list[int], list[tuple[int, ...]]]:
    """The shared ids of `before`, and each choice's own ids after them (see `choices.split_options`).

    `before` is tokenized together with each choice, so that a choice that merges with its end is written merged. Of a
    long text that is done with its last words only: tokenizers split text at the space before a word, so what comes
    before it does not change. `first`: nothing stands before `before`.
    """
    if not before and not first:
        return [], [tokens.ids for tokens in await _all(backend, choices, first=False)]
    head = await tokenize_text(backend, before, first=first)
    start = _last_words(head) if len(before) > SHORT else 0
    if start:
        tail = b"".join(head.pieces[start:]).decode()
        alone, *joined = await _all(backend, [tail, *(tail + choice for choice in choices)], first=False)
        if alone.ids == head.ids[start:]:  # not so where a tokenizer puts a space of its own in front
            shared, options = split_options(alone.ids, [tokens.ids for tokens in joined])
            return [*head.ids[:start], *shared], options
    joined = await _all(backend, [before + choice for choice in choices], first=first)
    shared, options = split_options(head.ids, [tokens.ids for tokens in joined])
    return list(shared), options


def _last_words(tokens: Tokens) -> int:
    """Index of a late token that begins a word: " word" after something that does not end in a space; 0: none."""
    pieces = tokens.pieces
    for i in range(len(pieces) - 2, 0, -1):
        piece = pieces[i]
        if piece[:1] == b" " and piece[1:2].isalpha() and not pieces[i - 1][-1:].isspace():
            return i
    return 0


async def _all(backend: Backend, texts: Sequence[str], *, first: bool) -> list[Tokens]:
    return await asyncio.gather(*(tokenize_text(backend, text, first=first) for text in texts))
