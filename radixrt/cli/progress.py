"""Long waits made visible: a bar on a terminal, one plain line a stage elsewhere. Both go to stderr."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

MEGABYTE = 1_000_000


class Stages:
    """A callable `(stage, fraction)` to hand to what reports progress, used as a context manager.

    A new stage begins with its first call; `fraction` is in 0..1. `download` is the same for what counts bytes.
    """

    def __init__(self, terminal: bool | None = None) -> None:
        self._terminal = sys.stderr.isatty() if terminal is None else terminal
        self._progress: Progress | None = None
        self._task: TaskID | None = None
        self._stage = ""

    def __enter__(self) -> Self:
        return self

    def __call__(self, stage: str, fraction: float) -> None:
        self._show(stage, fraction, "")

    def download(self, stage: str, done: int, total: int | None) -> None:
        """Progress of a download: bytes that are here, of `total` (None: unknown)."""
        size = f" of {total / MEGABYTE:.1f}" if total else ""
        self._show(stage, done / total if total else 0.0, f"{done / MEGABYTE:.1f}{size} MB")

    def _show(self, stage: str, fraction: float, detail: str) -> None:
        new = stage != self._stage
        self._stage = stage
        if not self._terminal:
            if new:
                print(f"{stage} ...", file=sys.stderr, flush=True)
            return
        progress = self._progress or self._start()
        if new or self._task is None:
            if self._task is not None:
                progress.update(self._task, completed=1.0)
            self._task = progress.add_task(stage, total=1.0, detail=detail)
        progress.update(self._task, completed=fraction, detail=detail)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stop drawing and wipe the bars: the wait is over."""
        if self._progress is not None:
            self._progress.stop()
        self._progress = self._task = None
        self._stage = ""

    def _start(self) -> Progress:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TaskProgressColumn(),
            TextColumn("{task.fields[detail]}"),
            TimeElapsedColumn(),
            console=Console(stderr=True),
            transient=True,
        )
        self._progress.start()
        return self._progress
