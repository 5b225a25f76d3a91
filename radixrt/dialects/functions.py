"""A function that the model may call, and the schema its arguments are held to."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from radixrt.dialects.closing import close


class Function(msgspec.Struct, frozen=True):
    """`position` is its place in the request's list of tools; `schema` that of its arguments, always an object's."""

    name: str
    schema: dict[str, Any]
    position: int = 0

    @staticmethod
    def of(name: str, parameters: dict[str, Any] | None, position: int = 0) -> Function:
        return Function(name, close({"type": "object", **(parameters or {})}), position)

    @property
    def shown(self) -> str:
        """The name as a JSON string."""
        return json.dumps(self.name, ensure_ascii=False)
