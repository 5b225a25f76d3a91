"""The Python function of a program: how it is called, on which state, and what becomes of what it raises."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from radixrt.backend import Backend
from radixrt.errors import InvalidRequest
from radixrt.lang.errors import ProgramError
from radixrt.lang.executor import Branch
from radixrt.lang.options import RESERVED, RunOptions
from radixrt.lang.run import Run
from radixrt.lang.services import OpenAI
from radixrt.lang.state import ProgramState
from radixrt.lang.trace import note_run
from radixrt.lang.variables import settled
from radixrt.lang.workers import bodies

_default_backend: Backend | OpenAI | None = None


def set_default_backend(backend: Backend | OpenAI | None) -> None:
    """The backend of runs that are given none."""
    global _default_backend
    _default_backend = backend


def default_backend() -> Backend | OpenAI | None:
    return _default_backend


class Body:
    """What `Function` (`program.py`) is built on."""

    def __init__(self, body: Callable[..., Any], bound: Mapping[str, Any] | None = None) -> None:
        self._body = body
        self._bound = dict(bound or {})
        self._signature = inspect.signature(body)
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
