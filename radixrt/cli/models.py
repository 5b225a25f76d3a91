"""`radixrt pull` and `radixrt models`: what is known, what is here, and how it gets here."""

from __future__ import annotations

from typing import Annotated

import typer

from radixrt.cli.progress import Stages


def pull(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Short name or hub name.", show_default=False)],
) -> None:
    """Fetch a model into the cache (RADIXRT_HOME), checked and resumable.

    [dim]Example:[/dim]  radixrt pull smollm2-135m
    """
    from radixrt.checkpoint import resolve

    with Stages() as stages:
        path = resolve(name, progress=stages.download)
    print(path)


def models() -> None:
    """List the models that have a short name, and those in the cache.

    [dim]Example:[/dim]  radixrt models
    """
    from rich.console import Console
    from rich.table import Table

    from radixrt.checkpoint import home, list_models

    table = Table("name", "format", "size", "here", "description", box=None, pad_edge=False)
    for model in list_models():
        table.add_row(model.name)
    console = Console()
    console.print(table)
    console.print(f"cache: {home()}", style="dim", soft_wrap=True)
