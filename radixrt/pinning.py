"""What a caller of `pin` and `unpin` gives, checked where it is given."""

from __future__ import annotations

import math
from collections.abc import Sequence

from radixrt.errors import Aborted, InvalidRequest
from radixrt.params import SamplingParams
from radixrt.results import Delta, Pin

NOTHING = SamplingParams(max_tokens=0)
"""A request that computes its prompt and generates nothing."""


def checked_ttl(ttl: float) -> float:
    """Seconds, above 0. Raises InvalidRequest."""
    if isinstance(ttl, bool) or not isinstance(ttl, int | float) or not (math.isfinite(ttl) and ttl > 0):
        raise InvalidRequest(f"ttl must be a number of seconds above 0, but is {ttl!r}", param="ttl")
    return float(ttl)


def pin_name(pin: Pin | str) -> str:
    """The id of a pin. Raises InvalidRequest for anything that has none."""
    if isinstance(pin, Pin):
        return pin.id
    if not isinstance(pin, str) or not pin:
        raise InvalidRequest(f"give the Pin that pin() returned, or its id, not {pin!r}", param="id")
    return pin


def pinned(deltas: Sequence[Delta]) -> Pin:
    """From the deltas of a request that pins its prompt."""
    for delta in deltas:
        if delta.usage is not None and delta.usage.pin is not None:
            return delta.usage.pin
    raise Aborted("the request ended before its prompt was pinned")
