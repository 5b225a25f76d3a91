"""The branches of one `fork`: a list of states in branch order."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from typing import TYPE_CHECKING, Any, Literal, overload

from radixrt.errors import InvalidRequest
from radixrt.lang.errors import ProgramError
from radixrt.lang.expressions import ExprLike
from radixrt.lang.variables import Variable, settled

if TYPE_CHECKING:
    from types import TracebackType

    from radixrt.lang.readable import Readable
    from radixrt.lang.state import ProgramState

Errors = Literal["raise", "return"]


class Forks(Sequence["ProgramState"]):
    """`forks[i]` is a branch, `forks["x"]` the list of all branches' "x" in branch order.

    Branches run at once and may finish in any order. As a `with` block it joins at its end.
    """

    def __init__(self, source: ProgramState, states: list[ProgramState], items: tuple[Any, ...] = ()) -> None:
        self._source = source
        self.items = items
        """What `fork_map` was given, one a branch; empty after `fork`."""
        self._states = states
        self._inherited = source.variables()
        for state in states:
            state.siblings = self

    def __len__(self) -> int:
        return len(self._states)

    def __iter__(self) -> Iterator[ProgramState]:
        return iter(self._states)

    @overload
    def __getitem__(self, key: int) -> ProgramState: ...
    @overload
    def __getitem__(self, key: slice) -> list[ProgramState]: ...
    @overload
    def __getitem__(self, key: str) -> list[Any]: ...
    def __getitem__(self, key: int | slice | str) -> ProgramState | list[ProgramState] | list[Any]:
        if isinstance(key, str):
            return [state[key] for state in self._states]
        return self._states[key]

    def __setitem__(self, index: int, state: ProgramState) -> None:
        """Only what `forks[i] += expr` needs: a branch stays the branch it is."""
        if self._states[index] is not state:
            raise InvalidRequest("a branch cannot be replaced by another state")

    def __iadd__(self, expr: ExprLike) -> Forks:
        """Appends the same to every branch."""
        for state in self._states:
            state += expr
        return self

    def join(self, errors: Errors = "raise") -> list[ProgramError | None]:
        """Waits for all branches, and gathers their new variables in the state they came from.

        A variable that branches set becomes a list in branch order, with None for a branch that did not set it; a
        name that the source already had stays as it is. The branches' text stays theirs.

        With errors="raise" the first failure is raised as soon as it is there, and the other branches' work is
        cancelled. With errors="return" all run to their end; the result holds each branch's error or None, and a
        gathered list holds the error in the place of a value that could not be had.
        """
        _check(errors)
        self._source.branch.before_join(len(self))
        reached = [state.branch.reach() for state in self._states]
        wait(reached, return_when=FIRST_EXCEPTION if errors == "raise" else "ALL_COMPLETED")
        return self._gather(reached, errors)

    async def ajoin(self, errors: Errors = "raise") -> list[ProgramError | None]:
        """`join` for `async def` programs."""
        _check(errors)
        self._source.branch.before_join(len(self))
        reached = [state.branch.reach() for state in self._states]
        waiting = {asyncio.wrap_future(settled(future)): future for future in reached}
        while waiting:
            done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            failed = [signal for signal in done if waiting.pop(signal).exception() is not None]
            if failed and errors == "raise":
                break
        return self._gather(reached, errors)

    def cancel_others(self, failed: Readable, error: ProgramError) -> None:
        """Ends the work of the branches beside the one that failed."""
        for state in self._states:
            if state is not failed:
                why = f"cancelled, because a branch beside it failed: {error.message}"
                state.branch.cancel(
                    ProgramError(why, program=error.program, branch=state.branch.label, cause=error, code="cancelled")
                )

    def __enter__(self) -> Forks:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is None:
            self.join()

    def _gather(self, reached: list[Future[None]], errors: Errors) -> list[ProgramError | None]:
        outcomes: list[ProgramError | None] = []
        for future in reached:
            error = future.exception() if future.done() else None
            if error is not None and not isinstance(error, ProgramError):
                raise error
            outcomes.append(error)
        if errors == "raise":
            for state, outcome in zip(self._states, outcomes, strict=True):
                if outcome is not None:
                    self.cancel_others(state, outcome)
                    raise outcome
        branches = [state.variables() for state in self._states]
        names = dict.fromkeys(name for variables in branches for name in variables if name not in self._inherited)
        for name in names:
            self._source.set(
                name,
                [_value(variables.get(name), state) for variables, state in zip(branches, self._states, strict=True)],
            )
        return outcomes


def _value(variable: Variable | None, state: ProgramState) -> Any:
    if variable is None:
        return None
    try:
        return state.read(variable)
    except ProgramError as error:
        return error


def _check(errors: str) -> None:
    if errors not in ("raise", "return"):
        raise InvalidRequest(f'errors must be "raise" or "return", but is {errors!r}', param="errors")
