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
from typing import TypeVar

import msgspec

Config = TypeVar("Config")


def start(name: str, config_type: type[Config]) -> Config:
    """Read this process's config, set up logging and the lifeline; called first in each `__main__`."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    config = msgspec.json.decode(_read_line(0), type=config_type)
    setup_logging(getattr(config, "log_level", "warning"), name)
    directory = getattr(config, "ipc_dir", "")
    threading.Thread(target=_lifeline, args=(directory,), daemon=True, name="lifeline").start()
    return config


def setup_logging(level: str, process: str) -> None:
    """The one logging set-up: stderr, with time, process and level."""
    logging.basicConfig(
        level=level.upper(),
        stream=sys.stderr,
        format=f"%(asctime)s {process} %(levelname)s %(name)s: %(message)s",
        force=True,
    )


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
    if directory:
        shutil.rmtree(directory, ignore_errors=True)
    os._exit(0)
