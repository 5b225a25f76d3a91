"""Where in a request a constraint is at fault.

`param` names a field of the body as OpenAI's API spells it (`tools[1].function.parameters`); the place inside a schema
that stands there is a JSON pointer, in the message and in the error's `pointer`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from radixrt.calls import Calls
from radixrt.errors import ConstraintError, RadixrtError

OPTIONS = {"backend": "backend", "lax": "lax", "whitespace_pattern": "structured_outputs.whitespace_pattern"}
"""What a constraint is told beside itself, as the grammar room calls it, and as the body does."""


@contextmanager
def placing(where: str | None, calls: Calls | None = None) -> Iterator[None]:
    """Refusals of the constraint that `where` in the body holds, or that was made of tools, say where they belong."""
    try:
        yield
    except ConstraintError as error:
        if error.param in OPTIONS:
            error.param = OPTIONS[error.param]
            raise
        field, rest = None, error.param or ""
        if calls is not None:
            field, rest = calls.place(error.param)
        at(error, field or where or "constraint", rest if rest.startswith("/") else None)
        raise


def at(error: RadixrtError, field: str, pointer: str | None) -> None:
    """`error` is about `field`, and in it about what `pointer` leads to."""
    error.param, error.pointer = field, pointer
    if pointer is not None and pointer not in error.message:
        error.message = f"at {pointer}: {error.message}"
