"""Python's search for cyclic garbage: not through what stays for ever, and not while others wait.

A search looks at every container that has come about since the last one, and now and then at all there are: with a
vocabulary and the modules of a web framework that takes 50 to 150 ms, in which no token goes anywhere. So a process of
ours puts aside what it has when it is ready, and searches less often; one that knows when nobody waits searches then.
It does not search at all before that: imports make tens of thousands of containers and hardly any garbage, and the
searches are a fifth of the time that they take.
"""

from __future__ import annotations

import gc

YOUNG = 5_000
"""New containers until a search, where Python would search after 700: most of what a step makes is gone by then."""
OLDER = 10
"""Searches of one generation until the next one is searched too; Python's own numbers."""


def postpone() -> None:
    """No search before `spare_what_stays`: called by a process of ours before it imports anything large."""
    gc.disable()


def spare_what_stays(young: int = YOUNG) -> None:
    """What there is now is never searched again; what comes is, after `young` new containers."""
    gc.enable()
    gc.freeze()
    gc.set_threshold(young, OLDER, OLDER)


class Tidier:
    """Searches at times that the caller knows to be good: call it then. Python searches only where they do not come."""

    def __init__(self, young: int = 2_000) -> None:
        self._young = young
        spare_what_stays(25 * young)

    def __call__(self) -> None:
        """Search the young, and from time to time the older, if there is enough new."""
        young, older, oldest = gc.get_count()
        if young > self._young:
            gc.collect(2 if oldest > OLDER else 1 if older > OLDER else 0)
