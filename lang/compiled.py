"""Programs as program requests: what a branch is asked to do is sent ahead, and its results are taken in one by one.

A branch's operations queue up while the body runs. As far as they do not depend on what this process must do itself,
they are sent at once, as items of one open program request (`radixrt.segments`), in which the engine goes on from gen
to text to gen by itself; what is appended later follows while earlier ones run. Nothing is guessed: the body runs, and
what it reads is waited for as ever, so a read is where the queue ends. Each operation is then done here too, in order,
from the events that came: the branch's context is a mirror of the engine's.

    queue:   AddText  Generate  AddText  Choose | Look | AddText  Generate
             fed at once, as one request         done   fed to the same request, with a Start from what stands
    context: follows, operation by operation     here

What only looks is done here. Forks begin in the engine: a child's request waits
there for its parent's, and shares its path.

Over HTTP a request cannot grow while it runs: there each stretch between two waits is a request of its own.
"""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from radixrt.errors import Aborted, RadixrtError
from radixrt.lang.context import Context, Turn
from radixrt.lang.operations import AddText, Choose, CloseTurn, Fork, Generate, OpenTurn, Operation
from radixrt.lang.pieces import Event
from radixrt.lang.selecting import chosen
from radixrt.lang.variables import GenMeta, Value
from radixrt.messages import ChatMessage
from radixrt.program_tracks import GenTrack, SelectTrack
from radixrt.prompts import token_array
from radixrt.segments import BeginTurn, EndTurn, Gen, Opened, ProgramItem, Said, Select, Start, Text
from radixrt.segments import Branch as BranchItem

if TYPE_CHECKING:
    from radixrt.lang.executor import Branch

GATHER_S = 0.001
"""Where a request cannot grow: how long nothing must have been appended until it is sent; at most five times that."""


class ProgramHandle(Protocol):
    """What a branch needs of a program request (`radixrt.programs.AsyncProgram`)."""

    number: int

    def append(self, *items: ProgramItem) -> object: ...

    def send(self, *, closed: bool = False) -> None: ...

    def track(self, index: int) -> GenTrack: ...

    def track_select(self, index: int) -> SelectTrack: ...

    async def receive(self) -> object: ...

    def cancel(self) -> None: ...


@runtime_checkable
class RunsPrograms(Protocol):
    """A backend that takes program requests. `programs_grow`: one takes more while it runs, and can branch."""

    programs_grow: bool

    def aprogram(self, **options: Any) -> ProgramHandle: ...


class OneRequestEach:
    """A backend whose programs send a request for each gen: the same tokens, without program requests."""

    def __init__(self, backend: Any) -> None:
        self._backend = backend

    def __getattr__(self, name: str) -> Any:
        if name in ("program", "aprogram", "programs_grow"):
            raise AttributeError(name)
        return getattr(self._backend, name)


class Feeder:
    """Sends a branch's operations ahead. Only the loop thread uses it."""

    def __init__(self, backend: RunsPrograms, options: Mapping[str, Any], *, streaming: bool) -> None:
        self._backend = backend
        self._options = {**options, "stream": streaming}
        self._program: ProgramHandle | None = None
        self._items: list[ProgramItem] = []
        """Not sent yet."""
        self._walked: deque[tuple[ProgramHandle, int] | None] = deque()
        """Operations at the head of the queue that were looked at; of a gen or select its program, and its index."""
        self._next = 0
        self._restart = False
        """What stands is not what the engine has: begin with a Start."""
        self._busy = False
        """An operation is being done here that the engine does not know: what stands changes."""
        self._failure: RadixrtError | None = None

    @property
    def grows(self) -> bool:
        return self._backend.programs_grow

    def feed(self, queue: Sequence[Operation], context: Context | None) -> None:
        """Look at operations that were not looked at yet, up to one that is done here; send what the engine can do.

        `context`: what stands before the head of the queue; None where that is not known yet (a child that waits).
        What goes wrong is raised by the next `took`.
        """
        if self._busy or self._failure is not None or (context is None and self._program is None):
            return
        if not self.grows:
            if self._walked:
                return  # that request runs
            self._program = None
            self._restart = self._restart or not self._items
        try:
            self._walk(queue, context)
        except RadixrtError as error:
            self._failure = error

    @property
    def walked(self) -> int:
        """How many operations at the head of the queue were looked at."""
        return len(self._walked)

    def took(self) -> tuple[ProgramHandle, int] | None:
        """The head of the queue is to be done now, and `did` must follow. Of what the engine runs, where.

        Raises what the feeding met.
        """
        if self._failure is not None:
            raise self._failure
        if self._walked:
            self._busy = not self.grows
            return self._walked.popleft()
        self._busy, self._restart, self._items = True, True, []  # whatever it changes, the engine does not know of it
        return None

    def did(self) -> None:
        self._busy = False

    def forked(self, program: ProgramHandle) -> None:
        """This branch goes on in a program that waits for its parent's."""
        self._program = program

    def begins(self) -> None:
        """This branch starts from a copy of what stands, unless its program has that from its parent's."""
        self._restart = self._program is None

    def release(self) -> None:
        """End the request. What may follow begins from what stands."""
        if self._program is not None:
            self._program.cancel()
            self._program = None
        self._restart, self._items = True, []
        self._walked.clear()

    # --- inside ------------------------------------------------------------------------------------------------------

    def _walk(self, queue: Sequence[Operation], context: Context | None) -> None:
        for operation in queue:
            taken = None
            if isinstance(operation, Fork) and self.grows:
                self._branch(operation, context)
            elif (item := item_of(operation, self._next)) is not None:
                self._add(item, context)
                if isinstance(item, Gen | Select):
                    self._next += 1
                    taken = self._open(), item.index
            self._walked.append(taken)
        if self._program is not None and any(isinstance(item, Gen | Select | BranchItem) for item in self._items):
            self._send(self._program)

    def _open(self) -> ProgramHandle:
        if self._program is None:
            self._program = self._backend.aprogram(**self._options)
        return self._program

    def _send(self, program: ProgramHandle) -> None:
        items, self._items = self._items, []
        program.append(*items)
        program.send()

    def _add(self, item: ProgramItem, context: Context | None) -> None:
        if self._restart and context is not None:
            self._items = [start_of(context)]
            self._restart = False
        self._items.append(item)

    def _branch(self, fork: Fork, context: Context | None) -> None:
        children = [child for child in fork.children if child.feeder is not None and child.error is None]
        program = self._open()
        if self._restart and context is not None:
            self._items, self._restart = [start_of(context)], False
        self._send(program)  # the parent must be known before its children are
        numbers = []
        for child in children:
            handle = self._backend.aprogram(**self._options, parent=program)
            handle.send()
            if child.feeder is not None:
                child.feeder.forked(handle)
            numbers.append(handle.number)
        self._items.append(BranchItem(children=numbers))
        for child in children:
            child.feed()


def item_of(operation: Operation, index: int) -> ProgramItem | None:
    """The item that an operation is in a program request; `index` is that of a gen or select. None: done here."""
    match operation:
        case AddText(text=text):
            return Text(text=text)
        case OpenTurn(turn=turn):
            return BeginTurn(role=turn.role, name=turn.name, tool_call_id=turn.tool_call_id)
        case CloseTurn():
            return EndTurn()
        case Generate(gen=gen):
            return Gen(
                index=index,
                sampling=gen.sampling,
                constraint=gen.constraint,
                heal=gen.heal is not False,
                tools=list(gen.tools.shown) if gen.tools is not None else [],
                calls=gen.calls,
            )
        case Choose(select=select):
            return Select(
                index=index,
                options=list(select.choices),
                method=select.method,
                return_cache_report=select.return_cache_report,
            )
    return None


async def gather_more(count: Callable[[], int], ended: Callable[[], bool]) -> None:
    """Wait until the body has ended, or nothing more is appended for a moment."""
    began = grew = time.monotonic()
    before = count()
    while not ended() and (now := time.monotonic()) - grew < GATHER_S and now - began < 5 * GATHER_S:
        await asyncio.sleep(min(GATHER_S, 0.001))
        if count() != before:
            before, grew = count(), time.monotonic()


async def take_in(branch: Branch, operation: Generate, program: ProgramHandle, index: int) -> None:
    """Does a gen that the engine runs: its events, as they come."""
    context, variable = branch.context, operation.variable
    track = program.track(index)
    event = Event("sampled", variable.name, variable.span, branch.run.seconds())
    while track.opened is None:
        await program.receive()
    if operation.gen.tools is not None:
        context.show_tools(operation.gen.tools.shown)
    mirror(context, track.opened)
    told = ""
    while True:
        text = track.collector.text_of(0)
        if len(text) > len(told):
            new, told = text[len(told) :], text
            variable.channel.put(new)
            context.emit(new, event)
        if track.done:
            break
        await program.receive()
    result = track.collector.generation()
    if any(choice.finish_reason == "abort" for choice in result.choices):
        raise Aborted("the request was aborted before it finished")
    if track.kept is not None:
        context.ids[track.kept.keep :] = track.kept.ids.tolist()
    context.append_generated((), result.text, operation.gen.calls)
    branch.wrote(result.text)
    branch.count(result.usage)
    event.done(branch.run.seconds(), result.usage, result.choices[0])
    gen = operation.gen
    raw = [choice.text for choice in result.choices] if gen.sampling.n > 1 else result.text
    variable.resolve(Value(raw, GenMeta(result.choices, result.usage), gen.codec))


async def take_choice(branch: Branch, operation: Choose, program: ProgramHandle, index: int) -> None:
    """Does a select that the engine runs."""
    variable = operation.variable
    track = program.track_select(index)
    event = Event("selected", variable.name, variable.span, branch.run.seconds())
    while track.opened is None:
        await program.receive()
    mirror(branch.context, track.opened)
    while track.selection is None:
        await program.receive()
    chosen(branch, operation.select, variable, track.selection, event)


def mirror(context: Context, opened: Opened) -> None:
    """The context as the engine's is when a gen or a select begins."""
    context.ids[opened.keep :] = opened.ids.tolist()
    told = list(opened.told)
    if opened.anew is not None:
        context.wrote_anew(opened.anew, told.pop(0))
    for text in told:
        context.emit(text)
    context.pending = ""
    context.rendered, context.unclosed, context.prompted = opened.rendered, opened.unclosed, opened.prompted
    context.prompt_adds_text, context.stale = opened.prompt_adds_text, False
    turn = context.turn
    if turn is not None:
        context.turn = dataclasses.replace(turn, opened=True)


def start_of(context: Context) -> Start:
    """What stands in a context, for a program that goes on from it."""
    turn = context.turn
    return Start(
        ids=token_array(context.ids),
        pending=context.pending,
        turns=[_said(message) for message in context.turns],
        rendered=context.rendered,
        unclosed=context.unclosed,
        prompt_adds_text=context.prompt_adds_text,
        prompted=context.prompted,
        turn=None if turn is None else _said(turn, opened=turn.opened),
        tools=context.tools,
    )


def _said(turn: Turn | ChatMessage, *, opened: bool = False) -> Said:
    role: Any = turn.role
    return Said(
        role=role,
        content=turn.content,
        name=turn.name,
        tool_call_id=turn.tool_call_id,
        tool_calls=list(turn.tool_calls or ()),
        opened=opened,
    )
