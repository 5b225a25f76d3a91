"""A trace in a terminal."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.text import Text
from rich.tree import Tree

from radixrt.lang.describe import ORIGINS, parts, totals

_STYLES = {"constant": "", "cached": "dim", "sampled": "green", "forced": "yellow", "selected": "bold blue"}


def show(trace: dict[str, Any], console: Console | None = None) -> None:
    """Prints the text of each branch as a tree, with a legend and totals."""
    console = console or Console()
    root = Tree(Text(trace["program"], style="bold"))
    _add(root, trace, 0)
    console.print(root)
    console.print(Text("  ").join(Text(name, style=_STYLES[name]) for name in ORIGINS))
    console.print(Text(totals(trace), style="dim"))


def _add(tree: Tree, trace: dict[str, Any], index: int) -> None:
    branch = trace["branches"][index]
    text = Text()
    for piece in branch["pieces"]:
        for origin, part in parts(piece):
            text.append(part, style=_STYLES[origin])
    if not branch["pieces"]:
        text.append("\n".join(f"{m['role']}: {m.get('content') or ''}" for m in branch["messages"]))
    if branch["label"]:
        text = Text(f"[{branch['label'].rsplit(' > ', 1)[-1]}] ", style="bold") + text
    if branch["error"]:
        text.append(f"\n{branch['error']}", style="red")
    node = tree.add(text)
    for i, other in enumerate(trace["branches"]):
        if other["parent"] == index:
            _add(node, trace, i)
