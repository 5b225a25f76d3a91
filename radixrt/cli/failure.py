"""Errors on a terminal: one or two lines on stderr, and the traceback only for those who ask for it."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Sequence

from radixrt.errors import RadixrtError

HINTS = {
    "NotFound": "`radixrt models` lists the known short names.",
    "EngineDead": "Run again with --log-level debug to see what its processes said.",
    "StartupError": "Run again with --log-level debug to see what its processes said.",
}


def report(error: RadixrtError, arguments: Sequence[str] = ()) -> None:
    """Print `error` to stderr; with `--log-level debug` among the arguments, its traceback first."""
    debug = wants_traceback(arguments)
    if debug:
        traceback.print_exception(error)
    print(f"error: {error.message}", file=sys.stderr)
    hint = HINTS.get(type(error).__name__)
    if hint is not None and not debug and (type(error).__name__ == "NotFound" or error.code == "process_died"):
        print(hint, file=sys.stderr)


def wants_traceback(arguments: Sequence[str]) -> bool:
    """Whether a command line asks for debugging; it is read again here, for the parser is gone when an error ends."""
    pairs = zip(arguments, [*arguments[1:], ""], strict=True)
    return any(name == "--log-level=debug" or (name == "--log-level" and value == "debug") for name, value in pairs)
