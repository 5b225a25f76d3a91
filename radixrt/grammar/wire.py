"""What the compile service and its worker say to each other, over the worker's stdin and stdout.

A frame is a length (4 bytes, little-endian) and that many bytes of msgpack.

    service --Setup--> worker, once; worker --Answer--> service when it is ready (or cannot be)
    service --Task---> worker, one at a time; worker --Answer--> service
"""

from __future__ import annotations

import os
import struct
from typing import TypeVar

import msgspec

from radixrt.errors import ErrorInfo
from radixrt.grammar.limits import Limits
from radixrt.grammar.sources import Plan
from radixrt.params import Constraint

START_TIMEOUT_S = 60.0
"""Seconds that a worker may take to start, or to import a library."""
STARVED, PATIENCE = 0.25, 4
"""A task that has had less CPU than this share of its time limit waits for a core, not for itself: on a busy machine it
is given so many times as long."""
MAX_FRAME = 64 * 1024 * 1024
T = TypeVar("T")


class Setup(msgspec.Struct, frozen=True, kw_only=True):
    """The tokenizer itself is in the file that `tokenizer_fd` is open for: it does not fit a pipe."""

    tokenizer_fd: int
    size: int
    eos_ids: tuple[int, ...]
    vocab_size: int
    limits: Limits
    preferred: str = "auto"
    """The back end that `auto` asks first."""


class Task(msgspec.Struct, frozen=True, kw_only=True):
    constraint: Constraint


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """Either an error, or a plan for the constraint, which compiles and has a first mask."""

    plan: Plan | None = None
    error: ErrorInfo | None = None
    seconds: float = 0.0
    """For gate, compile and first mask together."""
    grown_bytes: int = 0
    """How far the compile made the worker's memory grow."""
    loading: bool | None = None
    """No answer yet: a library is being imported (True), or has been (False), which is not the task's doing."""


def pack(message: Setup | Task | Answer) -> bytes:
    body = msgspec.msgpack.encode(message)
    return struct.pack("<I", len(body)) + body


class Frames:
    """Frames out of a stream of bytes that arrives in pieces."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> None:
        self._buffer += data

    def next(self, kind: type[T]) -> T | None:
        """The next message, or None while it is incomplete. ValueError when it is none of this kind."""
        if len(self._buffer) < 4:
            return None
        size = struct.unpack_from("<I", self._buffer)[0]
        if size > MAX_FRAME:
            raise ValueError(f"a frame of {size} bytes")
        if len(self._buffer) < 4 + size:
            return None
        body = bytes(self._buffer[4 : 4 + size])
        del self._buffer[: 4 + size]
        return msgspec.msgpack.decode(body, type=kind)


def write_all(descriptor: int, data: bytes) -> None:
    """Write to a pipe until all is written; OSError when the other end is closed."""
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
