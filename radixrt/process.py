"""What the three processes have in common: how one starts, where its config comes from, and when it ends.

A child gets its config as one line of JSON on stdin, which stays open: when it closes, the parent is gone (even by
SIGKILL), and the child ends at once, whatever it is doing. Ctrl-C in a terminal reaches only the parent.
"""

from __future__ import annotations

import logging
import os
import shutil
import signal
import sys
import threading
from contextvars import ContextVar
from functools import partial
from types import TracebackType
from typing import Literal, TypeAlias, TypeVar

import msgspec

from radixrt.slices import ask_short_slice

Config = TypeVar("Config")
LogFormat: TypeAlias = Literal["text", "json"]

request_id: ContextVar[str | None] = ContextVar("request_id", default=None)
"""Id of the HTTP request that the current task answers; stands in its log lines."""


def start(name: str, config_type: type[Config]) -> Config:
    """Read this process's config, set up logging, slices and the lifeline; called first in each `__main__`."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    line = _read_line(0)
    if not line.endswith(b"\n"):
        os._exit(0)  # the parent ended before it had said what to do
    config = msgspec.json.decode(line, type=config_type)
    setup_logging(getattr(config, "log_level", "warning"), name, getattr(config, "log_format", "text"))
    ask_short_slice()
    directory = getattr(config, "ipc_dir", "")
    sys.excepthook = partial(_report_unless_ended, directory)
    threading.Thread(target=_lifeline, args=(directory,), daemon=True, name="lifeline").start()
    return config


def _report_unless_ended(
    directory: str, kind: type[BaseException], error: BaseException, traceback: TracebackType | None
) -> None:
    """Print an error that ends this process, unless the engine has ended: its directory, and with it all sockets, is
    gone then, and this process had only just begun to open them."""
    if directory and not os.path.isdir(directory):
        os._exit(0)
    sys.__excepthook__(kind, error, traceback)


def setup_logging(level: str, process: str, log_format: LogFormat = "text") -> None:
    """The one logging set-up: stderr, with time, process and level, as lines of text or of JSON."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonLines(process) if log_format == "json" else _TextLines(process))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)


class _TextLines(logging.Formatter):
    def __init__(self, process: str) -> None:
        super().__init__(f"%(asctime)s {process} %(levelname)s %(name)s: %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        name = request_id.get()
        return super().format(record) + (f" [{name}]" if name else "")


class _JsonLines(logging.Formatter):
    """One object a line: time (Unix seconds), process, level, logger, message, and where there is one request_id and
    exception."""

    def __init__(self, process: str) -> None:
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": record.created,
            "process": self._process,
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if name := request_id.get():
            line["request_id"] = name
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line).decode()


def _read_line(descriptor: int) -> bytes:
    parts = bytearray()
    while not parts.endswith(b"\n"):
        chunk = os.read(descriptor, 1)
        if not chunk:
            break
        parts += chunk
    return bytes(parts)


def _lifeline(directory: str) -> None:
    while os.read(0, 4096):
        pass
    for _ in range(_TRIES):
        if not directory or not os.path.exists(directory):
            break
        shutil.rmtree(directory, ignore_errors=True)
    os._exit(0)


_TRIES = 100
"""A process that is just starting may bind a socket while the directory is being removed, which then fails."""
