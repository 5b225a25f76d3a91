"""`@function`: a Python function over a state becomes a program that can be run, batched, streamed and composed."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import wait as wait_for
from contextlib import contextmanager
from typing import Any

from radixrt.backend import Backend
from radixrt.errors import InvalidRequest
from radixrt.lang.body import Body, default_backend
from radixrt.lang.errors import ProgramError
from radixrt.lang.expressions import Call
from radixrt.lang.ir import write
from radixrt.lang.loop import loop_thread, refuse_on_loop
from radixrt.lang.options import RunOptions
from radixrt.lang.planning import FirstRead, Plan, PlannedBranch, count_prefix, new_run
from radixrt.lang.run import Run
from radixrt.lang.services import OpenAI
from radixrt.lang.state import ProgramState
from radixrt.lang.workers import bodies

_CANCEL_S = 5.0
"""How long a failed run waits for its aborted requests to be gone before the exception goes on."""


def function(body: Callable[..., Any]) -> Function:
    """Makes a program of a function whose first parameter is the state: `def triage(s, ticket): s += ...`.

    The body may be `async def`: then it reads with `await s.aget("x")`.
    """
    return Function(body)


class Function(Body):
    """A program. Calling it makes an expression, to be appended to another program's state."""

    def __init__(self, body: Callable[..., Any], bound: Mapping[str, Any] | None = None) -> None:
        super().__init__(body, bound)
        functools.update_wrapper(self, body)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """With a state first: runs the body on it now and returns what it returns. Without: an expression."""
        if args and isinstance(args[0], ProgramState):
            return self._invoke(args, kwargs)
        self._check(args, kwargs)
        return Call(self, args, dict(kwargs))

    def bind(self, **kwargs: Any) -> Function:
        """The same program with some arguments given; arguments of a later call beat them."""
        for name in kwargs:
            if name not in self._signature.parameters and not self._takes_any():
                raise InvalidRequest(f"{self.name} has no parameter called {name!r}", param=name)
        return Function(self._body, {**self._bound, **kwargs})

    # --- running -----------------------------------------------------------------------------------------------------

    def run(
        self,
        *args: Any,
        backend: Backend | OpenAI | None = None,
        timeout: float | None = None,
        cache_salt: str | None = None,
        priority: int = 0,
        **kwargs: Any,
    ) -> ProgramState:
        """Runs the program to its end and returns its state.

        What the body itself raises is raised here, after the run's outstanding requests were cancelled. A generation
        that failed raises ProgramError where its result is read. After `timeout` seconds all requests are cancelled,
        and ProgramError with code `timeout` comes out of every read and out of `run` itself. `cache_salt` and
        `priority` go with every request.
        """
        refuse_on_loop(f"{self.name}.arun")
        state = self._state(backend, args, kwargs, RunOptions(timeout, cache_salt, priority))
        with _ending(state.run):
            state.run.start_timer()
            self._call(state, args, kwargs)
            state.run.end()
            state.run.idle().result()
            if state.run.timed_out is not None:
                raise state.run.timed_out
        return state

    def stream(
        self,
        *args: Any,
        backend: Backend | OpenAI | None = None,
        timeout: float | None = None,
        cache_salt: str | None = None,
        priority: int = 0,
        **kwargs: Any,
    ) -> ProgramState:
        """Starts the program and returns its state at once, to be read with `text_iter` while it runs.

        What the body raises, a timeout too, is raised where a result is read.
        """
        state = self._state(backend, args, kwargs, RunOptions(timeout, cache_salt, priority), streaming=True)
        bodies.submit(lambda: self.run_held(state, args, kwargs))
        return state

    async def arun(
        self,
        *args: Any,
        backend: Backend | OpenAI | None = None,
        timeout: float | None = None,
        cache_salt: str | None = None,
        priority: int = 0,
        **kwargs: Any,
    ) -> ProgramState:
        """`run` for event loops. A body that is `async def` runs on the caller's loop, another in a worker thread.

        Cancelling the call cancels the program's requests.
        """
        state = self._state(backend, args, kwargs, RunOptions(timeout, cache_salt, priority))
        with _ending(state.run, wait=False):
            state.run.start_timer()
            await self._acall(state, args, kwargs)
            state.run.end()
            await asyncio.wrap_future(state.run.idle())
            if state.run.timed_out is not None:
                raise state.run.timed_out
        return state

    def run_batch(
        self,
        batch: Sequence[Mapping[str, Any]],
        *,
        backend: Backend | OpenAI | None = None,
        num_threads: int = 64,
        progress_bar: bool = False,
        timeout: float | None = None,
        cache_salt: str | None = None,
        priority: int = 0,
    ) -> list[ProgramState]:
        """Runs the program once for each mapping of arguments, at most `num_threads` at a time.

        The states come back in the order of the batch. A run that failed raises where its state is read
        (`state.error` tells without raising); the others go on. `timeout` counts for each run from its own start. The
        bar is drawn on a terminal only.
        """
        from radixrt.lang.batch import run_batch

        options = RunOptions(timeout, cache_salt, priority)
        return run_batch(self, batch, backend, num_threads, options, progress_bar=progress_bar)

    def iter_batch(
        self,
        batch: Sequence[Mapping[str, Any]],
        *,
        backend: Backend | OpenAI | None = None,
        num_threads: int = 64,
        progress_bar: bool = False,
        timeout: float | None = None,
        cache_salt: str | None = None,
        priority: int = 0,
    ) -> Iterator[ProgramState]:
        """`run_batch` as a generator: each state as soon as it and all before it are done.

        Leaving it early cancels what runs.
        """
        from radixrt.lang.batch import iter_batch

        options = RunOptions(timeout, cache_salt, priority)
        return iter_batch(self, batch, backend, num_threads, options, progress_bar=progress_bar)

    async def arun_batch(
        self,
        batch: Sequence[Mapping[str, Any]],
        *,
        backend: Backend | OpenAI | None = None,
        num_threads: int = 64,
        progress_bar: bool = False,
        timeout: float | None = None,
        cache_salt: str | None = None,
        priority: int = 0,
    ) -> list[ProgramState]:
        """`run_batch` for event loops."""
        from radixrt.lang.batch import arun_batch

        options = RunOptions(timeout, cache_salt, priority)
        return await arun_batch(self, batch, backend, num_threads, options, progress_bar=progress_bar)

    def compile(self, *args: Any, backend: Backend | None = None, **kwargs: Any) -> Plan:
        """The program with these arguments as a tree of nodes (`plan.nodes`, `ir.py`), as far as it is known before its
        first read, and the program requests that they are: `plan.request()`, and `plan.request(i)` for branch i. `run`
        sends the same without being asked. `plan.run(backend=...)` runs it; `explain` is another name for this."""
        return self.explain(*args, backend=backend, **kwargs)

    def explain(self, *args: Any, backend: Backend | None = None, **kwargs: Any) -> Plan:
        """What the program will ask for with these arguments, up to its first read of something the model must write.

        Nothing is generated. The body itself is run up to that read, so what it does before it is done (`planning.py`).
        With a backend (or a default one) the constant prefix is counted in tokens too. `print(f.explain(...))`.
        """
        refuse_on_loop("another thread")
        self._check(args, kwargs)
        chosen = backend if backend is not None else default_backend()
        run, trunk = new_run(self.name, chosen)
        state = ProgramState(run, trunk)

        def again(plan: Plan, *, backend: Backend | OpenAI | None, **options: Any) -> ProgramState:
            backend = backend if backend is not None else chosen
            if plan.whole:
                return Function(_writer(plan)).run(backend=backend, **options)
            return self.run(*args, backend=backend, **options, **kwargs)

        plan = Plan(self.name, again=again)
        try:
            self._call(state, args, kwargs)
        except FirstRead as read:
            plan.whole, plan.stopped, plan.read = False, read.span, read.what
        known = {name: variable.future for name, variable in state.variables().items() if variable.future.done()}
        plan.known = {name: future.result().raw for name, future in known.items()}
        plan.branches = [branch for branch in run.branches if isinstance(branch, PlannedBranch)]
        if chosen is not None and not isinstance(chosen, OpenAI):
            asyncio.run_coroutine_threadsafe(count_prefix(plan, chosen), loop_thread().loop).result()
        return plan


def _writer(plan: Plan) -> Callable[..., None]:
    """A body that does what a whole plan says."""

    def body(state: ProgramState) -> None:
        write(state, plan.nodes)
        for name, value in plan.known.items():
            state.set(name, value)

    body.__name__ = plan.program
    return body


@contextmanager
def _ending(run: Run, *, wait: bool = True) -> Iterator[None]:
    """However a run ends, nothing of it is left: an exception cancels its requests, then goes on."""
    try:
        yield
    except BaseException as error:
        failed = ProgramError(f"the program ended with {type(error).__name__}", program=run.program, code="cancelled")
        run.cancel(failed)
        run.end(failed)
        if wait:
            wait_for([run.idle()], timeout=_CANCEL_S)
        raise
    finally:
        run.stop_timer()
