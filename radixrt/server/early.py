"""An engine that loads while the web framework is still being imported."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

Made = TypeVar("Made")


class Early(Generic[Made]):
    """`make`, begun in a thread at once: the first call waits for it and gives what it made, or raises what it raised;
    every later call makes another."""

    def __init__(self, make: Callable[[], Made]) -> None:
        self._make = make
        self._made: Made | None = None
        self._error: Exception | None = None
        # A daemon: whoever ends before it is done need not wait.
        self._thread: threading.Thread | None = threading.Thread(target=self._run, daemon=True, name="early-engine")
        self._thread.start()

    def _run(self) -> None:
        try:
            self._made = self._make()
        except Exception as error:  # noqa: BLE001 - raised again where it is asked for
            self._error = error

    def __call__(self) -> Made:
        thread, self._thread = self._thread, None
        if thread is None:
            return self._make()
        thread.join()
        made, error, self._made, self._error = self._made, self._error, None, None
        if error is not None:
            raise error
        if made is None:
            raise RuntimeError("the thread that makes the engine ended without one")
        return made
