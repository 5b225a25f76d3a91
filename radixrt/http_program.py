"""A program request over HTTP: the items of one stretch go out as one POST, and events come back."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing
from typing import Any

from radixrt.errors import EngineDead, InvalidRequest
from radixrt.program_tracks import GenTrack, SelectTrack, Tracks
from radixrt.segments import Branched, ProgramEvent, ProgramItem


class HttpProgram:
    """What `radixrt.lang` needs of a program request (`AsyncProgram` is the engine's). It cannot grow once it is sent.

    `post` sends the items and gives the events. For one task of an event loop.
    """

    number = 0

    def __init__(self, post: Callable[[Sequence[ProgramItem]], AsyncIterator[ProgramEvent]]) -> None:
        self._post = post
        self._items: list[ProgramItem] = []
        self._tracks = Tracks()
        self._events: Any = None

    def append(self, *items: ProgramItem) -> HttpProgram:
        if self._events is not None:
            raise InvalidRequest("a program request over HTTP cannot grow: begin another one")
        for item in items:
            self._tracks.expect(item)
        self._items.extend(items)
        return self

    def send(self, *, closed: bool = True) -> None:
        """Everything goes out with the first `receive`."""
        if self._events is None:
            self._events = self._post(self._items)

    def track(self, index: int) -> GenTrack:
        return self._tracks.gens[index]

    def track_select(self, index: int) -> SelectTrack:
        return self._tracks.selects[index]

    async def receive(self) -> ProgramEvent:
        """The next event, which is in `track` too. Raises what the server said, or why it cannot be reached."""
        self.send()
        try:
            event: ProgramEvent = await anext(self._events)
        except StopAsyncIteration:
            raise EngineDead("the server ended the program before it was complete") from None
        except BaseException:
            await self.aclose()
            raise
        if isinstance(event, Branched):
            raise EngineDead("the server told of a branch that nobody asked for")
        self._tracks.note(event)
        if self._tracks.done:
            await self.aclose()
        return event

    async def aclose(self) -> None:
        """Close the connection, and so end the program."""
        if self._events is not None:
            async with aclosing(self._events):
                pass

    def cancel(self) -> None:
        """A program that is received from ends with the task that does so; another one was not sent."""
