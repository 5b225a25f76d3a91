"""What all routes share: the engine and its life, the name it is served under, limits, a clock.

The engine's life, seen from here:

    loading --(opened)--> serving --(a process died)--> dead
       \\--(could not open)--> failed
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeAlias

from radixrt.backend import Backend
from radixrt.errors import EngineDead, NotFound, Overloaded, RadixrtError, StartupError
from radixrt.results import CacheNode, EngineStats, ModelInfo
from radixrt.server.metered import metered

logger = logging.getLogger(__name__)

Stage: TypeAlias = Literal["loading", "serving", "dead", "failed"]


class ServingEngine(Backend, Protocol):
    """What the server needs of an engine beyond the client API."""

    @property
    def alive(self) -> bool:
        """False as soon as one of the engine's processes is gone. Must be cheap: /health asks it."""
        ...

    async def astats(self) -> EngineStats: ...

    async def atree(self) -> list[CacheNode]: ...

    async def aflush(self) -> int: ...


OpenEngine: TypeAlias = Callable[[], AbstractContextManager[ServingEngine]]
"""Makes an engine; may block until the model is loaded, here or in `__enter__`."""


@dataclass(frozen=True)
class Limits:
    """Caps on what one request may ask for, beside those of SamplingParams."""

    body_bytes: int = 32 * 2**20
    prompts: int = 512
    """Prompts of one /v1/completions request."""
    options: int = 1024
    """Options of one /score request."""


@dataclass
class ServerState:
    """One a server, in `app.state.radixrt`."""

    served_name: str | None = None
    limits: Limits = field(default_factory=Limits)
    now: Callable[[], float] = time.time
    new_id: Callable[[], str] = lambda: uuid.uuid4().hex
    failure: RadixrtError | None = None
    """Why the engine could not be opened."""
    on_ready: Callable[[ModelInfo], None] | None = None
    draining: bool = False
    """The server is shutting down: running requests may finish for a while."""
    started: float = 0.0
    """Unix time at which this server was made."""
    _engine: ServingEngine | None = None
    _opened: ExitStack = field(default_factory=ExitStack)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _closed: bool = False

    def __post_init__(self) -> None:
        self.started = self.now()

    def adopt(self, engine: ServingEngine) -> None:
        """Serve an engine that somebody else opened and will close."""
        self.served_name = self.served_name or engine.info.name
        self._engine = metered(engine)
        if self.on_ready is not None:
            self.on_ready(engine.info)

    def open(self, open_engine: OpenEngine) -> None:
        """Open an engine in a thread, so that the server answers meanwhile; `close` closes it."""
        # A daemon: Ctrl-C while a model loads must not wait for it. The engine's children notice that we are gone.
        threading.Thread(target=self._open, args=(open_engine,), daemon=True, name="open-engine").start()

    def _open(self, open_engine: OpenEngine) -> None:
        try:
            manager = open_engine()
            engine = manager.__enter__()
            with self._lock:
                self._opened.push(manager)
                closed = self._closed
            if closed:
                self._opened.close()
            else:
                self.adopt(engine)
        except RadixrtError as error:
            self.failure = error
        except Exception as error:
            logger.exception("the engine could not start")
            self.failure = StartupError(f"the engine could not start: {error}")

    def close(self) -> None:
        """Close the engine if `open` opened it; waits for its processes to end."""
        with self._lock:
            self._closed = True
        self._opened.close()

    @property
    def stage(self) -> Stage:
        if self.failure is not None:
            return "failed"
        if self._engine is None:
            return "loading"
        return "serving" if self._engine.alive else "dead"

    @property
    def engine(self) -> ServingEngine:
        """The engine, if it can take a request now; else Overloaded (code `loading`) or EngineDead."""
        stage = self.stage
        if stage == "loading":
            raise Overloaded("the model is still being loaded; /ready tells when it can be used", code="loading")
        if self._engine is None or stage != "serving":
            raise EngineDead("the engine has stopped; the server must be restarted", code="engine_dead")
        return self._engine

    def engine_for(self, model: str | None) -> ServingEngine:
        """The engine that serves `model`; an absent name means the only one. NotFound for any other name."""
        engine = self.engine
        if model is not None and model != self.served_name:
            raise NotFound(
                f"the model {model!r} is not served here; this server has {self.served_name!r}",
                param="model", code="model_not_found",
            )  # fmt: skip
        return engine
