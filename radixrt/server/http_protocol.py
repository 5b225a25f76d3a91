"""uvicorn's HTTP/1.1 protocol with the bounds that it lacks: a request's head in size and time, and unread answers.

What is no HTTP is answered in the shape of all errors, and logged with its sender. A client that closes its sending
side behind a request looks like one that has left. Its request ends where it would go on by itself (a generation), with
an error that says so, and is answered where it would not.
"""

from __future__ import annotations

import asyncio
import logging

from starlette.types import Message, Receive, Scope
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from radixrt.errors import InvalidRequest
from radixrt.server.errors import error_body

logger = logging.getLogger(__name__)

MAX_HEAD_BYTES = 64 * 1024
"""Request line and headers together, give or take what came in one read."""
WRITE_TIMEOUT_S = 60.0
"""How long a client may leave what was sent to it unread, once the buffers of both ends are full."""
HEAD_TIMEOUT_S = 30.0
"""From the first byte of a request to the end of its headers; and from the connection to the first byte."""
INVALID = "Invalid HTTP request received."
"""uvicorn's words, in its log too, where `serve` leaves them out: they say nothing of who sent it."""
NOTHING_MORE = "radixrt.nothing_more"
"""Key of a request's scope: an Event that is set once the client has closed its sending side."""
TLS_BEGINS = b"\x16\x03"
"""What a client sends first that was given https:// for the address of a server without certificate."""


class BoundedHttpProtocol(HttpToolsProtocol):
    """Closes a connection whose request head is too long or too slow, or whose client has stopped reading.

    A body is bounded where it is read. Closing cancels the request, which frees what it holds.
    """

    _head_bytes = 0
    _in_head = False
    _first = b""
    _timer: asyncio.TimerHandle | None = None
    _unread: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._nothing_more = asyncio.Event()
        super().connection_made(transport)
        self._start_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        self._stop_unread()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._first = self._first or data[:2]
        super().data_received(data)
        if self._in_head and not self.transport.is_closing():
            self._head_bytes += len(data)
            if self._timer is None:
                self._start_timer()
            if self._head_bytes > MAX_HEAD_BYTES:
                self._refuse("the request's headers are too large")

    def on_message_begin(self) -> None:
        self._in_head, self._head_bytes = True, 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._stop_timer()
        self.scope[NOTHING_MORE] = self._nothing_more  # type: ignore[literal-required]
        super().on_headers_complete()

    def eof_received(self) -> bool:  # type: ignore[override]
        """Whether the connection stays open for answers: those to whole requests are on their way (not over TLS, which
        ends in both directions at once)."""
        if self.scheme == "https" or self.cycle is None or self.cycle.more_body or self.cycle.response_complete:
            return False
        self._nothing_more.set()
        self.cycle.keep_alive = False  # it is the last one
        for cycle in (self.cycle, *(cycle for cycle, _ in self.pipeline)):
            cycle.message_event.set()  # whoever waits for a sign of the client looks again: `until_nothing_more`
        return True

    def send_400_response(self, msg: str) -> None:
        """Refuse what cannot be read, and close. Behind a request it is left unread: the connection ends with the
        answer to that request, which nothing is written into."""
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.keep_alive = False
            return
        if msg == INVALID:
            secure = self._first == TLS_BEGINS
            msg = (
                "this is TLS, and the server speaks plain HTTP: write http://" if secure else "this is no HTTP request"
            )
            logger.warning("refused %s: %s", f"{self.client[0]}:{self.client[1]}" if self.client else "a client", msg)
        body = error_body(InvalidRequest(msg, code="invalid_http"))
        head = b"content-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % len(body)
        self.transport.write(STATUS_LINE[400] + head + body)
        self.transport.close()

    def _unsupported_upgrade_warning(self) -> None:
        """A request to go on in another protocol (a WebSocket) is answered as any other: nobody need be warned of what
        strangers ask for, twice a request and with advice about packages."""
        logger.debug("a request to change the protocol is answered as an ordinary one")

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unread = self.loop.call_later(WRITE_TIMEOUT_S, self._abort)

    def resume_writing(self) -> None:
        self._stop_unread()
        super().resume_writing()

    def _abort(self) -> None:
        logger.info("connection closed: the client does not read its answer")
        self.transport.abort()

    def _stop_unread(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None

    def _start_timer(self) -> None:
        self._timer = self.loop.call_later(HEAD_TIMEOUT_S, self._refuse, "the request's headers did not come in time")

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _refuse(self, why: str) -> None:
        self._stop_timer()
        if not self.transport.is_closing():
            logger.info("connection closed: %s", why)
            if self._in_head and (self.cycle is None or self.cycle.response_complete):
                self.send_400_response(why)
            else:
                self.transport.close()


def until_nothing_more(receive: Receive, scope: Scope) -> Receive:
    """`receive`, which says behind the body that the client has left as soon as it has closed its sending side."""
    nothing_more = scope.get(NOTHING_MORE)
    if nothing_more is None:
        return receive
    whole = False

    async def receiving() -> Message:
        nonlocal whole
        if not (whole and nothing_more.is_set()):
            message = await receive()
            if not (whole and nothing_more.is_set()):
                whole = not message.get("more_body", False)
                return message
        return {"type": "http.disconnect"}

    return receiving
