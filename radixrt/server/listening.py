"""The socket of a server, and what HTTPS needs. No web framework is imported here: the socket listens before that."""

from __future__ import annotations

import os
import socket
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from radixrt.errors import StartupError


def bind(host: str, port: int) -> socket.socket:
    """A listening TCP socket; StartupError says what is wrong with the address."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        # asyncio and socket put the address into strerror once more.
        why = os.strerror(error.errno) if isinstance(error.errno, int) and error.errno > 0 else error.strerror or error
        raise StartupError(f"cannot listen on {host}:{port}: {why}") from error
    except OverflowError as error:
        raise StartupError(f"cannot listen on {host}:{port}: a port is between 0 and 65535") from error


def bind_unix(path: Path) -> socket.socket:
    """A listening Unix socket that only this user may open; StartupError where another server listens on it.

    A socket file that nobody listens on any more (its server was killed) is replaced.
    """
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if path.is_socket():
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
                if probe.connect_ex(str(path)) == 0:
                    raise OSError("another server listens there")
            path.unlink()
        elif path.exists():
            raise OSError("there is a file of that name, which is no socket")
        before = os.umask(0o177)
        try:
            listener.bind(str(path))
        finally:
            os.umask(before)
        listener.listen(2048)
    except OSError as error:
        listener.close()
        raise StartupError(f"cannot listen on {path}: {error.strerror or error}") from error
    return listener


@dataclass(frozen=True)
class Tls:
    """Files for HTTPS, in PEM."""

    certificate: Path
    """The server's certificate, and those between it and its root."""
    key: Path
    client_ca: Path | None = None
    """Where given, clients must show a certificate of this authority."""

    def check(self) -> dict[str, Any]:
        """uvicorn's options; StartupError if the files cannot be used."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:
            context.load_cert_chain(self.certificate, self.key)
            if self.client_ca is not None:
                context.load_verify_locations(self.client_ca)
        except (OSError, ssl.SSLError) as error:
            raise StartupError(f"the TLS files cannot be used: {error.strerror or error}") from error
        options: dict[str, Any] = {"ssl_certfile": self.certificate, "ssl_keyfile": self.key}
        if self.client_ca is not None:
            options |= {"ssl_ca_certs": str(self.client_ca), "ssl_cert_reqs": ssl.CERT_REQUIRED}
        return options


def url_of(listener: socket.socket, scheme: str = "http") -> str:
    """The base URL under which a client on this machine reaches `listener`."""
    if listener.family == socket.AF_UNIX:
        return f"unix:{listener.getsockname()}"
    host, port = listener.getsockname()[:2]
    if host in ("0.0.0.0", "::"):
        host = "127.0.0.1" if host == "0.0.0.0" else "::1"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
