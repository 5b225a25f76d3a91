"""What all routes share: the engine and its life, the name it is served under, limits, a clock.

The engine's life, seen from here:

    loading --(opened)--> serving --(a process died)--> dead --(reopen)--> restarting --(opened)--> serving
       \\--(could not open)--> failed                                            \\--(gave up)--> failed
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeAlias

from radixrt.backend import Backend
from radixrt.embedding import Embeddings, TextLike
from radixrt.errors import EngineDead, NotFound, Overloaded, RadixrtError, StartupError
from radixrt.results import CacheView, EngineStats, ModelInfo
from radixrt.server.callers import current
from radixrt.server.metered import metered
from radixrt.server.responses_store import ResponseStore
from radixrt.server.restarts import Restarts
from radixrt.server.running import Requests

logger = logging.getLogger(__name__)

Stage: TypeAlias = Literal["loading", "serving", "dead", "restarting", "failed"]


class ServingEngine(Backend, Protocol):
    """What the server needs of an engine beyond the client API."""

    after_death: Callable[[], str]
    """What clients whose requests were cut by a process's death are told to do."""

    @property
    def alive(self) -> bool:
        """False as soon as one of the engine's processes is gone. Must be cheap: /health asks it."""
        ...

    async def astats(self) -> EngineStats: ...

    async def aembed(
        self,
        texts: TextLike | Sequence[TextLike],
        *,
        dimensions: int | None = None,
        normalize: bool = True,
        truncate: bool = False,
        cache_salt: str | None = None,
        priority: int = 0,
        timeout: float | None = None,
    ) -> Embeddings: ...

    async def acache(self, *, cache_salt: str | None = None) -> CacheView: ...

    def for_tenant(self, tenant: str) -> ServingEngine:
        """The same engine with a part of the prefix tree that no other tenant shares or sees."""
        ...

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
    """Options of one /score or /v1/select request."""
    stored_responses: int = 1024
    stored_response_bytes: int = 64 * 2**20
    """Answers of /v1/responses kept for `previous_response_id`."""
    sse_keep_alive_s: float = 15.0
    """A stream that says nothing for so long sends a comment; 0: never."""


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
    _closed: threading.Event = field(default_factory=threading.Event)
    _open_engine: OpenEngine | None = None
    _restarts: Restarts | None = None
    _restarting: bool = False

    requests: Requests = field(default_factory=Requests)
    """Those that are being answered."""
    responses: ResponseStore = field(init=False)

    def __post_init__(self) -> None:
        self.started = self.now()
        self.responses = ResponseStore(self.limits.stored_response_bytes, self.limits.stored_responses)

    def adopt(self, engine: ServingEngine) -> None:
        """Serve an engine that somebody else opened and will close."""
        self.served_name = self.served_name or engine.info.name
        self._engine = metered(engine)
        if self.on_ready is not None:
            self.on_ready(engine.info)

    def open(self, open_engine: OpenEngine, restarts: Restarts | None = None) -> None:
        """Open an engine in a thread, so that the server answers meanwhile; `close` closes it. With `restarts`,
        `reopen` may be called after its death."""
        self._open_engine, self._restarts = open_engine, restarts
        # A daemon: Ctrl-C while a model loads must not wait for it. The engine's children notice that we are gone.
        threading.Thread(target=self._open, args=(open_engine,), daemon=True, name="open-engine").start()

    def reopen(self) -> bool:
        """Close the dead engine and open another in a thread, trying again as `restarts` says. False: nothing to open
        with, or it has died too often."""
        if self._open_engine is None or self._restarts is None:
            return False
        delay = self._restarts.after_death(time.monotonic())
        if delay is None:
            return False
        self._engine, self._restarting = None, True
        threading.Thread(target=self._reopen, args=(self._open_engine, delay), daemon=True, name="reopen").start()
        return True

    def _reopen(self, open_engine: OpenEngine, delay: float | None) -> None:
        with self._lock:
            dead, self._opened = self._opened, ExitStack()
        dead.close()
        while delay is not None:
            logger.warning("a process of the engine died: starting it again in %.1f s", delay)
            if self._closed.wait(delay):
                return
            self.failure = None
            self._open(open_engine)
            if self.failure is None:
                self._restarting = False
                return
            logger.error("the engine did not start again: %s", self.failure)
            delay = self._restarts.after_death(time.monotonic()) if self._restarts is not None else None
        self._restarting = False

    def _open(self, open_engine: OpenEngine) -> None:
        try:
            manager = open_engine()
            engine = manager.__enter__()
            engine.after_death = self._after_death
            with self._lock:
                self._opened.push(manager)
                closed = self._closed.is_set()
            if closed:
                self._opened.close()
            else:
                self.adopt(engine)
                if self._restarts is not None:
                    self._restarts.opened(time.monotonic())
        except RadixrtError as error:
            self.failure = error
        except Exception as error:
            logger.exception("the engine could not start")
            self.failure = StartupError(f"the engine could not start: {error}")

    def _after_death(self) -> str:
        """What becomes of the engine whose process died now, for those whose requests it cut."""
        if self._restarts is None:
            return "the server ends"
        again = self._restarts.left(time.monotonic())
        return "it is being restarted: try again" if again else "it has died too often, and the server ends"

    def close(self) -> None:
        """Close the engine if `open` opened it; waits for its processes to end."""
        self._closed.set()
        with self._lock:
            opened = self._opened
        opened.close()

    @property
    def stage(self) -> Stage:
        engine = self._engine
        if engine is not None:
            return "serving" if engine.alive else "dead"
        if self._restarting:
            return "restarting"
        return "failed" if self.failure is not None else "loading"

    @property
    def engine(self) -> ServingEngine:
        """The engine, as the caller's namespace sees it, if it can take a request now; else Overloaded (code `loading`)
        or EngineDead."""
        stage = self.stage
        if stage == "loading":
            raise Overloaded("the model is still being loaded; /ready tells when it can be used", code="loading")
        engine = self._engine
        if stage == "restarting":
            raise Overloaded("the engine is being started again; /ready tells when it can be used", code="restarting")
        if engine is None or stage != "serving":
            raise EngineDead(f"a process of the engine has died: {self._after_death()}", code="engine_dead")
        tenant = current().namespace
        return engine if tenant is None else engine.for_tenant(tenant)

    def engine_for(self, model: str | None) -> ServingEngine:
        """The engine that serves `model`; an absent name means the only one. NotFound for any other name."""
        engine = self.engine
        if model is not None and model != self.served_name:
            raise NotFound(
                f"the model {model!r} is not served here; this server has {self.served_name!r}",
                param="model", code="model_not_found",
            )  # fmt: skip
        return engine
