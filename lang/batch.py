"""Many runs of one program, with bounded concurrency, in order."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import wait
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from radixrt.backend import Backend
from radixrt.errors import InvalidRequest
from radixrt.lang.errors import ProgramError
from radixrt.lang.loop import refuse_on_loop
from radixrt.lang.options import RunOptions
from radixrt.lang.services import OpenAI
from radixrt.lang.state import ProgramState
from radixrt.lang.workers import Workers

if TYPE_CHECKING:
    from radixrt.lang.program import Function

Batch = Sequence[Mapping[str, Any]]


def run_batch(
    function: Function,
    batch: Batch,
    backend: Backend | OpenAI | None,
    num_threads: int,
    options: RunOptions,
    *,
    progress_bar: bool,
) -> list[ProgramState]:
    """See `Function.run_batch`. Interrupted, it cancels what runs, starts nothing more, and ends its threads."""
    refuse_on_loop(f"{function.name}.arun_batch")
    return list(iter_batch(function, batch, backend, num_threads, options, progress_bar=progress_bar))


def iter_batch(
    function: Function,
    batch: Batch,
    backend: Backend | OpenAI | None,
    num_threads: int,
    options: RunOptions,
    *,
    progress_bar: bool,
) -> Iterator[ProgramState]:
    """See `Function.iter_batch`. Arguments are checked at once; runs start with the first state that is asked for."""
    states = _states(function, batch, backend, num_threads, options)
    return _finished(function, batch, states, num_threads, progress_bar)


def _finished(
    function: Function, batch: Batch, states: list[ProgramState], num_threads: int, progress_bar: bool
) -> Iterator[ProgramState]:
    workers = Workers(min(num_threads, max(1, len(batch))), f"radixrt-batch-{function.name}")
    with _progress(function.name, len(batch), progress_bar) as advance:
        futures = []
        try:
            for state, kwargs in zip(states, batch, strict=True):
                future = workers.submit(_job(function, state, kwargs))
                future.add_done_callback(lambda _: advance())
                futures.append(future)
            for state, future in zip(states, futures, strict=True):
                future.result()
                yield state
        except BaseException as error:
            for future in futures:
                future.cancel()
            why = ProgramError(f"the batch ended with {type(error).__name__}", program=function.name, code="cancelled")
            for state in states:
                state.run.cancel(why)
            wait(futures, timeout=5)
            raise


async def arun_batch(
    function: Function,
    batch: Batch,
    backend: Backend | OpenAI | None,
    num_threads: int,
    options: RunOptions,
    *,
    progress_bar: bool,
) -> list[ProgramState]:
    """See `Function.run_batch`; cancelling it cancels what runs."""
    states = _states(function, batch, backend, num_threads, options)
    slots = asyncio.Semaphore(num_threads)
    with _progress(function.name, len(batch), progress_bar) as advance:

        async def one(state: ProgramState, kwargs: Mapping[str, Any]) -> None:
            async with slots:
                await function.arun_held(state, kwargs)
                advance()

        async with asyncio.TaskGroup() as group:
            for state, kwargs in zip(states, batch, strict=True):
                group.create_task(one(state, kwargs))
    return states


def _states(
    function: Function, batch: Batch, backend: Backend | OpenAI | None, num_threads: int, options: RunOptions
) -> list[ProgramState]:
    """One state for each item; all arguments are checked before anything is started."""
    if not isinstance(num_threads, int) or isinstance(num_threads, bool) or num_threads < 1:
        raise InvalidRequest(f"num_threads must be 1 or more, but is {num_threads!r}", param="num_threads")
    for i, kwargs in enumerate(batch):
        if not isinstance(kwargs, Mapping):
            raise InvalidRequest(f"batch[{i}] must be a dict of arguments, but is {kwargs!r}", param="batch")
        function.check_arguments(kwargs, f"batch[{i}]")
    return [function.new_state(backend, options) for _ in batch]


def _job(function: Function, state: ProgramState, kwargs: Mapping[str, Any]) -> Callable[[], None]:
    return lambda: function.run_held(state, (), kwargs)


@contextmanager
def _progress(name: str, total: int, wanted: bool) -> Iterator[Callable[[], None]]:
    """A function that counts one more run as done; draws a bar where it is wanted and somebody sees it."""
    if not wanted or not sys.stderr.isatty():
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn(),
    )  # fmt: skip
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task(name, total=total)
        yield lambda: progress.advance(task)
