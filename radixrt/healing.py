"""When the last token of a text may be healed before a gen, and what the token in its place may hold: for programs that
are run here (`radixrt.lang`) and those that the tokenizer process runs.

Nothing is healed
- where no free text stands before the gen: template text and its special tokens, generated and selected text are never
  taken back;
- with a constraint, with n > 1, ignore_eos, allowed_token_ids, stop_regex, frequency or presence penalties, and with
  max_tokens=0;
- where the text is a single token with nothing before it, or its last token does not hold whole characters;
- where the longer token would end inside a character, be one of stop_token_ids, or reach into a stop string.
"""

from __future__ import annotations

from collections.abc import Sequence

from radixrt.params import Constraint, SamplingParams


def healable(sampling: SamplingParams, constraint: Constraint | None) -> bool:
    """Whether the parameters of a gen leave the join of text and generated text exact."""
    return (
        constraint is None
        and sampling.n == 1
        and not sampling.ignore_eos
        and sampling.allowed_token_ids is None
        and not sampling.stop_regex
        and sampling.frequency_penalty == sampling.presence_penalty == 0
        and sampling.max_tokens != 0
    )


def reaches(text: str, stops: Sequence[str]) -> bool:
    """Whether a stop string stands in the text, or may begin in it."""
    return any(
        stop in text or any(stop.startswith(text[i:]) for i in range(max(0, len(text) - len(stop)), len(text)))
        for stop in stops
    )


def decoded(piece: bytes) -> str | None:
    """The text of a token's bytes; None where they are not whole characters."""
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return None
