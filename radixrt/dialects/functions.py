"""A function that the model may call, and the schema its arguments are held to."""

from __future__ import annotations

import json
from typing import Any

import msgspec

_BESIDE = frozenset(
    {"$ref", "$dynamicRef", "$recursiveRef", "allOf", "anyOf", "oneOf", "not", "if", "additionalProperties",
     "patternProperties", "unevaluatedProperties", "dependentSchemas"}
)  # fmt: skip
"""Beside one of these an object's undeclared keys are somebody else's business."""


class Function(msgspec.Struct, frozen=True):
    """`position` is its place in the request's list of tools; `schema` that of its arguments, always an object's."""

    name: str
    schema: dict[str, Any]
    position: int = 0

    @staticmethod
    def of(name: str, parameters: dict[str, Any] | None, position: int = 0) -> Function:
        return Function(name, _closed({"type": "object", **(parameters or {})}), position)

    @property
    def shown(self) -> str:
        """The name as a JSON string."""
        return json.dumps(self.name, ensure_ascii=False)


def _closed(schema: Any) -> Any:
    """The schema without undeclared keys, where it says nothing about them: a function has only the parameters it has.

    Narrower than JSON Schema asks: what satisfies the result satisfies `schema`. Objects under `properties` and
    `items` are closed as well; what other keywords hold stays as it is.
    """
    if not isinstance(schema, dict):
        return schema
    out = dict(schema)
    if isinstance(properties := schema.get("properties"), dict):
        out["properties"] = {name: _closed(item) for name, item in properties.items()}
    if isinstance(items := schema.get("items"), dict):
        out["items"] = _closed(items)
    if schema.get("type") == "object" and not _BESIDE & schema.keys() and not _counted(schema):
        out["additionalProperties"] = False
    return out


def _counted(schema: dict[str, Any]) -> bool:
    """Whether keys that are not declared are required by name or by number."""
    declared = schema.get("properties")
    names = declared.keys() if isinstance(declared, dict) else set()
    required = schema.get("required")
    return "minProperties" in schema or (isinstance(required, list) and not names >= set(map(str, required)))
