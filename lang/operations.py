"""What a branch is asked to do, one after another. `fail` is called instead of the doing once the branch has failed."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from radixrt.lang.channel import Channel
from radixrt.lang.context import Context, Turn
from radixrt.lang.errors import ProgramError
from radixrt.lang.expressions import Gen, Select
from radixrt.lang.spans import Span
from radixrt.lang.variables import Variable

if TYPE_CHECKING:
    from radixrt.lang.executor import Branch


class Operation:
    """Base of all operations."""

    __slots__ = ()

    reads: ClassVar[bool] = False
    """It only looks: its own failure does not fail the branch."""

    def fail(self, error: ProgramError) -> None:
        """Tells whoever waits for this operation."""

    @property
    def variable_name(self) -> str | None:
        return None

    @property
    def span(self) -> Span | None:
        """Where it was written."""
        return None


@dataclass(frozen=True, slots=True)
class AddText(Operation):
    text: str


@dataclass(frozen=True, slots=True)
class OpenTurn(Operation):
    turn: Turn


@dataclass(frozen=True, slots=True)
class CloseTurn(Operation):
    pass


@dataclass(frozen=True, slots=True)
class Fills(Operation):
    """An operation that settles a variable."""

    variable: Variable

    def fail(self, error: ProgramError) -> None:
        self.variable.fail(error)

    @property
    def variable_name(self) -> str | None:
        return self.variable.name

    @property
    def span(self) -> Span | None:
        return self.variable.span


@dataclass(frozen=True, slots=True)
class Generate(Fills):
    gen: Gen


@dataclass(frozen=True, slots=True)
class Choose(Fills):
    select: Select


@dataclass(frozen=True, slots=True)
class BeginScope(Operation):
    variable: Variable


@dataclass(frozen=True, slots=True)
class EndScope(Fills):
    """The variable becomes the text that was written since its BeginScope."""


@dataclass(frozen=True, slots=True)
class Fork(Operation):
    """Starts branches that wait for this one to get here; each goes on from a copy of what stands now."""

    children: tuple[Branch, ...]

    def fail(self, error: ProgramError) -> None:
        for child in self.children:
            child.start_failed(error)


@dataclass(frozen=True, slots=True)
class Reach(Operation):
    """Settles `done` when everything before it is done."""

    done: Future[None]

    def fail(self, error: ProgramError) -> None:
        self.done.set_exception(error)


@dataclass(frozen=True, slots=True)
class Prefill(Operation):
    """Has the text so far computed and kept in the prefix cache, as far as nothing can merge with its end any more."""


@dataclass(frozen=True, slots=True)
class PinText(Operation):
    """Has the text so far computed, and kept in the prefix cache for a time."""

    ttl_s: float


@dataclass(frozen=True, slots=True)
class UnpinText(Operation):
    """Ends the pins that the branch has made so far."""


@dataclass(frozen=True, slots=True)
class Look(Operation):
    """Gives a copy of the context, with everything tokenized where `render`; the branch's own stays as it is."""

    reads: ClassVar[bool] = True

    seen: Future[Context]
    render: bool = True

    def fail(self, error: ProgramError) -> None:
        self.seen.set_exception(error)


@dataclass(frozen=True, slots=True)
class EndText(Operation):
    """The end of a growing text: `channel` gets what is still missing and is closed."""

    reads: ClassVar[bool] = True

    channel: Channel

    def fail(self, error: ProgramError) -> None:
        self.channel.close(error)
