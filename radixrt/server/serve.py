"""From an engine to a listening server: bind, open, serve, drain, close."""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import uvicorn

from radixrt.errors import EngineDead
from radixrt.results import ModelInfo
from radixrt.server.app import create_app
from radixrt.server.hosts import is_loopback
from radixrt.server.http_protocol import INVALID, BoundedHttpProtocol
from radixrt.server.keys import Keys
from radixrt.server.listening import Tls, bind, bind_unix, url_of
from radixrt.server.restarts import Restarts
from radixrt.server.state import Limits, OpenEngine, ServerState, ServingEngine
from radixrt.server.tracing import Tracing

logger = logging.getLogger(__name__)

KEEP_ALIVE_S = 30
"""Idle connections; longer than common clients keep theirs, so that none is closed under a request being sent."""


def serve(
    engine: ServingEngine | OpenEngine,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    uds: Path | None = None,
    listener: socket.socket | None = None,
    tls: Tls | None = None,
    served_name: str | None = None,
    keys: Keys | None = None,
    allowed_hosts: Sequence[str] = (),
    cors_origins: Sequence[str] = (),
    limits: Limits | None = None,
    drain_timeout_s: float = 5.0,
    restarts: Restarts | None = None,
    tracing: Tracing | None = None,
    dead_grace_s: float = 10.0,
    access_log: bool = False,
    on_bound: Callable[[str], None] | None = None,
    on_ready: Callable[[ModelInfo], None] | None = None,
) -> None:
    """Serve until SIGINT or SIGTERM; returns after a clean shutdown.

    `engine` is an engine, or a callable that makes one (`lambda: Engine("smollm2-135m")`): that is called in a thread
    after the socket is bound, and the server answers /health and /ready while it loads. Port 0 takes a free one. With
    `uds` it listens on that Unix socket, which only this user may open, instead of an address. A `listener`, made of
    these by `bind` or `bind_unix`, is taken as it is and closed in the end. On a loopback address a request's Host must
    be a loopback name or in `allowed_hosts`; elsewhere any is taken.

    `on_bound` gets the base URL as soon as the socket listens, `on_ready` the model's description when it is loaded
    (in the loading thread). The first signal drains: running requests get `drain_timeout_s` to finish, then an error
    event; the second stops at once.

    When a process of the engine died, running requests fail at once. With `restarts`, an engine that was made by a
    callable is then made again; /health says 503 meanwhile. Without, or when it has died too often, /health says 503
    for `dead_grace_s` before the server gives up.

    Raises StartupError when the address cannot be bound or the engine cannot start, EngineDead when the server gave up.
    """
    certificates = tls.check() if tls is not None else {}
    if listener is None:
        listener = bind(host, port) if uds is None else bind_unix(uds)
    app = create_app(
        engine,
        served_name=served_name,
        keys=keys,
        allowed_hosts=allowed_hosts if uds is None and is_loopback(host) else None,
        cors_origins=cors_origins,
        limits=limits,
        restarts=restarts,
        tracing=tracing,
        on_ready=on_ready,
    )
    state: ServerState = app.state.radixrt
    config = uvicorn.Config(
        app,
        http=BoundedHttpProtocol,
        ws="none",
        log_config=None,
        log_level="info" if access_log else "warning",
        access_log=False,  # ours has ids and key names, and no client's path
        server_header=False,
        **certificates,
        timeout_keep_alive=KEEP_ALIVE_S,
        # uvicorn counts whole seconds here.
        timeout_graceful_shutdown=max(1, round(drain_timeout_s)),
        lifespan="on",
    )
    logging.getLogger("uvicorn.error").addFilter(_worth_saying)
    server = _Server(config, state, dead_grace_s)
    if on_bound is not None:
        on_bound(url_of(listener, "https" if tls else "http"))
    try:
        server.run(sockets=[listener])
    finally:
        listener.close()
        if uds is not None:
            uds.unlink(missing_ok=True)
    if state.failure is not None:
        raise state.failure
    if server.gave_up:
        raise EngineDead("a process of the engine died; the server has stopped", code="process_died")


def _worth_saying(record: logging.LogRecord) -> bool:
    """A task that is cancelled because the server stops is no fault: uvicorn would print its traceback, and call what
    the drain's deadline cuts off an error. What is no HTTP our protocol has logged with its sender."""
    if record.msg == INVALID:
        return False
    if str(record.msg).startswith("Cancel %s running task"):
        record.levelno, record.levelname = logging.WARNING, "WARNING"
        record.msg = "%s requests were not done in the time for draining, and end in an error"
    return "CancelledError" not in record.getMessage() and not (
        record.exc_info and isinstance(record.exc_info[1], asyncio.CancelledError)
    )


class _Server(uvicorn.Server):
    """uvicorn's server, ended by a failed or dead engine as well, and exiting cleanly on a signal."""

    def __init__(self, config: uvicorn.Config, state: ServerState, dead_grace_s: float) -> None:
        super().__init__(config)
        self._state = state
        self._dead_grace_s = dead_grace_s
        self._dead_since: float | None = None
        self.gave_up = False

    async def on_tick(self, counter: int) -> bool:
        stage = self._state.stage
        if stage == "failed":
            return True
        if stage == "dead" and not (self._dead_since is None and self._state.reopen()):
            self._dead_since = self._dead_since or time.monotonic()
            self.gave_up = time.monotonic() - self._dead_since >= self._dead_grace_s
        return await super().on_tick(counter) or self.gave_up

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._state.draining = True
        await super().shutdown(sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        # uvicorn forces the end at a second SIGINT alone; whoever sends a second SIGTERM means it as well.
        if self.should_exit:
            self.force_exit = True
        super().handle_exit(sig, frame)

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        # uvicorn raises the signal again once it has shut down; a drained server has nothing left to be killed for.
        with super().capture_signals():
            yield
            self._captured_signals.clear()
