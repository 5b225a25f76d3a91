"""`radixrt cache`: the prefix tree of a server, live."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from radixrt.cli.address import Given, Named, one_server
from radixrt.cli.watching import Interval, ask, watch

if TYPE_CHECKING:
    import httpx
    from rich.console import RenderableType

    from radixrt.results import CacheNode, CacheView

TEXT_SHOWN = 60
"""Characters of a node's text."""
HEAD = 5
"""Lines that are not nodes: title, header, totals, what is left out."""


def cache(
    given: Given = None,
    named: Named = None,
    api_key: Annotated[
        str | None,
        typer.Option(
            "--api-key", metavar="KEY", envvar=["RADIXRT_API_KEY", "RADIXRT_ADMIN_API_KEY"],
            help="Whose part of the tree to show.",
        ),
    ] = None,
    cache_salt: Annotated[
        str | None, typer.Option("--cache-salt", metavar="SALT", help="The part of the tree with this salt.")
    ] = None,
    interval_s: Interval = 1.0,
    once: Annotated[
        bool, typer.Option("--once", help="Print the whole tree once and end; what a pipe gets, too.")
    ] = False,
) -> None:  # fmt: skip
    """Watch a server's prefix tree: what is cached, found, in use and pinned.

    Indented as the tree is, with the tokens of each node, how many
    requests found it, how many use it now, its pins and its age.
    Ends with Ctrl-C.

    Example:  radixrt cache http://127.0.0.1:8000
    """
    url = one_server(given, named)

    def draw(http: httpx.Client, height: int | None) -> RenderableType:
        return drawing(read(http, cache_salt), url, height)

    watch(url, api_key, draw, interval_s=interval_s, once=once)


def read(http: httpx.Client, cache_salt: str | None = None) -> CacheView:
    """One answer of GET /cache. Raises a RadixrtError."""
    import msgspec

    from radixrt.errors import EngineDead
    from radixrt.results import CacheView

    params = {} if cache_salt is None else {"cache_salt": cache_salt}
    response = ask(http, "/cache", "/cache needs an API key of the server: --api-key", **params)
    try:
        if response.status_code != 200:
            raise ValueError
        return msgspec.json.decode(response.content, type=CacheView)
    except ValueError:
        raise EngineDead(
            f"/cache of {http.base_url} answers {response.status_code}; is it a radixrt server that is ready?"
        ) from None


def drawing(view: CacheView, url: str, height: int | None) -> RenderableType:
    """The tree, a node a line, on at most `height` lines where the terminal is wide enough; None: all of it."""
    from rich.console import Group
    from rich.markup import escape
    from rich.table import Table
    from rich.text import Text

    nodes = view.nodes if height is None else fitting(view.nodes, max(height - HEAD, 1))
    shown = Table(box=None, pad_edge=False)
    for name in ("tokens", "hits", "in use", "pins", "age"):
        shown.add_column(name, justify="right")
    shown.add_column("text", no_wrap=True, overflow="ellipsis")
    for node in nodes:
        shown.add_row(
            f"{node.tokens:,}", f"{node.hits:,}", str(node.locks or ""), str(node.pins or ""), age(node.age_s),
            escape("  " * (node.depth - 1) + line(node.text)),
            style=style_of(node),
        )  # fmt: skip
    left = len(view.nodes) - len(nodes)
    said = f"{left:,} more nodes are not shown" if left else "the server lists no more nodes than these"
    rest = [Text(said, style="dim")] if left or view.truncated else []
    return Group(Text(f"{url}  {totals(view)}", style="bold"), shown, *rest)


def fitting(nodes: list[CacheNode], lines: int) -> list[CacheNode]:
    """The nodes for a screen of so many lines, in the tree's order: those in use, pinned, or found most, each with all
    above it."""
    if len(nodes) <= lines:
        return nodes
    parents: list[int] = []
    path: list[int] = []
    for i, node in enumerate(nodes):
        del path[node.depth - 1 :]
        parents.append(path[-1] if path else -1)
        path.append(i)
    wanted = sorted(
        range(len(nodes)), key=lambda i: (-nodes[i].locks, -nodes[i].pins, -nodes[i].hits, nodes[i].age_s, i)
    )
    chosen: set[int] = set()
    for i in wanted:
        chain = []
        while i >= 0 and i not in chosen:
            chain.append(i)
            i = parents[i]
        if len(chosen) + len(chain) <= lines:
            chosen.update(chain)
    return [nodes[i] for i in sorted(chosen)]


def totals(view: CacheView) -> str:
    said = f"{view.tokens:,} tokens in {len(view.nodes):,}{'+' if view.truncated else ''} nodes"
    if view.pin_quota:
        said += f", {view.pinned_tokens:,} of {view.pin_quota:,} pinned"
    if view.pins:
        said += f" ({len(view.pins)} pins, the next ends in {age(min(pin.expires_in_s for pin in view.pins))})"
    if view.tier is not None:
        said += f"; {view.tier.tokens:,} tokens in the {view.tier.kind} tier"
    return said


def style_of(node: CacheNode) -> str:
    if node.locks:
        return "green"
    return "yellow" if node.pins else ""


def line(text: str) -> str:
    """A node's text on one line: what is not printable is shown as Python writes it."""
    shown = repr(text)[1:-1]
    return shown if len(shown) <= TEXT_SHOWN else shown[: TEXT_SHOWN - 1] + "…"


def age(seconds: float) -> str:
    """Two figures at most: 0.4s, 12s, 3m, 5h, 2d."""
    if seconds < 10:
        return f"{seconds:.1f}s"
    for unit, size in (("s", 60), ("m", 60), ("h", 24)):
        if seconds < size:
            return f"{seconds:.0f}{unit}"
        seconds /= size
    return f"{seconds:.0f}d"
