"""Process 3: config on stdin, then as `radixrt.process` says. torch is imported meanwhile: that takes longest."""

from __future__ import annotations

import logging
import threading
from functools import partial
from importlib import import_module
from pathlib import Path
from time import monotonic

import zmq

from radixrt.checkpoint import open_checkpoint
from radixrt.config import RunnerConfig
from radixrt.errors import RadixrtError, StartupError
from radixrt.garbage import spare_what_stays
from radixrt.kernels.build import build_ahead
from radixrt.messages import FromRunner, Loading, StartupFailed, ToRunner
from radixrt.process import start
from radixrt.runner.inbox import Inbox
from radixrt.transport import Link, open_socket

log = logging.getLogger(__name__)

CONNECT_TIMEOUT_S = 30.0
"""How long a runner that cannot start waits for somebody to tell it to."""
REPORT_EVERY_S = 0.1


def main() -> int:
    # A process that was started ahead of its engine (`launch.spawn_runner`) has no config yet.
    threading.Thread(target=import_module, args=("torch",), name="import-torch", daemon=True).start()
    config = start("runner", RunnerConfig)
    if config.rank:
        from radixrt.runner.follower import follow

        return follow(config)
    build_ahead()
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    socket = open_socket(context, zmq.ROUTER, config.runner_address, bind=True)
    link: Link[ToRunner, FromRunner] = Link(socket, ToRunner)
    inbox = Inbox(link)
    report = Reporter(inbox)
    try:
        report("starting", 0.0)
        checkpoint = open_checkpoint(Path(config.model_path))
        if checkpoint.encoder is not None:
            from radixrt.runner import encode

            encode.set_threads(config)
            run = partial(encode.serve, inbox, *encode.load(config, checkpoint, report))
        else:
            from radixrt.runner.load import load
            from radixrt.runner.loop import serve

            run = partial(serve, inbox, *load(config, report, checkpoint))
    except Exception as error:
        # The scheduler is told what keeps us from starting; an error of our own needs no traceback.
        log.log(logging.DEBUG if isinstance(error, RadixrtError) else logging.ERROR, "cannot start", exc_info=True)
        _refuse(inbox, error)
        link.close()
        context.term()
        return 1
    spare_what_stays()
    run()
    return 0


class Reporter:
    """Sends Loading to a scheduler that has connected, at most every REPORT_EVERY_S within a stage."""

    def __init__(self, inbox: Inbox) -> None:
        self._inbox = inbox
        self._stage = ""
        self._sent_at = 0.0

    def __call__(self, stage: str, fraction: float) -> None:
        self._inbox.drain()
        now = monotonic()
        due = stage != self._stage or fraction >= 1 or now - self._sent_at >= REPORT_EVERY_S
        if due and self._inbox.send(Loading(stage=stage, fraction=min(1.0, max(0.0, fraction)))):
            self._stage, self._sent_at = stage, now


def _refuse(inbox: Inbox, error: Exception) -> None:
    """Tell the scheduler why there is no runner; wait for it to connect if it has not yet."""
    if not isinstance(error, RadixrtError):
        kind = "not enough memory" if isinstance(error, MemoryError) else type(error).__name__
        error = StartupError(f"the model runner could not start ({kind}); its log has the details")
    deadline = monotonic() + CONNECT_TIMEOUT_S
    inbox.drain()
    while inbox.peer is None and (left := deadline - monotonic()) > 0:
        inbox.wait(left)
    inbox.send(StartupFailed(error=error.info()))
