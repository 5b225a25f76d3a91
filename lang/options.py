"""What a caller of a program may say about the run as a whole."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from radixrt.errors import InvalidRequest

RESERVED = ("backend", "timeout", "cache_salt", "priority")
"""What `run` takes itself, so no program may have a parameter of that name."""


@dataclass(frozen=True, slots=True)
class RunOptions:
    """Raises InvalidRequest for a value out of range."""

    timeout: float | None = None
    """Seconds from the start of the body; then all requests are cancelled."""
    cache_salt: str | None = None
    """The run shares cached prefixes only with requests of the same salt."""
    priority: int = 0
    """Of all its requests; lower goes first among those that wait."""

    def __post_init__(self) -> None:
        timeout = self.timeout
        if timeout is not None and (
            isinstance(timeout, bool) or not isinstance(timeout, int | float) or not 0 < timeout < math.inf
        ):
            raise InvalidRequest(f"timeout must be a number of seconds above 0, but is {timeout!r}", param="timeout")
        if self.cache_salt is not None and not isinstance(self.cache_salt, str):
            raise InvalidRequest(f"cache_salt must be a string, but is {self.cache_salt!r}", param="cache_salt")
        if not isinstance(self.priority, int) or isinstance(self.priority, bool):
            raise InvalidRequest(f"priority must be a whole number, but is {self.priority!r}", param="priority")

    def of_requests(self) -> dict[str, Any]:
        """Keyword arguments of each request; what was not given is left out."""
        given: dict[str, Any] = {}
        if self.cache_salt is not None:
            given["cache_salt"] = self.cache_salt
        if self.priority:
            given["priority"] = self.priority
        return given
