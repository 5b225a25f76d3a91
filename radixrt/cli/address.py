"""The address of a server on the command line: in its place or as an option, whole or as HOST:PORT."""

from __future__ import annotations

from typing import Annotated, TypeAlias
from urllib.parse import urlsplit

import typer

LOCAL = "http://127.0.0.1:8000"
"""Where `radixrt serve` listens unless it is told otherwise."""
SCHEMES = ("http://", "https://")

Given: TypeAlias = Annotated[
    str | None, typer.Argument(metavar="URL", help=f"The server.  [default: {LOCAL}]", show_default=False)
]
Named: TypeAlias = Annotated[str | None, typer.Option("--url", metavar="URL", help="The same, as an option.")]
BaseUrl: TypeAlias = Annotated[
    str | None,
    typer.Option("--base-url", metavar="URL", help="A radixrt server to use instead of an engine of its own."),
]


def one_server(given: str | None, named: str | None) -> str:
    """The address that stands in its place or behind --url, or that of a server on this machine."""
    if given is not None and named is not None:
        raise typer.BadParameter("the server is given twice: leave --url or the other one out", param_hint="--url")
    return server(given or named or LOCAL, "--url" if named is not None else "URL")


def server(text: str, hint: str) -> str:
    """The address as the connections take it, without a path at the end that clients of OpenAI's API write. A missing
    scheme is http. Raises typer.BadParameter (exit code 2) for what is no address, naming `hint`."""
    url = (text if "://" in text else f"http://{text}").rstrip("/").removesuffix("/v1")
    try:
        parts = urlsplit(url)
        named = bool(parts.hostname) and parts.port != 0 and not parts.netloc.endswith(":")  # unix:/path has no port
        whole = named and url.startswith(SCHEMES) and not parts.query
    except ValueError:
        whole = False
    if not whole or not url.isprintable() or " " in url:
        raise typer.BadParameter(f"{text!r} is no address of a server: write it as {LOCAL}", param_hint=hint)
    return url
