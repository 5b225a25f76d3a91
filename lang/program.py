"""`@function`: a Python function over a state becomes a program that can be run, batched, streamed and composed."""

from __future__ import annotations

import asyncio
import functools
import inspect
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import wait as wait_for
from contextlib import contextmanager
from typing import Any

from radixrt.backend import Backend
from radixrt.errors import InvalidRequest
from radixrt.lang.errors import ProgramError
from radixrt.lang.executor import Branch, Run
from radixrt.lang.expressions import Call
from radixrt.lang.loop import loop_thread, refuse_on_loop
from radixrt.lang.options import RESERVED, RunOptions
from radixrt.lang.planning import FirstRead, Plan, PlannedBranch, count_prefix, new_run
from radixrt.lang.services import OpenAI
from radixrt.lang.state import ProgramState
from radixrt.lang.trace import note_run
from radixrt.lang.variables import settled
from radixrt.lang.workers import bodies

_CANCEL_S = 5.0
"""How long a failed run waits for its aborted requests to be gone before the exception goes on."""

_default_backend: Backend | OpenAI | None = None


def set_default_backend(backend: Backend | OpenAI | None) -> None:
    """The backend of runs that are given none."""
    global _default_backend
    _default_backend = backend


def function(body: Callable[..., Any]) -> Function:
    """Makes a program of a function whose first parameter is the state: `def triage(s, ticket): s += ...`.

    The body may be `async def`: then it reads with `await s.aget("x")`.
    """
    return Function(body)


class Function:
    """A program. Calling it makes an expression, to be appended to another program's state."""

    def __init__(self, body: Callable[..., Any], bound: Mapping[str, Any] | None = None) -> None:
        self._body = body
        self._bound = dict(bound or {})
        self._signature = inspect.signature(body)
        functools.update_wrapper(self, body)
        names = list(self._signature.parameters)
        if not names:
            raise InvalidRequest(f"{self.name} must take the state as its first parameter")
        for name in RESERVED:
            if name in names:
                raise InvalidRequest(
                    f"{self.name}: a program cannot have a parameter called {name}: `run` takes it itself", param=name
                )

    @property
    def name(self) -> str:
        return getattr(self._body, "__name__", type(self._body).__name__)

    def __repr__(self) -> str:
        return f"<program {self.name}{self._signature}>"

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

    def explain(self, *args: Any, backend: Backend | None = None, **kwargs: Any) -> Plan:
        """What the program will ask for with these arguments, up to its first read of something the model must write.

        Nothing is generated. The body itself is run up to that read, so what it does before it is done (`planning.py`).
        With a backend (or a default one) the constant prefix is counted in tokens too. `print(f.explain(...))`.
        """
        refuse_on_loop("another thread")
        self._check(args, kwargs)
        chosen = backend if backend is not None else _default_backend
        run, trunk = new_run(self.name, chosen)
        plan = Plan(self.name)
        try:
            self._call(ProgramState(run, trunk), args, kwargs)
        except FirstRead as read:
            plan.whole, plan.stopped = False, read.span
        plan.branches = [branch for branch in run.branches if isinstance(branch, PlannedBranch)]
        if chosen is not None and not isinstance(chosen, OpenAI):
            asyncio.run_coroutine_threadsafe(count_prefix(plan, chosen), loop_thread().loop).result()
        return plan

    # --- for the other files of this folder --------------------------------------------------------------------------

    def inline(self, state: ProgramState, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Runs the body on a state that another program is writing."""
        if inspect.iscoroutinefunction(self._body):
            raise InvalidRequest(f"{self.name} is async: write `await {self.name}(s, ...)` instead of appending it")
        self._invoke((state, *args), kwargs)

    def run_held(self, state: ProgramState, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Runs the body to its end; an exception is kept for the readers of the state."""
        state.run.start_timer()
        try:
            self._call(state, args, kwargs)
        except BaseException as error:  # noqa: BLE001 - raised again where a result is read
            failed = self.failure(error)
            state.run.cancel(failed)
            state.run.end(failed)
        else:
            state.run.end()
        state.run.idle().result()
        state.run.stop_timer()

    async def arun_held(self, state: ProgramState, kwargs: Mapping[str, Any]) -> None:
        """The same on the caller's loop; only a cancellation is raised."""
        run = state.run
        run.start_timer()
        try:
            await self._acall(state, (), kwargs)
        except asyncio.CancelledError:
            run.cancel(ProgramError("the batch was cancelled", program=self.name, code="cancelled"))
            run.end(run.cancelled)
            raise
        except Exception as error:  # noqa: BLE001 - raised again where a result is read
            failed = self.failure(error)
            run.cancel(failed)
            run.end(failed)
        else:
            run.end()
        await asyncio.wrap_future(run.idle())
        run.stop_timer()

    def failure(self, error: BaseException) -> ProgramError:
        """What the readers of a state get when its body raised."""
        if isinstance(error, ProgramError):
            return error
        return ProgramError(f"the program raised {type(error).__name__}: {error}", program=self.name, cause=error)

    def check_arguments(self, kwargs: Mapping[str, Any], where: str) -> None:
        """InvalidRequest where the program cannot be called so."""
        try:
            self._check((), kwargs)
        except TypeError as error:
            raise InvalidRequest(f"{where}: {self.name}: {error}") from error

    def new_state(
        self, backend: Backend | OpenAI | None, options: RunOptions | None = None, *, streaming: bool = False
    ) -> ProgramState:
        chosen = backend if backend is not None else _default_backend
        if chosen is None:
            raise InvalidRequest(
                "no backend: give run(..., backend=engine), or call set_default_backend(engine) once", param="backend"
            )
        run = Run(self.name, chosen, streaming=streaming, options=options)
        note_run(run)
        return ProgramState(run, Branch(run))

    # --- inside ------------------------------------------------------------------------------------------------------

    def _state(
        self,
        backend: Backend | OpenAI | None,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        options: RunOptions,
        *,
        streaming: bool = False,
    ) -> ProgramState:
        self._check(args, kwargs)
        return self.new_state(backend, options, streaming=streaming)

    def _call(self, state: ProgramState, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        state.run.body_thread = threading.get_ident()
        if not inspect.iscoroutinefunction(self._body):
            self._invoke((state, *args), kwargs)
            return
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            asyncio.run(self._invoke((state, *args), kwargs))
        else:
            raise InvalidRequest(f"{self.name} is async: inside an event loop, `await {self.name}.arun(...)`")

    async def _acall(self, state: ProgramState, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        if inspect.iscoroutinefunction(self._body):
            run = state.run
            run.body_thread = threading.get_ident()
            limit = asyncio.timeout(run.options.timeout)  # a body may wait for other things than results
            try:
                async with limit:
                    await self._invoke((state, *args), kwargs)
            except TimeoutError:
                if limit.expired():
                    run.timed_out = run.timed_out or run.overdue()
                    raise run.timed_out from None
                raise
            return
        done = bodies.submit(lambda: self._call(state, args, kwargs))
        await asyncio.wrap_future(settled(done))
        done.result()

    def _check(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """TypeError, as Python words it, where the arguments do not fit."""
        self._signature.bind(None, *args, **self._merged((None, *args), kwargs))

    def _invoke(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        return self._body(*args, **self._merged(args, kwargs))

    def _merged(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Bound arguments, but for those that the call gives by name or by position."""
        positional = list(self._signature.parameters)[: len(args)]
        return {**{k: v for k, v in self._bound.items() if k not in positional}, **kwargs}

    def _takes_any(self) -> bool:
        return any(p.kind is p.VAR_KEYWORD for p in self._signature.parameters.values())


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
