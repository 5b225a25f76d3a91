"""The reading half of a program's state: every way to wait for a result."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, overload

import msgspec

from radixrt.lang.channel import Channel
from radixrt.lang.context import Context
from radixrt.lang.errors import ProgramError
from radixrt.lang.executor import Branch
from radixrt.lang.loop import refuse_on_loop
from radixrt.lang.names import Names
from radixrt.lang.operations import Look
from radixrt.lang.reading import decode
from radixrt.lang.run import Run
from radixrt.lang.trace import trace_of
from radixrt.lang.variables import Meta, Value, Variable, settled
from radixrt.results import Pin, Usage

if TYPE_CHECKING:
    from radixrt.lang.forks import Forks

T = TypeVar("T")
R = TypeVar("R")


class Readable:
    """One branch of a run as its readers see it; `ProgramState` adds the writing."""

    def __init__(self, run: Run, branch: Branch, variables: dict[str, Variable] | None = None) -> None:
        self.run = run
        self.branch = branch
        self.siblings: Forks | None = None
        self._names = Names(branch, variables or {})

    # --- reading -----------------------------------------------------------------------------------------------------

    def __contains__(self, name: object) -> bool:
        """Whether the name was declared so far; does not wait."""
        return name in self._names.known()

    def __iter__(self) -> NoReturn:
        """Refused: TypeError. Without this Python would read the variables 0, 1, 2, ..."""
        raise TypeError("a program's state is not iterable: its text comes piece by piece from .text_iter()")

    def __getitem__(self, name: str) -> Any:
        return self.get(name)

    @overload
    def get(self, name: str) -> Any: ...
    @overload
    def get(self, name: str, type: type[T]) -> T: ...
    def get(self, name: str, type: Any = None) -> Any:
        """The variable's value, waited for; with `type` read as that type (`str`: the raw text, even where it was cut).

        Raises ProgramError where the value could not be had, and UnknownVariable, a KeyError too, for a wrong name.
        """
        return self.read(self._names.find(name), type)

    async def aget(self, name: str, type: Any = None) -> Any:
        """`get` for `async def` programs."""
        variable = self._names.find(name)
        return decode(variable, await self._await(variable.future), type, self._error)

    def read(self, variable: Variable, type: Any = None) -> Any:
        """`get` for a variable at hand."""
        return decode(variable, self._wait(variable.future), type, self._error)

    def meta(self, name: str) -> Meta:
        """How a gen or a select came to its value: GenMeta or SelectMeta."""
        variable = self._names.find(name)
        value = self._wait(variable.future)
        return self._meta(variable, value)

    async def ameta(self, name: str) -> Meta:
        """`meta` for `async def` programs."""
        variable = self._names.find(name)
        return self._meta(variable, await self._await(variable.future))

    def metas(self, name: str) -> list[Meta]:
        """`meta` of each item of a list that grew by `append=True`."""
        value = self._wait(self._names.find(name).future)
        return [self._meta(part, part.future.result()) for part in value.parts]

    def _meta(self, variable: Variable, value: Value) -> Meta:
        if value.parts:
            raise self._error("it is a list: `metas` has one for each of its items", variable)
        if value.meta is None:
            raise self._error("nothing was generated for it: the program set it itself", variable)
        return value.meta

    def text(self) -> str:
        """The whole text, as the model sees it: role markers included."""
        return self._wait(self._look()).text

    async def atext(self) -> str:
        """`text` for `async def` programs."""
        return (await self._await(self._look())).text

    def __str__(self) -> str:
        return self.text()

    @property
    def ids(self) -> list[int]:
        """The token ids of the whole text. What no gen or select follows yet may still merge with what comes next."""
        return self._wait(self._look()).ids

    def messages(self) -> list[dict[str, Any]]:
        """The conversation in the form that chat completions take; empty where the program has no turns."""
        return [msgspec.to_builtins(message) for message in self._wait(self._look(render=False)).messages()]

    async def amessages(self) -> list[dict[str, Any]]:
        """`messages` for `async def` programs."""
        return [msgspec.to_builtins(message) for message in (await self._await(self._look(render=False))).messages()]

    async def aids(self) -> list[int]:
        """`ids` for `async def` programs."""
        return (await self._await(self._look())).ids

    def text_iter(self, name: str | None = None) -> Iterator[str]:
        """The text, or the variable `name`, in pieces as it grows; token by token in a run made by `stream`.

        The whole text ends with the program (in the program's own body: with what was appended so far).
        """
        return iter(self._channel(name))

    def atext_iter(self, name: str | None = None) -> AsyncIterator[str]:
        """`text_iter` for event loops."""
        return aiter(self._channel(name))

    @property
    def pins(self) -> tuple[Pin, ...]:
        """What this state has pinned and not unpinned, to be unpinned elsewhere (`Backend.unpin`); waits."""
        self._wait(self.branch.reach())
        return tuple(self.branch.pins)

    @property
    def usage(self) -> Usage:
        """Token counts of all generations of this state and of its forks, summed; waits, and never raises."""
        self._rest()
        return self.branch.usage

    async def ausage(self) -> Usage:
        """`usage` for `async def` programs."""
        await asyncio.wrap_future(settled(self.branch.reach()))
        return self.branch.usage

    @property
    def error(self) -> ProgramError | None:
        """What this state failed with, or None; waits until what was appended is done."""
        self._rest()
        return self.branch.error or self.run.body_error

    @property
    def trace(self) -> dict[str, Any]:
        """What happened in the whole run so far, as plain JSON (`trace.py` says what is in it); waits, never raises."""
        self._rest()
        return trace_of(self.run)

    def show(self) -> None:
        """Prints the run: its text coloured by origin, the tree of forks, totals."""
        from radixrt.lang.terminal import show

        show(self.trace)

    def _repr_html_(self) -> str:
        from radixrt.lang.page import fragment

        return fragment(self.trace)

    def variables(self) -> dict[str, Variable]:
        """A copy of the names declared so far."""
        return self._names.known()

    # --- waiting -----------------------------------------------------------------------------------------------------

    def _wait(self, future: Future[R]) -> R:
        """What a branch answers; its failure ends the work of the branches beside it."""
        refuse_on_loop("the async twin of this call")
        self.branch.before_read(future)
        return self._unwrap(future, future.exception())

    async def _await(self, future: Future[R]) -> R:
        self.branch.before_read(future)
        await asyncio.wrap_future(settled(future))
        return self._unwrap(future, future.exception())

    def _unwrap(self, future: Future[R], error: BaseException | None) -> R:
        if error is None:
            return future.result()
        if isinstance(error, ProgramError) and self.siblings is not None:
            self.siblings.cancel_others(self, error)
        raise error.with_traceback(None)

    def _look(self, *, render: bool = True) -> Future[Context]:
        seen: Future[Context] = Future()
        self.branch.submit(Look(seen, render))
        return seen

    def _rest(self) -> None:
        """Waits until what was appended is done; where the body runs in another thread, until all of it is."""
        with self.run.changed:
            if self._names.body_runs_elsewhere():
                self.run.changed.wait_for(lambda: self.run.ended)
        self.branch.reach().exception()
        if self.run.ended:
            self.run.idle().result()

    def _channel(self, name: str | None) -> Channel:
        if name is not None:
            variable = self._names.find(name)
            self.branch.before_read(variable.future)
            return variable.channel
        channel = self.branch.read_text()
        self.run.close_at_end(self.branch, channel)
        return channel

    def _error(
        self, reason: str, variable: Variable, cause: BaseException | None = None, code: str | None = None
    ) -> ProgramError:
        return ProgramError(
            reason,
            program=self.run.program,
            branch=self.branch.label,
            variable=variable.name,
            span=variable.span,
            cause=cause,
            code=code,
        )
