"""The visible text in pieces, each with where it came from; `trace.py` and `page.py` show them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from radixrt.lang.spans import Span
from radixrt.results import Choice, Usage


@dataclass(slots=True, eq=False)
class Event:
    """One gen or select; what is only known when it is done is filled in then."""

    origin: Literal["sampled", "selected"]
    variable: str | None
    span: Span | None
    started_s: float
    """Since the run began, as `seconds` is a length of time."""
    seconds: float = 0.0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    tokens: tuple[tuple[str, float | None], ...] = ()
    choices: tuple[tuple[str, float | None], ...] = ()
    forced: tuple[tuple[int, int], ...] = ()
    """Characters [start, end) of its text that a constraint forced."""

    def done(self, now_s: float, usage: Usage, choice: Choice | None = None) -> None:
        self.seconds = now_s - self.started_s
        self.prompt_tokens, self.cached_tokens = usage.prompt_tokens, usage.cached_tokens
        self.completion_tokens = usage.completion_tokens
        if choice is not None and choice.logprobs is not None:
            self.tokens = tuple((entry.token, entry.logprob) for entry in choice.logprobs)
        if choice is not None:
            self.forced = choice.forced


@dataclass(frozen=True, slots=True, eq=False)
class Piece:
    """`event` None: constant text, of the program or of the chat template."""

    text: str
    event: Event | None = None
