"""The client's end of the road: one thread that owns the socket to the tokenizer process and hands messages out.

Any thread or event loop may submit; answers go to the request's inbox, a queue of the caller's own kind.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
import queue
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, TypeAlias

import msgspec
import zmq

from radixrt.errors import EngineDead, InvalidRequest, RadixrtError
from radixrt.messages import Deltas, Failed, FromClient, Hello, Loading, Ready, StartupFailed, ToClient
from radixrt.transport import Codec, DecodeError, Link, open_socket

log = logging.getLogger(__name__)

Item: TypeAlias = Any
"""A Delta, an answer message, or the RadixrtError that ended the request."""


class SyncInbox:
    """Where a thread waits for its request's answers."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Item] = queue.SimpleQueue()

    def put(self, item: Item) -> None:
        self._queue.put(item)

    def get(self, timeout_s: float | None) -> Item:
        """The next item; TimeoutError after `timeout_s`."""
        try:
            return self._queue.get(timeout=timeout_s)
        except queue.Empty:
            raise TimeoutError from None


class AsyncInbox:
    """Where a task waits; made inside the running event loop."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self._queue: asyncio.Queue[Item] = asyncio.Queue()

    def put_here(self, item: Item) -> None:
        """Called in the event loop's own thread."""
        self._queue.put_nowait(item)

    async def get(self, timeout_s: float | None) -> Item:
        """The next item; TimeoutError after `timeout_s`."""
        if timeout_s is None:
            return await self._queue.get()
        return await asyncio.wait_for(self._queue.get(), timeout_s)


Inbox: TypeAlias = SyncInbox | AsyncInbox


class _Waker:
    """Ends the connection thread's wait for messages. It may be used by any thread, also once it is closed."""

    def __init__(self) -> None:
        # Reentrant: a stream that the garbage collector finds while this thread holds the lock cancels its request.
        self._lock = threading.RLock()
        self.descriptor, self._write = os.pipe()
        os.set_blocking(self.descriptor, False)
        os.set_blocking(self._write, False)
        self._open = True

    def wake(self) -> None:
        with self._lock:
            if self._open:  # else the pipe's number may be another file's
                with contextlib.suppress(BlockingIOError):  # full: the thread wakes in any case
                    os.write(self._write, b"\0")

    def clear(self) -> None:
        with contextlib.suppress(BlockingIOError):  # woken by a message, not by a sender
            os.read(self.descriptor, 65536)

    def close(self) -> None:
        with self._lock:
            self._open = False
            os.close(self._write)
            os.close(self.descriptor)


class Connection:
    """Requests out, answers in. `on_status` hears Loading, Ready and StartupFailed in the connection's thread."""

    def __init__(self, address: str, on_status: Callable[[Loading | Ready | StartupFailed], None]) -> None:
        self._on_status = on_status
        self._inboxes: dict[int, Inbox] = {}
        self._lock = threading.RLock()  # reentrant for the reason that _Waker gives
        self._dead: RadixrtError | None = None
        self._numbers = itertools.count(1)
        self._outgoing: deque[list[Any]] = deque()
        self._codec: Codec[FromClient, FromClient] = Codec(FromClient)
        self._closing = threading.Event()
        self._waker = _Waker()
        self._context: zmq.Context[Any] = zmq.Context()
        socket = open_socket(self._context, zmq.DEALER, address, bind=False)
        self._link: Link[ToClient, FromClient] = Link(socket, ToClient)
        self._thread = threading.Thread(target=self._run, daemon=True, name="radixrt-connection")
        self.send(Hello())
        self._thread.start()

    def open(self, inbox: Inbox) -> int:
        """A fresh request id whose answers go to `inbox`. Raises EngineDead when nothing can be answered any more."""
        with self._lock:
            if self._dead is not None:
                raise self._dead
            number = next(self._numbers)
            self._inboxes[number] = inbox
            return number

    @property
    def alive(self) -> bool:
        """Requests are taken and can be answered."""
        return self._dead is None

    def forget(self, request_id: int) -> None:
        with self._lock:
            self._inboxes.pop(request_id, None)

    def send(self, message: FromClient) -> None:
        """Queue a message, from any thread.

        It is encoded, and read back as the other side will, here in the caller's thread: a value of a wrong type, or
        one that no message can carry, is the caller's InvalidRequest and costs nobody else anything. A message to a
        connection that has ended is dropped: its request has had its EngineDead.
        """
        try:
            frames = self._codec.encode(message)
        except (TypeError, ValueError, OverflowError, msgspec.MsgspecError) as error:
            raise InvalidRequest(f"the request cannot be sent: {_reason(error)}") from error
        with self._lock:  # a codec decodes one message at a time
            try:
                self._codec.decode(frames)
            except DecodeError as error:
                raise InvalidRequest(f"the request is malformed: {error}") from error
        self._outgoing.append(frames)
        self._waker.wake()

    def fail(self, error: RadixrtError) -> None:
        """Every open request ends with `error`, and so does every later one. Only the first call counts."""
        with self._lock:
            if self._dead is not None:
                return
            self._dead = error
            inboxes = list(self._inboxes.values())
            self._inboxes.clear()
        self._deliver([(inbox, error) for inbox in inboxes])

    def close(self) -> None:
        """End every open request with EngineDead, and the thread. Safe to call twice, from any thread, and after the
        thread has ended by itself."""
        self.fail(EngineDead("the engine was closed"))
        self._closing.set()
        self._waker.wake()
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout=5)

    def _run(self) -> None:
        try:
            self._serve()
        except Exception:
            # Nobody must wait for answers that cannot come.
            log.exception("the connection to the engine broke")
            self.fail(EngineDead("the connection to the engine broke: the engine must be restarted"))
        finally:
            self._waker.close()
            self._link.close()
            self._context.term()

    def _serve(self) -> None:
        poller = zmq.Poller()
        poller.register(self._link.socket, zmq.POLLIN)
        poller.register(self._waker.descriptor, zmq.POLLIN)
        while not self._closing.is_set():
            poller.poll()
            self._waker.clear()
            while self._outgoing:
                if not self._link.send_frames(self._outgoing.popleft()):
                    self.fail(EngineDead("the engine does not take requests any more"))
            for _, message in self._link.receive():
                self._take(message)

    def _take(self, message: ToClient) -> None:
        if isinstance(message, Loading | Ready | StartupFailed):
            self._on_status(message)
        elif isinstance(message, Deltas):
            with self._lock:
                found = [(self._inboxes.get(number), delta) for number, delta in message.items]
            self._deliver([(inbox, delta) for inbox, delta in found if inbox is not None])
        else:
            with self._lock:
                inbox = self._inboxes.get(message.request_id)
            if inbox is not None:
                item = RadixrtError.from_info(message.error) if isinstance(message, Failed) else message
                self._deliver([(inbox, item)])

    def _deliver(self, pairs: list[tuple[Inbox, Item]]) -> None:
        """Put items into inboxes; an event loop is woken once for all of its items."""
        by_loop: dict[asyncio.AbstractEventLoop, list[tuple[AsyncInbox, Item]]] = {}
        for inbox, item in pairs:
            if isinstance(inbox, AsyncInbox):
                by_loop.setdefault(inbox.loop, []).append((inbox, item))
            else:
                inbox.put(item)
        for loop, items in by_loop.items():
            try:
                loop.call_soon_threadsafe(_put_all, items)
            except RuntimeError:
                log.debug("an event loop was closed before its answers came")


def _reason(error: Exception) -> str:
    """Why a message cannot be encoded, in the user's words."""
    if isinstance(error, UnicodeEncodeError):
        return "its text holds half of a surrogate pair, which is no character"
    if isinstance(error, OverflowError):
        return "it holds a number that is too large"
    return str(error)


def _put_all(items: list[tuple[AsyncInbox, Item]]) -> None:
    for inbox, item in items:
        inbox.put_here(item)
