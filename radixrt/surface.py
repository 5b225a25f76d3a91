"""How an error writes a value: as the language of its reader does. That is Python, or JSON for who sent a request over
HTTP: `None` or `null`, `True` or `true`."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

_written: ContextVar[Callable[[Any], str]] = ContextVar("written", default=repr)


def written(value: Any) -> str:
    """The value in the reader's language."""
    return _written.get()(value)


def write_with(writer: Callable[[Any], str]) -> None:
    """Write values by `writer` in this task, and in those that it starts."""
    _written.set(writer)
