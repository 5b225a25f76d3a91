"""One program over HTTP while it runs: the engine's program, its branches, and the texts that templates wait for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

import msgspec

from radixrt.errors import InvalidRequest, RadixrtError
from radixrt.programs import AsyncProgram
from radixrt.segments import MAX_CHARS, Branched, Gen, ProgramEvent, Select, Text
from radixrt.server.program_plan import Plan, Reference, references
from radixrt.server.program_types import (
    Fork,
    ForkResult,
    GenResult,
    HttpItem,
    ProgramAnswer,
    ProgramRequest,
    SelectResult,
    Template,
)


class MakesPrograms(Protocol):
    """An engine that runs programs."""

    def aprogram(
        self, *, cache_salt: str | None, priority: int, timeout: float | None, stream: bool
    ) -> AsyncProgram: ...


class ProgramRun:
    """Runs `body` on `engine`; `events` once, then `answer`. For one task."""

    def __init__(self, engine: MakesPrograms, body: ProgramRequest, plan: Plan) -> None:
        self._engine = engine
        self._body = body
        self._plan = plan
        self._events: asyncio.Queue[ProgramEvent | None] = asyncio.Queue()
        self._owners: dict[int, AsyncProgram] = {}
        """The program or branch of each Gen and Select that was reached."""
        self._branches: dict[str, list[asyncio.Task[str]]] = {}
        """By a fork's name: tasks that end with what a branch says."""

    async def events(self) -> AsyncGenerator[ProgramEvent, None]:
        """Everything that happens, until the program is over; raises what ended it. Closing it ends the program."""
        task = asyncio.create_task(self._whole())
        try:
            while (happened := await self._events.get()) is not None:
                yield happened
            await task
        finally:
            task.cancel()
            await asyncio.wait({task})
            if not task.cancelled():
                task.exception()  # seen, wherever it was raised

    def answer(self) -> ProgramAnswer:
        """What came of it; for a program whose events came to their end."""
        plan = self._plan
        gens = [(index, self._owners[index].track(index).collector.generation()) for index in plan.gens]
        chosen = [(index, self._owners[index].track_select(index).selection) for index in plan.selects]
        return ProgramAnswer(
            gens=[GenResult(index=index, generation=generation) for index, generation in gens],
            selects=[SelectResult(index=index, selection=found) for index, found in chosen if found is not None],
            forks=[ForkResult(name=name, texts=[t.result() for t in self._branches[name]]) for name in plan.forks],
        )

    async def _whole(self) -> None:
        body = self._body
        program = self._engine.aprogram(
            cache_salt=body.cache_salt, priority=body.priority, timeout=body.timeout_s, stream=body.stream
        )
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._run(program, body.items, group))
        except BaseExceptionGroup as errors:
            raise _cause(errors) from None
        finally:
            self._events.put_nowait(None)

    async def _run(self, program: AsyncProgram, items: Sequence[HttpItem], group: asyncio.TaskGroup) -> str:
        """Run one branch to its end; what it says."""
        said: list[str | int] = []
        async with program:
            for item in items:
                if isinstance(item, Fork):
                    branches = await self._fork(program, item, group)
                    if item.join is None:
                        continue
                    text = _bounded([await branch for branch in branches])
                elif isinstance(item, Template):
                    await self._drained(program)
                    text = await self._filled(item)
                else:
                    program.append(item)
                    if isinstance(item, Gen | Select):
                        self._owners[item.index] = program
                        said.append(item.index)
                    elif isinstance(item, Text):
                        said.append(item.text)
                    continue
                program.append(Text(text=text))
                said.append(text)
            program.send(closed=True)
            await self._drained(program)
        return "".join(piece if isinstance(piece, str) else self._written(piece) for piece in said)

    async def _fork(
        self, program: AsyncProgram, fork: Fork, group: asyncio.TaskGroup
    ) -> list[asyncio.Task[str]]:  # fmt: skip
        """Start the branches; returns when the engine has reached the fork."""
        children = program.branch(len(fork.branches))
        tasks = [
            group.create_task(self._branch(child, items, group, f"branch {number} of the fork {fork.name!r}"))
            for number, (child, items) in enumerate(zip(children, fork.branches, strict=True))
        ]
        self._branches[fork.name] = tasks
        reached = False
        while not (reached and program.finished):
            for happened in await program.receive():
                reached = self._tell(happened) or reached
        return tasks

    async def _branch(
        self, program: AsyncProgram, items: Sequence[HttpItem], group: asyncio.TaskGroup, label: str
    ) -> str:  # fmt: skip
        with _named(label):
            return await self._run(program, items, group)

    async def _drained(self, program: AsyncProgram) -> None:
        """All that was appended has been done."""
        program.send()
        while not program.finished:
            for happened in await program.receive():
                self._tell(happened)

    def _tell(self, happened: ProgramEvent) -> bool:
        """Pass an event on; whether it says that the branches have begun, which is nobody's concern outside."""
        if isinstance(happened, Branched):
            return True
        self._events.put_nowait(happened)
        return False

    async def _filled(self, template: Template) -> str:
        pieces: list[str] = []
        for piece in references(template.text):
            pieces.append(piece if isinstance(piece, str) else await self._referred(piece))
        return _bounded(pieces)

    async def _referred(self, reference: Reference) -> str:
        if reference.fork:
            return await (await self._task(reference.fork, reference.branch))
        if reference.index not in self._owners or not self._done(reference.index):
            # It stands in a branch of an earlier fork: what is above this branch was done when its fork was reached.
            await (await self._task(*self._plan.index_homes[reference.index]))
        return self._written(reference.index)

    async def _task(self, fork: str, branch: int) -> asyncio.Task[str]:
        """The task of a branch; waits for its fork to be reached, which may stand in a branch itself."""
        if fork not in self._branches:
            await (await self._task(*self._plan.fork_homes[fork]))
        return self._branches[fork][branch]

    def _done(self, index: int) -> bool:
        owner = self._owners[index]
        return owner.track(index).done if index in self._plan.gens else owner.track_select(index).done

    def _written(self, index: int) -> str:
        owner = self._owners[index]
        if index in self._plan.gens:
            return owner.track(index).collector.generation().text
        selection = owner.track_select(index).selection
        return str(selection.choice) if selection is not None else ""


def _bounded(pieces: Sequence[str]) -> str:
    if sum(map(len, pieces)) > MAX_CHARS:
        raise InvalidRequest(f"the text of a template or a join is longer than {MAX_CHARS} characters", param="items")
    return "".join(pieces)


@contextmanager
def _named(label: str) -> Iterator[None]:
    """Errors say in which branch they arose."""
    try:
        yield
    except RadixrtError as error:
        info = error.info()
        raise RadixrtError.from_info(msgspec.structs.replace(info, message=f"{label}: {info.message}")) from error


def _cause(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    """What ended the program: not that others were cancelled because of it."""
    leaves = [leaf for error in errors.exceptions for leaf in _leaves(error)]
    return next((leaf for leaf in leaves if getattr(leaf, "code", None) != "cancelled"), leaves[0])


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _leaves(inner)
    else:
        yield error
