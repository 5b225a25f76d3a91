"""The engine: a model served by three processes of this machine, behind the client API.

with radixrt.Engine("smollm2-135m") as engine:
    print(engine.generate("The capital of France is", SamplingParams(max_tokens=8)).text)
"""

from __future__ import annotations

import copy
import logging
import subprocess
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

import msgspec

from radixrt.asking import Asker
from radixrt.client_api import ClientApi
from radixrt.client_calls import Call, EmbedCall, GenerateCall
from radixrt.config import EngineConfig, draft_sources
from radixrt.connection import Connection
from radixrt.embedding import check_size
from radixrt.errors import EngineDead, RadixrtError, StartupError
from radixrt.launch import Trio
from radixrt.messages import Loading, Ready, StartupFailed
from radixrt.programs import AsyncProgram, Program
from radixrt.questions import FLUSH, SAVE, STATS, Asked, generation, question, seconds
from radixrt.results import CacheNode, EngineStats, ModelInfo
from radixrt.streams import AsyncDeltaStream, DeltaStream

log = logging.getLogger(__name__)

SAVE_TIMEOUT_S = 30.0
"""How long `close` waits until the cache directory is up to date."""

WORDS_TIMEOUT_S = 5.0
"""How long the reason of a process that ended while the engine started is waited for."""

Answer = TypeVar("Answer")


class Engine(ClientApi[DeltaStream, AsyncDeltaStream]):
    """A Backend (see `radixrt.backend`) over processes of its own; use it as a context manager, or call `close`.

    Args:
        model: short name (`smollm2-135m`), directory with config.json and safetensors, GGUF file, or hub name.
        on_progress: called with (stage, fraction) while the model is fetched and loaded, from another thread.
        runner: a process that `launch.spawn_runner` has started ahead; the engine's from here on.
        fields: those of `EngineConfig`.

    Raises ModelError when the model cannot be found or run, StartupError when a process ends before it serves.
    """

    programs_grow = True
    """A program request takes more while it runs, and can branch."""

    def __init__(
        self,
        model: str,
        *,
        on_progress: Callable[[str, float], None] | None = None,
        runner: subprocess.Popen[bytes] | None = None,
        **fields: Any,
    ) -> None:
        try:
            self.config = msgspec.convert({"model": model, **fields}, EngineConfig)
            unknown = fields.keys() - set(EngineConfig.__struct_fields__)
        except msgspec.ValidationError as error:
            raise StartupError(f"the engine's configuration is wrong: {error}") from error
        if unknown:
            known = ", ".join(sorted(EngineConfig.__struct_fields__))
            raise StartupError(f"unknown engine option {', '.join(sorted(unknown))}; there are: {known}")
        from radixrt.checkpoint import dummy_directory, resolve

        self._tenant: str | None = None
        self.after_death: Callable[[], str] = lambda: "the engine must be restarted"
        """What an EngineDead advises; a server that restarts its engine says so here."""
        self._on_progress = on_progress
        self._ready = threading.Event()
        self._info: ModelInfo | None = None
        self._failure: RadixrtError | None = None
        self.started_at = time.monotonic()
        progress = self._fetching if on_progress else None
        if self.config.threads is not None and self.config.threads < 1:
            raise StartupError(f"threads must be at least 1, but is {self.config.threads}", param="threads")
        draft_sources(self.config)  # before anything is fetched or started
        if self.config.load_format == "dummy":
            path = dummy_directory(self.config.model)
        else:
            path = resolve(self.config.model, progress=progress)
        draft = resolve(self.config.draft_model, progress=progress) if self.config.draft_model is not None else None
        self._trio = Trio(self.config, path, self._process_died, draft, runner)
        self._connection = Connection(self._trio.client_address, self._status)
        self._asker = Asker(self._connection)
        self._finalizer = weakref.finalize(self, _shut_down, self._connection, self._trio)
        self._wait_until_ready()

    # --- life -----------------------------------------------------------------------------------------------------

    @property
    def info(self) -> ModelInfo:
        if self._info is None:
            raise self._failure or StartupError("the engine is still loading")
        return self._info

    @property
    def alive(self) -> bool:
        """All three processes run and the model is loaded."""
        return self._trio.alive and self._connection.alive and self._info is not None and self._failure is None

    @property
    def failure(self) -> RadixrtError | None:
        """Why the engine is dead, or None."""
        return self._failure

    @property
    def process_ids(self) -> dict[str, int]:
        """Process id by name (tokenizer, scheduler, runner)."""
        return {name: process.pid for name, process in self._trio.processes.items()}

    def close(self) -> None:
        """Save what the tree holds where there is a cache directory, and stop the processes; open requests end with
        EngineDead. Safe to call twice."""
        if self.config.cache_dir is not None and self._finalizer.alive and self.alive:
            try:
                self._asker.ask(replace(SAVE, timeout=SAVE_TIMEOUT_S))
            except (RadixrtError, TimeoutError) as error:
                log.warning("the cache directory may lack what was computed last: %s", error)
        self._finalizer()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- calls ----------------------------------------------------------------------------------------------------

    def _answer(self, call: Call[Answer]) -> Answer:
        return self._asker.ask(self._question(call))

    async def _aanswer(self, call: Call[Answer]) -> Answer:
        return await self._asker.aask(self._question(call))

    def _question(self, call: Call[Answer]) -> Asked[Answer]:
        if isinstance(call, EmbedCall):
            check_size(call.dimensions, self.info)
        return question(call)

    def _stream(self, call: GenerateCall) -> DeltaStream:
        return self._asker.stream(generation(call, stream=True))

    def _astream(self, call: GenerateCall) -> AsyncDeltaStream:
        return self._asker.astream(generation(call, stream=True))

    def program(
        self, *, cache_salt: str | None = None, priority: int = 0, timeout: float | None = None, stream: bool = True
    ) -> Program:
        """An empty program request, to which text and gens are appended (`radixrt.programs`)."""
        return Program(
            self._connection,
            cache_salt=cache_salt,
            tenant=self._tenant,
            priority=priority,
            timeout=seconds(timeout),
            stream=stream,
        )

    def aprogram(
        self,
        *,
        cache_salt: str | None = None,
        priority: int = 0,
        timeout: float | None = None,
        stream: bool = True,
        parent: AsyncProgram | None = None,
    ) -> AsyncProgram:
        """The same for a task; to be called inside the event loop. With `parent` it begins where that one's next
        `Branch` names it (`AsyncProgram.branch` does both)."""
        return AsyncProgram(
            self._connection,
            parent,
            cache_salt=cache_salt,
            tenant=self._tenant,
            priority=priority,
            timeout=seconds(timeout),
            stream=stream,
        )

    # --- looking at it --------------------------------------------------------------------------------------------

    def stats(self) -> EngineStats:
        return self._asker.ask(STATS)

    async def astats(self) -> EngineStats:
        return await self._asker.aask(STATS)

    def tree(self, *, cache_salt: str | None = None) -> list[CacheNode]:
        """The prefix tree in depth-first order, as far as it is of this tenant and salt."""
        return self.cache(cache_salt=cache_salt).nodes

    def flush(self) -> int:
        """Drop everything from the tree that nobody uses, or pinned; the number of tokens freed."""
        return self._asker.ask(FLUSH)

    async def aflush(self) -> int:
        return await self._asker.aask(FLUSH)

    def for_tenant(self, tenant: str) -> Engine:
        """This engine for one tenant: the same processes, and a part of the tree that no other shares or sees."""
        view = copy.copy(self)
        view._tenant, view._asker = tenant, Asker(self._connection, tenant)
        return view

    def save(self) -> int:
        """Copy what the tree holds to the tier (cache directory, host memory), safely; the number of tokens that the
        tier holds then, 0 where there is none. `close` does it, too."""
        return self._asker.ask(SAVE)

    # --- inside ---------------------------------------------------------------------------------------------------

    def _wait_until_ready(self) -> None:
        in_time = self._ready.wait(self.config.start_timeout_s)
        if self._failure is None and not in_time:
            self._failure = StartupError(f"the engine did not start within {self.config.start_timeout_s:.0f} s")
        if self._failure is not None:
            self.close()
            raise self._failure

    def _fetching(self, what: str, done: int, total: int | None) -> None:
        if self._on_progress is not None:
            self._on_progress(what, done / total if total else 0.0)

    def _status(self, message: Loading | Ready | StartupFailed) -> None:
        if isinstance(message, Loading):
            try:
                if self._on_progress is not None:
                    self._on_progress(message.stage, message.fraction)
            except Exception as error:
                log.exception("on_progress raised an exception")
                self._failure = StartupError(f"on_progress raised an exception: {error!r}")
                self._failure.__cause__ = error
                self._ready.set()
        elif isinstance(message, Ready):
            self._info = message.info
            self._ready.set()
        else:
            self._failure = self._failure or RadixrtError.from_info(message.error)
            self._ready.set()

    def _process_died(self, name: str, code: int) -> None:
        how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        if self._info is None:
            # A process that cannot start says why before it ends (one that is killed does not): its words come through
            # the others, which may themselves be starting still.
            if not self._ready.wait(WORDS_TIMEOUT_S if code >= 0 else 0):
                self._failure = StartupError(
                    f"the {name} process {how} before the engine was ready", code="process_died"
                )
                self._ready.set()
            return
        failure = EngineDead(f"the {name} process {how}: {self.after_death()}", code="process_died")
        # First of all: who sees a dead engine closes it, and then its requests would hear of that alone.
        self._connection.fail(failure)
        self._failure = failure
        log.error("%s", failure.message)


def _shut_down(connection: Connection, trio: Trio) -> None:
    try:
        connection.close()
    finally:
        trio.stop()
