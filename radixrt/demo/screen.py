"""What the demo prints: bars and a drawn tree on a terminal, plain lines on a pipe; the words are the same."""

from __future__ import annotations

import textwrap
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from radixrt.demo.tree import Branch, grow
from radixrt.errors import RadixrtError

if TYPE_CHECKING:
    from rich.status import Status
    from rich.tree import Tree

    from radixrt.demo.tally import Tally
    from radixrt.results import CacheNode

REFRESH_S = 0.3


class Screen:
    """Prints to one console. Nothing that a model wrote is read as markup or as control characters."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(highlight=False)
        self.live = self.console.is_terminal

    def line(self, text: str = "", style: str = "") -> None:
        """One line, never wrapped on a pipe."""
        self.console.print(Text(text, style=style), soft_wrap=not self.live)

    def heading(self, text: str) -> None:
        self.line()
        self.line(text, "bold")

    def turn(self, who: str, text: str, style: str = "") -> None:
        """What somebody said, on one line."""
        self.line(f"  {who + ':':<10} {clip(text, 160)}", style)

    def tally(self, tally: Tally) -> None:
        """The numbers of one job."""
        for text in tally.lines():
            self.line(f"  {text}", "green")

    @contextmanager
    def waiting(self, text: str, now: Callable[[], str]) -> Iterator[None]:
        """Show `text` while the body runs: on a terminal with what `now` says, read a few times a second."""
        if not self.live:
            self.line(f"  {text} ...")
            yield
            return
        over = threading.Event()

        def refresh(status: Status) -> None:
            while not over.wait(REFRESH_S):
                try:
                    status.update(f"{text}: {now()}")
                except RadixrtError:
                    return  # the engine is gone: the job itself says so

        with self.console.status(text) as status:
            thread = threading.Thread(target=refresh, args=(status,), daemon=True, name="demo-status")
            thread.start()
            try:
                yield
            finally:
                over.set()
                thread.join()

    def tree(self, nodes: list[CacheNode]) -> None:
        """The prefix tree: a line a node, the text it begins with, its tokens and how often it was found."""
        roots = grow(nodes)
        if not self.live:
            for branch in roots:
                self._plain(branch, 1)
            return
        from rich.tree import Tree

        drawn = Tree(Text("root", style="dim"), guide_style="dim")
        for branch in roots:
            _draw(branch, drawn)
        self.console.print(drawn)

    def _plain(self, branch: Branch, depth: int) -> None:
        self.line("  " * depth + branch.label)
        for child in branch.children:
            self._plain(child, depth + 1)


def clip(text: str, width: int) -> str:
    """`text` on one line, at most `width` characters, cut at a word."""
    return textwrap.shorten(" ".join(text.split()), width, placeholder=" ...")


def _draw(branch: Branch, parent: Tree) -> None:
    added = parent.add(Text(branch.label, no_wrap=True, overflow="ellipsis"))
    for child in branch.children:
        _draw(child, added)
