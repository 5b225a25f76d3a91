"""A program's variables: a value that is there, or will be, or an error; and what is known about how it came."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from radixrt.lang.channel import Channel
from radixrt.lang.errors import ProgramError
from radixrt.lang.spans import Span
from radixrt.lang.typed import Codec
from radixrt.results import Choice, Usage


@dataclass(frozen=True, slots=True)
class GenMeta:
    """How a gen came to its text: its samples, ordered by index, and the counts of its request."""

    samples: tuple[Choice, ...]
    usage: Usage

    @property
    def finish_reason(self) -> str:
        """Of the first sample, like the properties below."""
        return self.samples[0].finish_reason

    @property
    def stop_reason(self) -> str | int | None:
        return self.samples[0].stop_reason

    @property
    def token_ids(self) -> tuple[int, ...]:
        """As the model gave them, those of a stop string included."""
        return self.samples[0].token_ids


@dataclass(frozen=True, slots=True)
class SelectMeta:
    """How a select chose; all tuples are in the order of the choices.

    `scores` are by the chosen method (`radixrt.choosing`); `logprobs` those of each choice's own tokens, `token_ids`,
    after the prompt; `unconditional` the same without the prompt, for the one method that asks for it. At the start of
    a turn they are those of the better spelling, with or without a leading space; the winner's may differ from what
    was appended, which is the choice as it was written.
    """

    index: int
    choices: tuple[str, ...]
    scores: tuple[float, ...]
    logprobs: tuple[tuple[float, ...], ...]
    token_ids: tuple[tuple[int, ...], ...]
    unconditional: tuple[tuple[float, ...], ...] | None = None
    usage: Usage = field(default_factory=Usage)
    """Of the request that scored them."""

    @property
    def choice(self) -> str:
        return self.choices[self.index]


Meta: TypeAlias = GenMeta | SelectMeta


@dataclass(frozen=True, slots=True)
class Value:
    """What a variable holds. For a gen `raw` is the text, or the list of texts where n > 1."""

    raw: Any
    meta: Meta | None = None
    codec: Codec | None = None
    parts: tuple[Variable, ...] = ()
    """Of a list that grows: its items, each with its own meta and codec."""


@dataclass(slots=True, eq=False)
class Variable:
    """A name's value to come. It is settled exactly once, by `resolve` or `fail`."""

    name: str | None
    span: Span | None = None
    future: Future[Value] = field(default_factory=Future)
    channel: Channel = field(default_factory=Channel)
    """The text as it comes; of a list all its texts, at once."""
    items: tuple[Variable, ...] = ()
    """Of a list that grows."""

    @classmethod
    def known(cls, name: str, raw: Any) -> Variable:
        variable = cls(name)
        if isinstance(raw, str):
            variable.channel.put(raw)
        variable.resolve(Value(raw))
        return variable

    @classmethod
    def growing(cls, name: str, parts: tuple[Variable, ...]) -> Variable:
        """The list of some variables; it is there when all of them are, and fails with the first that failed."""
        variable = cls(name, parts[-1].span, items=parts)
        missing = len(parts)
        lock = threading.Lock()

        def settle(_: Future[Value]) -> None:
            nonlocal missing
            with lock:
                missing -= 1
                if missing:
                    return
            for part in parts:
                error = part.future.exception()
                if isinstance(error, ProgramError):
                    variable.fail(error)
                    return
            for part in parts:
                if isinstance(raw := part.future.result().raw, str):
                    variable.channel.put(raw)
            variable.resolve(Value([part.future.result().raw for part in parts], parts=parts))

        for part in parts:
            part.future.add_done_callback(settle)
        return variable

    def resolve(self, value: Value) -> None:
        self.future.set_result(value)
        self.channel.close()

    def fail(self, error: ProgramError) -> None:
        if not self.future.done():
            self.future.set_exception(error)
            self.channel.close(error)


def settled(future: Future[Any]) -> Future[None]:
    """Done when the other is, whatever came of it. Cancelling it leaves the other as it is."""
    signal: Future[None] = Future()

    def settle(_: Future[Any]) -> None:
        if signal.set_running_or_notify_cancel():
            signal.set_result(None)

    future.add_done_callback(settle)
    return signal
