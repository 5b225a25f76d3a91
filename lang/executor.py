"""The branches of a run: who does what, in which thread, and how it ends.

A `Run` (`run.py`) is one call of a program. It has branches: the trunk and every fork. A branch is a queue of
operations that run one after another on the loop thread (`loop.py`); branches run at once.

    caller's thread                              loop thread
    s += text + gen("x")   --submit-->           queue: AddText, Generate      one task while there is work
    s["x"]  waits for the variable's future  <-- resolve or fail
    s.fork(2)              --submit-->           queue: Fork                   starts the children with a copy

States of a branch: waiting (a child whose parent has not got to its Fork) -> idle <-> busy; failed is for ever: every
later operation fails with the same error, so whoever waits is answered. `Run.busy` holds the branches with work;
a run is over when its body has ended and nothing is busy. Only the loop thread touches a branch's context.
"""

from __future__ import annotations

import asyncio
from collections import deque
from concurrent.futures import Future
from itertools import islice
from typing import Any

from radixrt.errors import RadixrtError
from radixrt.lang.channel import Channel
from radixrt.lang.compiled import Feeder, gather_more, take_choice, take_in
from radixrt.lang.context import Context
from radixrt.lang.errors import ProgramError
from radixrt.lang.interpreter import execute
from radixrt.lang.loop import loop_thread, post
from radixrt.lang.operations import Choose, EndText, Generate, Operation, Reach
from radixrt.lang.run import Run
from radixrt.lang.variables import Variable
from radixrt.results import Pin, Usage


class Branch:
    """One line of a program's text and the operations that extend it."""

    def __init__(self, run: Run, label: str | None = None, parent: Branch | None = None) -> None:
        self.run = run
        self.label = label
        self.parent = parent
        self.context = Context(on_text=self._tell)
        self.scopes: dict[Variable, list[str]] = {}
        self.inherited = 0
        """How many of the context's pieces are the parent's."""
        self.error: ProgramError | None = None
        self.usage = Usage()
        """Of this branch and all that were forked from it."""
        self.pins: list[Pin] = []
        """What it has pinned and not unpinned."""
        self.feeder: Feeder | None = run.feeder()
        """Sends the queue ahead, where the backend takes programs; None: each operation is done by itself."""
        self._queue: deque[Operation] = deque()
        self._feeding = False
        self._started = parent is None
        self._task: asyncio.Task[None] | None = None
        self._current: Operation | None = None
        self._readers: list[Channel] = []
        with run.changed:
            run.branches.append(self)

    # --- from any thread ---------------------------------------------------------------------------------------------

    def child(self, label: str) -> Branch:
        """One that waits for a Fork of this branch to start it."""
        return Branch(self.run, label, self)

    def before_read(self, future: Future[Any]) -> None:
        """Called by who is about to wait for a result; a plan ends here."""

    def before_join(self, branches: int) -> None:
        """Called by who is about to wait for so many branches; a plan ends here."""

    def submit(self, *operations: Operation) -> None:
        with self.run.changed:
            if self.error is None:
                self.error = self.run.cancelled
            self._queue.extend(operations)
            if self in self.run.busy or not self._started:
                self.run.busy.add(self)  # its task gets to them, or its parent starts it
                if self.feeder is not None and self.feeder.grows and not self._feeding:
                    self._feeding = True  # where a request cannot grow, its task gathers first, and feeds then
                    post(self.feed)
                return
            self.run.busy.add(self)
        post(self._begin)

    def reach(self) -> Future[None]:
        """Settled when everything submitted so far is done, with the branch's error where it failed."""
        done: Future[None] = Future()
        self.submit(Reach(done))
        return done

    def cancel(self, error: ProgramError) -> None:
        """Fails what is under way and queued. A branch without work is left as it is."""
        post(self._cancel, error)

    def read_text(self) -> Channel:
        """The growing text from its beginning, as a channel that `Run.close_at_end` must close."""
        channel = Channel()
        post(self._attach, channel)
        return channel

    def end_text(self, channel: Channel) -> None:
        self.submit(EndText(channel))

    # --- on the loop thread ------------------------------------------------------------------------------------------

    def start(self, context: Context) -> None:
        """A child begins from its parent's context (unless it was cancelled before)."""
        if self._started:
            return
        context.on_text = self._tell
        self.context = context
        if self.feeder is not None:
            self.feeder.begins()
        self.inherited = len(context.pieces)
        for channel in self._readers:
            channel.put(context.text)
        self._go()

    def start_failed(self, error: ProgramError) -> None:
        """A child whose parent failed before it could start."""
        if self._started:
            return
        self.error = self.error or error
        self._go()

    def count(self, usage: Usage) -> None:
        branch: Branch | None = self
        while branch is not None:
            branch.usage = branch.usage + usage
            branch = branch.parent

    def wrote(self, text: str) -> None:
        """Content (not a role marker) was appended: open scopes record it."""
        for pieces in self.scopes.values():
            pieces.append(text)

    def finish_text(self, channel: Channel, rest: str) -> None:
        self._attach(channel)
        channel.put(rest)
        channel.close()
        self._readers.remove(channel)

    def feed(self) -> None:
        """Send ahead what is queued."""
        with self.run.changed:
            self._feeding = False
            if self.feeder is None or self.error is not None:
                return
            queue = list(islice(self._queue, self.feeder.walked, None))
        if queue:
            self.feeder.feed(queue, self.context if self._started else None)

    def release(self) -> None:
        """The run is over: nothing of it stays open."""
        if self.feeder is not None:
            self.feeder.release()

    def _go(self) -> None:
        with self.run.changed:
            self._started = True
            waiting = self in self.run.busy
        if waiting:
            self._begin()

    def _begin(self) -> None:
        self._task = loop_thread().loop.create_task(self._drain())

    def _attach(self, channel: Channel) -> None:
        if channel not in self._readers and not channel.closed:
            self._readers.append(channel)
            channel.put(self.context.text)

    def _tell(self, text: str) -> None:
        for channel in self._readers:
            channel.put(text)

    def _cancel(self, error: ProgramError) -> None:
        with self.run.changed:
            if self not in self.run.busy:
                return
            self.error = self.error or error
            waiting = not self._started
        if waiting:
            self._go()
        elif self._current is not None and self._task is not None:
            self._task.cancel()

    async def _drain(self) -> None:
        if self.feeder is not None and not self.feeder.grows:
            await gather_more(lambda: len(self._queue), lambda: self.run.ended)
        while True:
            self.feed()
            with self.run.changed:
                if not self._queue:
                    self.run.busy.discard(self)
                    self._task = None
                    waiters = self.run.became_idle()
                    over = self.run.over
                    break
                operation = self._queue.popleft()
            if self.error is None:
                await self._do(operation)
            else:
                operation.fail(self.error)
            if self.error is not None:
                self.release()
        if over:
            self.run.release()
        for waiter in waiters:
            waiter.set_result(None)

    async def _do(self, operation: Operation) -> None:
        self._current = operation
        try:
            await self._execute(operation)
        except asyncio.CancelledError:
            failure = self.error or self._failure("cancelled", operation, None)
        except RadixrtError as error:
            failure = self._failure(error.message, operation, error)
        except Exception as error:  # noqa: BLE001 - whatever a backend raises must reach the one who reads
            failure = self._failure(f"{type(error).__name__}: {error}", operation, error)
        else:
            return
        finally:
            self._current = None
        if not operation.reads:
            self.error = failure
        operation.fail(failure)

    async def _execute(self, operation: Operation) -> None:
        if self.feeder is None:
            await execute(self, operation)
            return
        taken = self.feeder.took()
        try:
            if taken is not None and isinstance(operation, Generate):
                await take_in(self, operation, *taken)
            elif taken is not None and isinstance(operation, Choose):
                await take_choice(self, operation, *taken)
            else:
                await execute(self, operation)
        finally:
            self.feeder.did()

    def _failure(self, reason: str, operation: Operation, cause: BaseException | None) -> ProgramError:
        return ProgramError(
            reason,
            program=self.run.program,
            branch=self.label,
            variable=operation.variable_name,
            span=operation.span,
            cause=cause,
        )
