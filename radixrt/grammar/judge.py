"""Whether one value satisfies a schema, for the few values of an `enum`: what else is asked of them is then exact.

A plain evaluator of JSON Schema over `schema_tree`. Where it is not certain it raises `Unsure`, and the caller refuses.
"""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Any

from radixrt.grammar import keywords as kw
from radixrt.grammar.schema_tree import Node, Tree

_UNKNOWN = frozenset(
    {"$dynamicRef", "$recursiveRef", "disallow", "divisibleBy", "extends", "unevaluatedItems", "unevaluatedProperties"}
)
_MAX_DEPTH = 60


class Unsure(Exception):
    """This evaluator does not know; never leaves the room."""


def equal(a: Any, b: Any) -> bool:
    """Equality of JSON values: 1 equals 1.0, true does not equal 1."""
    if isinstance(a, bool) or isinstance(b, bool):
        return a is b
    if isinstance(a, int | float) and isinstance(b, int | float):
        return a == b
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(equal, a, b))
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(equal(a[key], b[key]) for key in a)
    return type(a) is type(b) and bool(a == b)


def type_of(value: Any) -> str:
    """JSON type of a value; `integer` for a number without a fraction."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int | float):
        return "integer" if value == int(value) else "number"
    return "string" if isinstance(value, str) else "array" if isinstance(value, list) else "object"


class Judge:
    """Judges values by the schemas of one tree. `legacy`: of draft 7 and before, where siblings of `$ref` count not."""

    def __init__(self, tree: Tree, *, legacy: bool) -> None:
        self.tree = tree
        self.legacy = legacy

    def holds(self, node: Node, value: Any, depth: int = 0) -> bool:
        """Raises Unsure."""
        schema = node.schema
        if isinstance(schema, bool):
            return schema
        if depth > _MAX_DEPTH or _UNKNOWN & schema.keys():
            raise Unsure
        if "$ref" in schema:
            target = self.tree.target(node)
            if target is None:
                raise Unsure
            if not self.holds(target, value, depth + 1):
                return False
            if self.legacy:
                return True
        return (
            self._general(node, value, depth)
            and (not isinstance(value, str) or _string(schema, value))
            and (not isinstance(value, int | float) or isinstance(value, bool) or _number(schema, value))
            and (not isinstance(value, list) or self._array(node, value, depth))
            and (not isinstance(value, dict) or self._object(node, value, depth))
        )

    def _general(self, node: Node, value: Any, depth: int) -> bool:
        schema = node.schema
        kind = type_of(value)
        if "type" in schema and kind not in node.types and not (kind == "integer" and "number" in node.types):
            return False
        if "const" in schema and not equal(schema["const"], value):
            return False
        if "enum" in schema and not any(equal(one, value) for one in schema["enum"]):
            return False
        held = {name: [self.holds(n, value, depth + 1) for n in node.under(name)] for name in (*kw.IN_PLACE, "not")}
        if not all(held["allOf"]) or any(held["not"]) or ("anyOf" in schema and not any(held["anyOf"])):
            return False
        if "oneOf" in schema and sum(held["oneOf"]) != 1:
            return False
        for test in node.under("if"):
            chosen = "then" if self.holds(test, value, depth + 1) else "else"
            return all(self.holds(n, value, depth + 1) for n in node.under(chosen))
        return True

    def _array(self, node: Node, value: list[Any], depth: int) -> bool:
        schema = node.schema
        if not schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", len(value)):
            return False
        if schema.get("uniqueItems") is True and any(equal(a, b) for i, a in enumerate(value) for b in value[i + 1 :]):
            return False
        listed = isinstance(schema.get("items"), list)
        first = list(node.under("items" if listed else "prefixItems"))
        rest = list(node.under("additionalItems" if listed else "items"))
        judges = [*first, *(rest * len(value))]
        if not all(self.holds(one, item, depth + 1) for one, item in zip(judges, value, strict=False)):
            return False
        for inner in node.under("contains"):
            count = sum(self.holds(inner, item, depth + 1) for item in value)
            if not schema.get("minContains", 1) <= count <= schema.get("maxContains", count):
                return False
        return True

    def _object(self, node: Node, value: dict[str, Any], depth: int) -> bool:
        schema = node.schema
        if not schema.get("minProperties", 0) <= len(value) <= schema.get("maxProperties", len(value)):
            return False
        required = schema.get("required", ())
        if any(key not in value for key in required):
            return False
        known = {n.path[-1]: n for n in node.under("properties")}
        patterns = [(str(n.path[-1]), n) for n in node.under("patternProperties")]
        for key, item in value.items():
            judges = [known[key]] if key in known else []
            judges += [n for pattern, n in patterns if search(pattern, key)]
            if not judges:
                judges = list(node.under("additionalProperties"))
            if not all(self.holds(one, item, depth + 1) for one in judges):
                return False
        for inner in node.under("propertyNames"):
            if not all(self.holds(inner, key, depth + 1) for key in value):
                return False
        for name in ("dependencies", "dependentRequired"):
            for key, names in schema.get(name, {}).items():
                if key in value and isinstance(names, list) and any(one not in value for one in names):
                    return False
        dependent = node.under("dependencies", "dependentSchemas")
        return all(self.holds(n, value, depth + 1) for n in dependent if n.path[-1] in value)


def search(pattern: str, text: str) -> bool:
    """Whether an ECMA-262 pattern is found in the text; Unsure beyond plain ASCII, where readings differ."""
    if not (text.isascii() and text.isprintable()):
        raise Unsure
    try:
        return re.search(pattern, text) is not None
    except re.error as error:
        raise Unsure from error


def _string(schema: dict[str, Any], value: str) -> bool:
    if "format" in schema:
        raise Unsure
    if not schema.get("minLength", 0) <= len(value) <= schema.get("maxLength", len(value)):
        return False
    return "pattern" not in schema or search(schema["pattern"], value)


def _number(schema: dict[str, Any], value: float) -> bool:
    exact = Decimal(repr(value))
    low, high = schema.get("minimum"), schema.get("maximum")
    above, below = schema.get("exclusiveMinimum"), schema.get("exclusiveMaximum")
    if above is True:  # draft 4
        above = low
    if below is True:
        below = high
    if (low is not None and value < low) or (high is not None and value > high):
        return False
    if above is not None and above is not False and value <= above:
        return False
    if below is not None and below is not False and value >= below:
        return False
    return "multipleOf" not in schema or exact % Decimal(repr(schema["multipleOf"])) == 0
