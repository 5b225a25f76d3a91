"""Finished responses, kept for `previous_response_id` in bounded memory: the least recently used go first."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from radixrt.errors import NotFound
from radixrt.server.openai_types import InMessage
from radixrt.server.responses_types import Response


@dataclass(frozen=True)
class Stored:
    """A response with the conversation that it ends."""

    response: Response
    turns: tuple[InMessage, ...]
    """All turns before and of the answer, without `instructions`, which hold for one request alone."""
    inputs: tuple[bytes, ...]
    """The request's input items, as JSON."""
    namespace: str | None
    size: int
    """Bytes that it counts for."""


class ResponseStore:
    """Used by one event loop alone. Nobody finds what another namespace has stored."""

    def __init__(self, max_bytes: int, max_responses: int) -> None:
        self._max_bytes = max_bytes
        self._max_responses = max_responses
        self._kept: OrderedDict[str, Stored] = OrderedDict()
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._kept)

    def put(self, stored: Stored) -> None:
        if stored.size > self._max_bytes:
            return
        self._kept[stored.response.id] = stored
        self.bytes += stored.size
        while self.bytes > self._max_bytes or len(self._kept) > self._max_responses:
            _, oldest = self._kept.popitem(last=False)
            self.bytes -= oldest.size

    def get(self, name: str, namespace: str | None, param: str | None = None) -> Stored:
        """NotFound for what is not there, not there any more, or somebody else's."""
        found = self._kept.get(name)
        if found is None or found.namespace != namespace:
            raise NotFound(
                f"there is no response {name!r}: it was never stored, was deleted, or had to make room for newer ones; "
                "send the whole conversation as input",
                param=param, code="previous_response_not_found" if param else "response_not_found",
            )  # fmt: skip
        self._kept.move_to_end(name)
        return found

    def delete(self, name: str, namespace: str | None) -> None:
        found = self.get(name, namespace)
        del self._kept[name]
        self.bytes -= found.size
