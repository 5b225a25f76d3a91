"""What the live views of a server share: the connection, one print for a pipe, and the loop that draws again."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

if TYPE_CHECKING:
    import httpx
    from rich.console import RenderableType


Interval: TypeAlias = Annotated[
    float, typer.Option("--interval-s", metavar="SECONDS", min=0.1, help="Between two readings.")
]


def watch(
    url: str,
    api_key: str | None,
    draw: Callable[[httpx.Client, int | None], RenderableType],
    *,
    interval_s: float,
    once: bool,
) -> None:
    """Draw what `draw` reads from the server, again and again until Ctrl-C; once where that is asked for, or where
    stdout is no terminal. `draw` gets the terminal's height in lines, None where all shall be shown."""
    import httpx
    from rich.console import Console
    from rich.live import Live

    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    with httpx.Client(base_url=url, headers=headers, timeout=10) as http:
        console = Console()
        if once or not sys.stdout.isatty():
            console.print(draw(http, None))
            return
        with Live(draw(http, console.height), console=console, auto_refresh=False) as live:
            try:
                while True:
                    time.sleep(interval_s)
                    live.update(draw(http, console.height), refresh=True)
            except KeyboardInterrupt:
                return


def ask(http: httpx.Client, path: str, key_words: str, **params: str) -> httpx.Response:
    """An answer of the server, whatever its status but a refused key. Raises EngineDead where nobody answers, and
    Unauthorized with `key_words`."""
    import httpx

    from radixrt.errors import EngineDead, Unauthorized

    try:
        response = http.get(path, params=params)
    except httpx.TransportError as error:
        raise EngineDead(f"no server answers at {http.base_url}: {error}") from error
    if response.status_code in (401, 403):
        raise Unauthorized(key_words)
    return response
