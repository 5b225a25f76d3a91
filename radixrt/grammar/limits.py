"""How much a constraint may cost. The struct is a part of the engine's config, which must not import this room."""

from __future__ import annotations

from radixrt.limits import Limits

__all__ = ["Limits"]
