"""Lax mode: leave out the keyword that a refusal points at, so that the rest is enforced; and say so."""

from __future__ import annotations

import json
from typing import Any

from radixrt.errors import ConstraintError
from radixrt.grammar import keywords as kw
from radixrt.grammar.limits import Limits
from radixrt.grammar.schema_text import parse
from radixrt.grammar.schema_tree import pointer

_WITH = {
    "if": ("then", "else"),
    "contains": ("minContains", "maxContains"),
    "minContains": ("contains", "maxContains"),
    "maxContains": ("contains", "minContains"),
    # Keys that a pattern took would fall to additionalProperties, which would be stricter, not laxer.
    "patternProperties": ("additionalProperties", "unevaluatedProperties"),
}
_NEVER = frozenset({"$defs", "definitions", "properties"})
MAX_LEFT_OUT = 200
"""Keywords of one schema."""


def leave_out(source: str, error: ConstraintError, limits: Limits) -> tuple[str, str] | None:
    """The schema without the keyword that the error is about, and the pointer to it; None where that is no keyword, or
    the fault is one of the schema's own (malformed, too large).

    A oneOf becomes the anyOf of its branches.
    """
    if error.code != kw.NOT_ENFORCED or not error.param or not error.param.startswith("/"):
        return None
    document = parse(source, max_depth=limits.max_depth, param="json_schema")
    path = [part.replace("~1", "/").replace("~0", "~") for part in error.param.split("/")[1:]]
    for end in range(len(path), 0, -1):
        holder, name = _at(document, path[: end - 1]), path[end - 1]
        if isinstance(holder, dict) and name in holder and name in kw.TABLE and name not in _NEVER:
            if _is_map_of_names(path[: end - 1]):
                continue
            value = holder.pop(name)
            for other in _WITH.get(name, ()):
                holder.pop(other, None)
            if name == "oneOf" and "anyOf" not in holder:
                holder["anyOf"] = value
            return json.dumps(document, ensure_ascii=False), pointer(path[:end])
    return None


def _at(value: Any, path: list[str]) -> Any:
    for part in path:
        value = value[int(part)] if isinstance(value, list) else value[part]
    return value


def _is_map_of_names(path: list[str]) -> bool:
    """Whether what stands at this place has names of properties for keys, not keywords."""
    return bool(path) and path[-1] in kw.SCHEMA_MAP and not _is_map_of_names(path[:-1])
