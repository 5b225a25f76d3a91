"""Tool definitions in one key order, whatever order a client's dicts were built in.

The prompt's first tokens would otherwise differ from one client to the next, and nothing after them could be shared.
The order is the customary one. The names under `properties` keep their order: it says in which order arguments are
written, so it is meaning; the order of the tools is the request's own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

_TOOL = ("type", "function")
_FUNCTION = ("name", "description", "parameters", "return", "strict")
_SCHEMA = (
    "$schema", "$id", "$ref", "title", "type", "description", "enum", "const", "properties", "required",
    "additionalProperties", "items", "anyOf", "oneOf", "allOf", "default",
)  # fmt: skip
_MAPS = frozenset({"properties", "$defs", "definitions", "patternProperties"})
"""Keywords whose value maps names to schemas."""
_DATA = frozenset({"enum", "const", "default", "examples"})
"""Keywords whose value is data."""


def canonical_tool(tool: dict[str, Any]) -> dict[str, Any]:
    """`tool` with the keys of the definition and of its parameters' schema in the fixed order; a copy."""
    out = _ordered(tool, _TOOL)
    if isinstance(function := out.get("function"), Mapping):
        function = _ordered(function, _FUNCTION)
        for part in ("parameters", "return"):
            if part in function:
                function[part] = _schema(function[part])
        out["function"] = function
    return out


def _schema(value: Any) -> Any:
    if isinstance(value, list):
        return [_schema(item) for item in value]
    if not isinstance(value, Mapping):
        return value
    out = _ordered(value, _SCHEMA)
    for key, item in out.items():
        if key in _MAPS and isinstance(item, Mapping):
            out[key] = {name: _schema(schema) for name, schema in item.items()}
        elif key not in _DATA:
            out[key] = _schema(item)
    return out


def _ordered(value: Mapping[str, Any], first: Iterable[str]) -> dict[str, Any]:
    """Known keys first, in the fixed order; then the others, sorted."""
    known = [key for key in first if key in value]
    return {key: value[key] for key in [*known, *sorted(value.keys() - set(known))]}
