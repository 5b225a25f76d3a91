"""`radixrt pull` and `radixrt models`: what is known, what is here, and how it gets here."""

from __future__ import annotations

from typing import Annotated

import typer

from radixrt.cli.progress import MEGABYTE, Stages


def pull(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="Short name, or hub name (org/name).", show_default=False)
    ],
) -> None:
    """Fetch a model into the cache (RADIXRT_HOME), checked and resumable.

    Prints the path of the model's files.

    Example:  radixrt pull smollm2-135m
    """
    from radixrt.checkpoint import resolve

    with Stages() as stages:
        path = resolve(name, progress=stages.download)
    print(path)


def models() -> None:
    """List the models that have a short name, and those in the cache.

    Example:  radixrt models
    """
    import sys

    from radixrt.checkpoint import home, list_models

    rows = [
        (
            entry.name,
            f"{entry.size_bytes / MEGABYTE:,.0f} MB",
            "yes" if entry.on_disk else "no",
            entry.about,
        )
        for entry in list_models()
    ]
    header = ("name", "size", "on disk", "about")
    if sys.stdout.isatty():
        from rich.console import Console
        from rich.markup import escape
        from rich.table import Table

        table = Table(*header, box=None, pad_edge=False)
        for row in rows:
            table.add_row(*map(escape, row))
        Console().print(table)
    else:
        for row in (header, *rows):
            print("\t".join(row))
    print(f"cache: {home()}", file=sys.stderr)
