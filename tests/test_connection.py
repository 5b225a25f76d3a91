"""The client's connection to its engine: how it ends, from any side, and what may be asked of it afterwards."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import zmq

from radixrt.connection import Connection, SyncInbox
from radixrt.errors import EngineDead
from radixrt.messages import Abort, FromClient, Loading, ToClient
from radixrt.transport import Link, open_socket
from tests.waiting import HANG_S


class Peer:
    """The tokenizer's side: a ROUTER that a connection has greeted."""

    def __init__(self, on_status: Callable[[Any], None] = lambda message: None) -> None:
        self._context: zmq.Context[Any] = zmq.Context()
        socket = open_socket(self._context, zmq.ROUTER, "tcp://127.0.0.1:*", bind=True)
        self.link: Link[FromClient, ToClient] = Link(socket, FromClient)
        self.connection = Connection(socket.getsockopt_string(zmq.LAST_ENDPOINT), on_status)
        assert self.link.wait(HANG_S)
        ((self._name, _hello),) = self.link.receive()

    def says(self, message: ToClient) -> None:
        assert self.link.send(message, self._name)

    def ended(self) -> bool:
        """Whether the connection's thread ends."""
        self.connection._thread.join(HANG_S)
        return not self.connection._thread.is_alive()

    def close(self) -> None:
        self.connection.close()
        self.link.close()
        self._context.term()


@pytest.fixture
def peer() -> Iterator[Peer]:
    peer = Peer()
    yield peer
    peer.close()


PROGRESS = Loading(stage="weights", fraction=0.5)


def test_the_thread_may_see_that_it_is_closed_before_it_is_woken(peer: Peer) -> None:
    """A message that arrives just then ends the thread, and with it the pipe that was to wake it."""

    class Seen(threading.Event):
        def set(self) -> None:
            first = not self.is_set()
            super().set()
            if first:
                peer.says(PROGRESS)
                assert peer.ended()

    peer.connection._closing = Seen()
    peer.connection.close()
    assert not peer.connection.alive


def test_a_broken_connection_fails_what_is_open_and_can_be_closed() -> None:
    def breaks(message: object) -> None:
        raise OSError("broken")

    peer = Peer(breaks)
    inbox = SyncInbox()
    number = peer.connection.open(inbox)
    peer.says(PROGRESS)
    assert peer.ended()
    assert isinstance(inbox.get(HANG_S), EngineDead)
    peer.connection.send(Abort(request_id=number))  # what a stream does that is left
    with pytest.raises(EngineDead, match="broke"):
        peer.connection.open(SyncInbox())
    peer.close()
    peer.connection.close()


def test_its_own_thread_may_close_it() -> None:
    closed: list[bool] = []

    def close(message: object) -> None:
        peer.connection.close()
        closed.append(True)

    peer = Peer(close)
    peer.says(PROGRESS)
    assert peer.ended()
    assert closed == [True] and not peer.connection.alive
    peer.close()


def test_threads_may_close_it_at_once(peer: Peer) -> None:
    failures: list[BaseException] = []
    together = threading.Barrier(8)

    def close() -> None:
        together.wait(HANG_S)
        try:
            peer.connection.send(Abort(request_id=1))
            peer.connection.close()
        except BaseException as error:  # noqa: BLE001 - the test looks at it
            failures.append(error)

    threads = [threading.Thread(target=close) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(HANG_S)
    assert not failures and peer.ended()


def test_a_closed_connection_writes_into_nobodys_file(peer: Peer) -> None:
    """The numbers of its pipe are given to the files that are opened next."""
    peer.connection.close()
    pipes = [os.pipe() for _ in range(8)]
    for reading, _ in pipes:
        os.set_blocking(reading, False)
    try:
        peer.connection.send(Abort(request_id=1))
        peer.connection.close()
        for reading, _ in pipes:
            with pytest.raises(BlockingIOError):
                os.read(reading, 1)
    finally:
        for pair in pipes:
            for descriptor in pair:
                os.close(descriptor)


def test_a_connection_whose_thread_is_busy_takes_any_number_of_messages(peer: Peer) -> None:
    """More wake-ups than its pipe holds bytes."""
    busy, go_on = threading.Event(), threading.Event()

    def hold(message: object) -> None:
        busy.set()
        assert go_on.wait(HANG_S)

    peer.connection._on_status = hold
    peer.says(PROGRESS)
    assert busy.wait(HANG_S)
    sent = 70_000
    sender = threading.Thread(target=lambda: [peer.connection.send(Abort(request_id=1)) for _ in range(sent)])
    sender.start()
    sender.join(HANG_S)
    assert not sender.is_alive()
    go_on.set()
    while sent:
        assert peer.link.wait(HANG_S)
        sent -= len(list(peer.link.receive()))
