"""Whether a request's Host header names this server, and whether a page of another site has sent it.

A request of HTTP/1.1 has one such header (RFC 9112, section 3.2), HTTP/1.0 may leave it out; any other is a 400.

A page of any web site can make a browser send requests to a loopback address under the site's own name (DNS rebinding);
the Host header then is that name. A server on a loopback address therefore answers only to names of the loopback.

It can also send a POST to the address itself, whose answer it may not read, but which would run (a plain form does so
much): the Origin header then is the site. Where no key keeps such pages out, the server takes what changes or costs
something only from pages of this machine, and from origins that it was told.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Receive, Scope, Send

from radixrt.errors import Forbidden, InvalidRequest, RadixrtError, StartupError
from radixrt.server.errors import error_response

SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})


class CheckHost:
    """Refuse requests whose Host is neither a loopback name nor one of `allowed`, whatever the port (None: any will
    do); and all but safe methods from pages whose origin has no such name and is not in `origins` (`*`, the default:
    any page may)."""

    def __init__(
        self, app: ASGIApp, *, allowed: Iterable[str] | None = (), origins: Iterable[str] = ("*",)
    ) -> None:  # fmt: skip
        self._app = app
        self._any = allowed is None
        self._allowed = frozenset(name.lower() for name in allowed or ())
        self._origins = frozenset(origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            given = [value.decode("latin-1") for name, value in scope["headers"] if name == b"host"]
            if len(given) > 1 or (not given and scope["http_version"] != "1.0"):
                count = "no" if not given else "more than one"
                refused: RadixrtError = InvalidRequest(
                    f"the request has {count} Host header, but HTTP/1.1 asks for one", code="invalid_host"
                )
                await error_response(refused, scope["path"])(scope, receive, send)
                return
            if given and not (self._any or self._is_ours(given[0])):
                refused = Forbidden(
                    "the Host header names another server; allow a name with --allowed-host", code="host_not_allowed"
                )
                await error_response(refused, scope["path"])(scope, receive, send)
                return
            pages = [value.decode("latin-1") for name, value in scope["headers"] if name == b"origin"]
            if scope["method"] not in SAFE_METHODS and not all(map(self._is_welcome, pages)):
                refused = Forbidden(
                    "a web page of another site sent this; allow its origin with --cors-origin",
                    code="origin_not_allowed",
                )
                await error_response(refused, scope["path"])(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _is_welcome(self, origin: str) -> bool:
        if "*" in self._origins or origin in self._origins:
            return True
        scheme, _, host = origin.partition("://")
        return scheme in ("http", "https") and self._is_ours(host)

    def _is_ours(self, host: str) -> bool:
        try:
            name = urlsplit(f"//{host}").hostname
        except ValueError:
            return False
        return name is not None and "@" not in host and (is_loopback(name) or name in self._allowed)


def is_loopback(host: str) -> bool:
    """Whether a name or an address means this machine alone."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def origins_of(given: Iterable[str]) -> list[str]:
    """Origins as browsers send them (scheme://host[:port] in lower case), or `*`. StartupError for what no browser
    sends: such an origin would let nobody in, silently."""
    return [_origin(text) for text in given]


def _origin(text: str) -> str:
    if text == "*":
        return text
    origin = text.strip().lower().removesuffix("/")
    try:
        parts = urlsplit(origin)
        whole = f"{parts.scheme}://{parts.netloc}" == origin and parts.hostname and parts.port != 0
    except ValueError:
        whole = False
    if not whole or "@" in origin:
        raise StartupError(f"{text!r} is no origin of a page: write it as https://app.example:8443, or '*' for all")
    return origin
