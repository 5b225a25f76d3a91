"""Program requests from the client's side: append text and gens, read what comes, without a round trip in between.

    with engine.program() as program:
        program.text("The capital of France is").gen("a", SamplingParams(max_tokens=5))
        program.text("\\nThe capital of Italy is").gen("b", SamplingParams(max_tokens=5))
        print(program["a"].text, program["b"].text)

What is appended is sent when something is read, or by `send`; the engine runs it while more may be appended.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from typing import Literal, Self

from radixrt.choosing import check_options
from radixrt.connection import AsyncInbox, Connection, Inbox, SyncInbox
from radixrt.errors import Aborted, InvalidRequest, RadixrtError
from radixrt.messages import Abort, AppendProgram, OpenProgram, ProgramNews
from radixrt.params import ChoicesMethod, Constraint, SamplingParams
from radixrt.program_tracks import GenTrack, SelectTrack, Tracks
from radixrt.results import Generation, Selection
from radixrt.segments import (
    BeginTurn,
    Branch,
    EndTurn,
    Gen,
    ProgramEvent,
    ProgramItem,
    Select,
    Text,
)


class ProgramBase:
    """What programs for threads and for tasks share. Made by `Engine.program` and `Engine.aprogram`."""

    def __init__(
        self,
        connection: Connection,
        inbox: Inbox,
        *,
        cache_salt: str | None = None,
        tenant: str | None = None,
        priority: int = 0,
        timeout: float | None = None,
        stream: bool = True,
        parent: ProgramBase | None = None,
    ) -> None:
        self._connection = connection
        self._tenant = tenant
        self._salt, self._priority, self._stream = cache_salt, priority, stream
        self._timeout_s = timeout
        self._deadline = None if timeout is None else time.monotonic() + timeout
        self._parent = parent
        self._queued: list[ProgramItem] = []
        self._tracks = Tracks()
        self._names: dict[str, int] = {}
        self._opened = self._closed = False
        self._over = False
        self._error: RadixrtError | None = None
        self._events: deque[ProgramEvent] = deque()
        self.number = connection.open(inbox)
        """The request id of this program."""

    # --- appending ---------------------------------------------------------------------------------------------------

    def text(self, text: str) -> Self:
        """Constant text; never parsed for special tokens."""
        return self.append(Text(text=text))

    def begin(
        self, role: Literal["system", "user", "assistant", "tool"], *, name: str | None = None,
        tool_call_id: str | None = None,
    ) -> Self:  # fmt: skip
        """A turn of a conversation begins; `end` ends it."""
        return self.append(BeginTurn(role=role, name=name, tool_call_id=tool_call_id))

    def end(self) -> Self:
        return self.append(EndTurn())

    def gen(
        self,
        name: str,
        sampling_params: SamplingParams | None = None,
        *,
        constraint: Constraint | None = None,
        heal: bool = True,
    ) -> Self:
        """Text that the model writes, to be read under `name`."""
        index = self._new(name)
        return self.append(
            Gen(index=index, sampling=sampling_params or SamplingParams(), constraint=constraint, heal=heal)
        )

    def select(
        self,
        name: str,
        options: Sequence[str],
        *,
        method: ChoicesMethod = "token_length_normalized",
        return_cache_report: bool = False,
    ) -> Self:
        """The best of some texts, to be read under `name` (`selection`)."""
        check_options(options, method)
        index, texts = self._new(name), list(options)
        return self.append(Select(index=index, options=texts, method=method, return_cache_report=return_cache_report))

    def append(self, *items: ProgramItem) -> Self:
        """Queue items; `send` sends them."""
        if self._closed:
            raise InvalidRequest("nothing can be appended to a program that was closed")
        for item in items:
            self._tracks.expect(item)
        self._queued.extend(items)
        return self

    def send(self, *, closed: bool = False) -> None:
        """Send what is queued. `closed`: nothing will follow, so that the program ends with its last item."""
        if self._error is not None:
            raise self._error
        items, self._queued = self._queued, []
        if self._over or (self._opened and not items and not (closed and not self._closed)):
            return
        if self._opened:
            self._connection.send(AppendProgram(request_id=self.number, items=items, closed=closed))
        else:
            parent = self._parent.number if self._parent is not None else None
            self._connection.send(
                OpenProgram(
                    request_id=self.number, items=items, closed=closed, parent=parent, cache_salt=self._salt,
                    tenant=self._tenant, priority=self._priority, stream=self._stream,
                )
            )  # fmt: skip
            self._opened = True
        self._closed = self._closed or closed

    def cancel(self) -> None:
        """Stop its work; once more is harmless."""
        if self._over:
            return
        self._over = True
        self._connection.forget(self.number)
        if self._opened and self._connection.alive:
            self._connection.send(Abort(request_id=self.number))

    # --- reading -----------------------------------------------------------------------------------------------------

    def track(self, index: int) -> GenTrack:
        """What has come so far of the gen of this index."""
        return self._tracks.gens[index]

    def track_select(self, index: int) -> SelectTrack:
        return self._tracks.selects[index]

    @property
    def finished(self) -> bool:
        """Every gen and select so far is done."""
        return self._tracks.done

    @property
    def over(self) -> bool:
        """Nothing more will come."""
        return self._over or (self._closed and not self._queued and self.finished)

    @property
    def _left_s(self) -> float | None:
        return None if self._deadline is None else max(self._deadline - time.monotonic(), 0.0)

    def _new(self, name: str) -> int:
        if name in self._names:
            raise InvalidRequest(f"the program has a gen or a select called {name!r} already", param="name")
        self._names[name] = len(self._tracks)
        return self._names[name]

    def _index(self, name: str, kind: Literal["gen", "select"]) -> int:
        known = self._tracks.gens if kind == "gen" else self._tracks.selects
        names = [other for other, index in self._names.items() if index in known]
        if name not in names:
            raise InvalidRequest(f"the program has no {kind} called {name!r}; there are: {', '.join(names)}")
        return self._names[name]

    def _take(self, item: object) -> Sequence[ProgramEvent]:
        if isinstance(item, ProgramNews):
            for event in item.events:
                self._note(event)
            return item.events
        self._error = item if isinstance(item, RadixrtError) else RadixrtError("unexpected answer to a program")
        self._over = True
        self._connection.forget(self.number)
        raise self._error

    def _note(self, event: ProgramEvent) -> None:
        self._tracks.note(event)
        if self.over and not self._over:
            self._over = True
            self._connection.forget(self.number)

    def _timed_out(self) -> Aborted:
        self.cancel()
        self._error = Aborted(f"the program took longer than {self._timeout_s} s and was cancelled", code="timeout")
        return self._error

    def __del__(self) -> None:
        if getattr(self, "number", None) is not None:
            self.cancel()


class Program(ProgramBase):
    """For one thread. `program[name]` waits for a gen; as an iterator it gives events until it is over."""

    def __init__(self, connection: Connection, parent: Program | None = None, **options: object) -> None:
        self._inbox = SyncInbox()
        super().__init__(connection, self._inbox, parent=parent, **options)  # type: ignore[arg-type]

    def __getitem__(self, name: str) -> Generation:
        """The gen's result; waits for it. Raises the RadixrtError that ended the program."""
        gen = self._tracks.gens[self._index(name, "gen")]
        while not gen.done:
            self._receive()
        return gen.collector.generation()

    def selection(self, name: str) -> Selection:
        """What a select chose; waits for it."""
        select = self._tracks.selects[self._index(name, "select")]
        while select.selection is None:
            self._receive()
        return select.selection

    def branch(self, n: int) -> list[Program]:
        """n programs that go on from here, all at once, and share what stands."""
        self.send()  # the parent must be known before its children are
        children = [Program(self._connection, self, **_options(self)) for _ in range(n)]
        for child in children:
            child.send()
        self.append(Branch(children=[child.number for child in children]))
        self.send()
        return children

    def __iter__(self) -> Program:
        return self

    def __next__(self) -> ProgramEvent:
        while not self._events:
            if self.over:
                raise StopIteration
            self._events.extend(self._receive())
        return self._events.popleft()

    def _receive(self) -> Sequence[ProgramEvent]:
        self.send()
        if self._over:
            raise self._error or Aborted("the program was cancelled")
        try:
            item = self._inbox.get(self._left_s)
        except TimeoutError:
            raise self._timed_out() from None
        except BaseException:
            self.cancel()  # Ctrl-C while waiting
            raise
        return self._take(item)

    def __enter__(self) -> Program:
        return self

    def __exit__(self, *_: object) -> None:
        self.cancel()


class AsyncProgram(ProgramBase):
    """For one task of an event loop; a cancelled task cancels the program."""

    def __init__(self, connection: Connection, parent: AsyncProgram | None = None, **options: object) -> None:
        self._inbox = AsyncInbox()
        super().__init__(connection, self._inbox, parent=parent, **options)  # type: ignore[arg-type]

    async def get(self, name: str) -> Generation:
        """The gen's result; waits for it. Raises the RadixrtError that ended the program."""
        return await self.result(self._index(name, "gen"))

    async def selection(self, name: str) -> Selection:
        """What a select chose; waits for it."""
        select = self._tracks.selects[self._index(name, "select")]
        while select.selection is None:
            await self.receive()
        return select.selection

    async def result(self, index: int) -> Generation:
        gen = self._tracks.gens[index]
        while not gen.done:
            await self.receive()
        return gen.collector.generation()

    def branch(self, n: int) -> list[AsyncProgram]:
        """n programs that go on from here, all at once, and share what stands."""
        self.send()
        children = [AsyncProgram(self._connection, self, **_options(self)) for _ in range(n)]
        for child in children:
            child.send()
        self.append(Branch(children=[child.number for child in children]))
        self.send()
        return children

    def __aiter__(self) -> AsyncProgram:
        return self

    async def __anext__(self) -> ProgramEvent:
        while not self._events:
            if self.over:
                raise StopAsyncIteration
            self._events.extend(await self.receive())
        return self._events.popleft()

    async def receive(self) -> Sequence[ProgramEvent]:
        """The next events, which are in `track` too; what is queued is sent first."""
        self.send()
        if self._over:
            raise self._error or Aborted("the program was cancelled")
        try:
            item = await self._inbox.get(self._left_s)
        except TimeoutError:
            raise self._timed_out() from None
        except BaseException:
            self.cancel()
            raise
        return self._take(item)

    async def __aenter__(self) -> AsyncProgram:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.cancel()


def _options(program: ProgramBase) -> dict[str, object]:
    """A branch is run as its parent is."""
    return {
        "cache_salt": program._salt,
        "tenant": program._tenant,
        "priority": program._priority,
        "timeout": program._left_s,
        "stream": program._stream,
    }
