"""The `radixrt` command. Only typer is imported here: what a command needs, it imports when it runs."""

from __future__ import annotations

import gc
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import subprocess

    from radixrt.cli.commands import app

__all__ = ["app", "main"]


def main(arguments: Sequence[str] | None = None) -> None:
    """The console script. Exit codes: 0 done, 1 an error that radixrt names, 2 wrong usage, 130 interrupted."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    if arguments[:1] != ["serve"]:
        from radixrt.cli.commands import run

        return run(arguments)
    gc.disable()  # until the server is ready: see `radixrt.garbage`
    runner = None
    try:
        runner = _runner_ahead(arguments)
        from radixrt.cli.commands import run

        run(arguments, runner)
    finally:
        gc.enable()
        if runner is not None:
            from radixrt.launch import dismiss

            dismiss(runner)  # where no engine has taken it


def _runner_ahead(arguments: Sequence[str]) -> subprocess.Popen[bytes] | None:
    """A runner that is started before the command line is parsed, for that takes 0.15 s; None where it would help
    nobody, or where how many threads it computes with is on the command line."""
    if any(word in ("-h", "--help") or word.startswith(("--threads", "--tp")) for word in arguments):
        return None
    from radixrt.errors import RadixrtError
    from radixrt.launch import compute_threads, spawn_runner

    try:
        return spawn_runner(compute_threads(None, tp=1))
    except RadixrtError:
        return None  # the command says what is wrong


def __getattr__(name: str) -> Any:
    if name == "app":
        from radixrt.cli.commands import app

        return app
    raise AttributeError(f"module 'radixrt.cli' has no attribute {name!r}")
