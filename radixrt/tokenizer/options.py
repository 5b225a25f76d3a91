"""Where text meets the options of a select: which tokens each option adds.

An option that merges with the end of the text before it ("Answer: " + "Yes" may hold the token " Yes") is scored
merged, as it would be written. The shared tokens end before the merged one for all options alike: so every option is
scored over the same text, and their means and their first tokens can be compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from radixrt.choosing import spellings, split_options
from radixrt.errors import InvalidRequest
from radixrt.messages import ChatPrompt, Select, TextPrompt
from radixrt.params import MAX_OPTIONS
from radixrt.tokenizer.encode import PromptEncoder
from radixrt.tokenizer.requests import Open

SHORT = 256
"""Characters up to which a text is tokenized anew with each option; of a longer one only its end is."""


@dataclass(kw_only=True)
class SelectRequest(Open):
    """An open select: what its options became."""

    prompt: list[int]
    """What the options are scored behind."""
    token_ids: list[list[int]]
    written: list[list[int]]
    base: list[int]
    """What stands before the options without the prompt; empty where that is not asked for."""


def prepare(message: Select, encoder: PromptEncoder, number: int, peer: bytes) -> SelectRequest:
    """The ids of a select; InvalidRequest where something is wrong with it."""
    _check(message)
    prompt = message.prompt
    if isinstance(prompt, TextPrompt) and not prompt.parse_special:
        head: list[int] = []
        before, first = prompt.text + message.text, prompt.add_special_tokens
    else:
        head = encoder.encode(prompt)
        before, first = message.text, not head
    begins = message.begins_turn or (isinstance(prompt, ChatPrompt) and prompt.add_generation_prompt)
    texts = spellings(before, message.options) if begins and message.options else None
    if message.option_ids:
        shared = list(encoder.tokens(before, first=first)[0]) if before or first else []
        token_ids = [encoder.checked_list(option, "options") for option in message.option_ids]
    elif texts:
        shared, token_ids = option_ids(encoder, "", texts, first=first)
    else:
        shared, token_ids = option_ids(encoder, before, message.options, first=first)
    written = [[*shared, *option] for option in token_ids[: len(message.options) or len(token_ids)]]
    if texts:
        written = [encoder.tokens(before + option, first=False)[0] for option in message.options]
    return SelectRequest(
        id=number,
        peer=peer,
        client_id=message.request_id,
        prompt=[*head, *shared] or encoder.beginning(),
        token_ids=token_ids,
        written=written,
        base=encoder.beginning() if message.unconditional else [],
    )


def option_ids(
    encoder: PromptEncoder, before: str, choices: Sequence[str], *, first: bool
) -> tuple[list[int], list[list[int]]]:
    """The shared ids of `before`, and each choice's own ids after them (see `choosing.split_options`).

    Of a long text only the last words are tokenized with each choice: tokenizers split text at the space before a
    word, so what comes before it does not change. `first`: nothing stands before `before`.
    """
    if not before and not first:
        return [], [encoder.tokens(choice, first=False)[0] for choice in choices]
    head, pieces = encoder.tokens(before, first=first)
    start = _last_words(pieces) if len(before) > SHORT else 0
    if start:
        tail = b"".join(pieces[start:]).decode()
        alone = encoder.tokens(tail, first=False)[0]
        if alone == head[start:]:  # not so where a tokenizer puts a space of its own in front
            joined = [encoder.tokens(tail + choice, first=False)[0] for choice in choices]
            shared, options = split_options(alone, joined)
            return [*head[:start], *shared], [list(option) for option in options]
    joined = [encoder.tokens(before + choice, first=first)[0] for choice in choices]
    shared, options = split_options(head, joined)
    return list(shared), [list(option) for option in options]


def _last_words(pieces: Sequence[bytes]) -> int:
    """Index of a late token that begins a word: " word" after something that does not end in a space; 0: none."""
    for i in range(len(pieces) - 2, 0, -1):
        piece = pieces[i]
        if piece[:1] == b" " and piece[1:2].isalpha() and not pieces[i - 1][-1:].isspace():
            return i
    return 0


def _check(message: Select) -> None:
    if bool(message.options) == bool(message.option_ids):
        raise InvalidRequest("options must be texts or token ids, at least one", param="options")
    count = len(message.options) + len(message.option_ids)
    if count > MAX_OPTIONS:
        raise InvalidRequest(f"options may hold at most {MAX_OPTIONS}, but holds {count}", param="options")
    if not all(message.options) or not all(message.option_ids):
        raise InvalidRequest("an option must hold at least one token", param="options")
