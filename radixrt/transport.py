"""ZeroMQ links that carry one family of messages each way.

A message travels as one msgpack header frame and one raw frame for each numpy array in it. Sending copies nothing;
a received array is a read-only view of its frame. What does not decode is logged and dropped: a stranger's bytes on
a socket cost nobody anything.
"""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any, Generic, TypeVar

import msgspec
import numpy as np
import zmq

from radixrt.errors import RadixrtError

log = logging.getLogger(__name__)

In = TypeVar("In")
Out = TypeVar("Out")

HIGH_WATER_MARK = 100_000
"""Messages a socket queues for one peer before it refuses more."""
_DTYPES = frozenset({"<i4", "<f4", "|u1", "<i8"})


class DecodeError(ValueError):
    """Frames that are not a message of the expected family."""


class Codec(Generic[In, Out]):
    """Messages of a family <-> frames. `incoming` is the union of message types that may arrive.

    An array is [frame index, dtype, shape] in the header; only little-endian int32, int64, float32 and uint8 pass.
    """

    def __init__(self, incoming: Any) -> None:
        self._frames: Sequence[Any] = ()
        self._decoder = msgspec.msgpack.Decoder(incoming, dec_hook=self._array)

    def encode(self, message: Out) -> list[Any]:
        frames: list[Any] = [b""]

        def hook(value: object) -> object:
            if not isinstance(value, np.ndarray):
                raise TypeError(f"a message cannot carry a {type(value).__name__}")
            array = np.ascontiguousarray(value)
            if array.dtype.str not in _DTYPES:
                raise TypeError(f"a message cannot carry an array of {array.dtype}")
            frames.append(array.reshape(-1).view(np.uint8).data if array.size else b"")
            return [len(frames) - 1, array.dtype.str, list(array.shape)]

        frames[0] = msgspec.msgpack.encode(message, enc_hook=hook)
        return frames

    def decode(self, frames: Sequence[Any]) -> In:
        """The message, or DecodeError. `frames` are bytes-like; arrays in the result view them."""
        if not frames:
            raise DecodeError("no frames")
        previous, self._frames = self._frames, frames  # a garbage collection in here may send, and so decode, a message
        try:
            message: In = self._decoder.decode(frames[0])
        except (msgspec.MsgspecError, ValueError, RadixrtError) as error:  # params check themselves when they are made
            raise DecodeError(str(error)) from error
        except RecursionError:
            raise DecodeError("nested too deeply") from None
        finally:
            self._frames = previous
        return message

    def _array(self, wanted: type, value: object) -> object:
        if wanted is not np.ndarray:
            raise ValueError(f"unexpected type {wanted.__name__}")
        if not (isinstance(value, list) and len(value) == 3):
            raise ValueError("an array is [frame, dtype, shape]")
        index, dtype, shape = value
        if not (isinstance(index, int) and 1 <= index < len(self._frames) and dtype in _DTYPES):
            raise ValueError("an array names a frame or dtype that is not there")
        if not (isinstance(shape, list) and len(shape) <= 4 and all(isinstance(n, int) and n >= 0 for n in shape)):
            raise ValueError("an array's shape is malformed")
        return np.frombuffer(self._frames[index], dtype=dtype).reshape(shape)


class Link(Generic[In, Out]):
    """One socket, typed: `In` arrives, `Out` leaves. With a ROUTER socket every message has a peer (its identity)."""

    def __init__(self, socket: zmq.Socket[bytes], incoming: Any) -> None:
        self.socket = socket
        self._codec: Codec[In, Out] = Codec(incoming)
        self._routed = socket.type == zmq.ROUTER

    def send(self, message: Out, peer: bytes | None = None) -> bool:
        """Queue a message; False when the peer is gone or its queue is full (nothing was sent)."""
        return self.send_frames(self._codec.encode(message), peer)

    def send_frames(self, frames: list[Any], peer: bytes | None = None) -> bool:
        """`send` for a message that is encoded already."""
        if self._routed:
            frames.insert(0, peer)
        try:
            self.socket.send_multipart(frames, zmq.NOBLOCK, copy=len(frames) < 3)
        except zmq.ZMQError as error:
            if error.errno in (zmq.EAGAIN, zmq.EHOSTUNREACH):
                return False
            raise
        return True

    def receive(self) -> Iterator[tuple[bytes, In]]:
        """Every message that has arrived, as (peer, message), without waiting; the peer is b"" but on a ROUTER."""
        while True:
            try:
                frames = self.socket.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return
            buffers = [frame.buffer for frame in frames]
            peer = bytes(buffers.pop(0)) if self._routed else b""
            try:
                yield peer, self._codec.decode(buffers)
            except DecodeError as error:
                log.warning("dropped a message that does not decode: %s", error)

    def wait(self, timeout_s: float | None, also: int | None = None) -> bool:
        """Wait until something has arrived, or until the file descriptor `also` can be read; False on time-out. None
        waits for ever."""
        timeout_ms = None if timeout_s is None else int(timeout_s * 1000)
        if also is None:
            return bool(self.socket.poll(timeout_ms))
        poller = zmq.Poller()
        poller.register(self.socket, zmq.POLLIN)
        poller.register(also, zmq.POLLIN)
        return bool(poller.poll(timeout_ms))

    def close(self, linger_ms: int = 500) -> None:
        self.socket.close(linger=linger_ms)


def open_socket(context: zmq.Context[Any], kind: int, address: str, *, bind: bool) -> zmq.Socket[bytes]:
    """A socket with bounded queues, bound or connected to `address`."""
    socket: zmq.Socket[bytes] = context.socket(kind)
    socket.set_hwm(HIGH_WATER_MARK)
    socket.setsockopt(zmq.LINGER, 500)
    if kind == zmq.ROUTER:
        socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
    if bind:
        socket.bind(address)
    else:
        socket.connect(address)
    return socket


def private_directory() -> str:
    """A fresh directory that only this user may enter (0700), for the sockets of one engine.

    A Unix socket's path holds at most 107 bytes; where TMPDIR is too long for that, /tmp is used.
    """
    base = tempfile.gettempdir()
    if len(os.path.join(base, "radixrt-xxxxxxxx", "scheduler-out")) > 100:
        base = "/tmp"
    return tempfile.mkdtemp(prefix="radixrt-", dir=base)
