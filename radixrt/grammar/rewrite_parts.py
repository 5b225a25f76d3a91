"""Keywords that have their own way of being said in other words, one function each.

A function takes a `Place` and gives what to add (a schema or a list of them), or None where the keyword is left to the
back end or judges nothing. It may change `place.out`, the subschema that goes to the back end. Raises Inexact.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from math import comb, perm
from typing import Any

from radixrt.grammar import formats
from radixrt.grammar import keywords as kw
from radixrt.grammar.complement import literal
from radixrt.grammar.judge import Judge, Unsure, equal
from radixrt.grammar.negate import Inexact, Schema, all_of, any_of
from radixrt.grammar.schema_tree import Node, Tree

_MOST_CASES = 64
_MOST_LISTS = 2000
_MOST_PLACES = 8
"""Items among which one that is contained is looked for."""


@dataclass
class Place:
    """A subschema that is being rewritten."""

    node: Node
    out: dict[str, Any]
    tree: Tree
    judge: Judge
    whole: Callable[[Node], Schema]

    @property
    def schema(self) -> dict[str, Any]:
        schema: dict[str, Any] = self.node.schema
        return schema

    def part(self, name: str) -> Node:
        return next(self.node.under(name))


def _format(place: Place) -> Schema | None:
    form = place.schema["format"]
    numeric = {"integer", "number"} & place.node.types
    if form in formats.NUMBERS and numeric:
        del place.out["format"]
        return formats.NUMBERS[form]
    if "string" not in place.node.types or form in formats.ANNOTATIONS:
        del place.out["format"]
        return None
    if form in formats.PATTERNS:
        del place.out["format"]
        return {"pattern": formats.PATTERNS[form]}
    if form not in kw.FORMATS:
        raise Inexact(place.node, "format")
    return None


def _property_names(place: Place) -> Schema | None:
    names = place.schema["propertyNames"]
    if "object" not in place.node.types or names is True:
        return None
    if names is False:
        return {"additionalProperties": False}
    made: list[Schema] = []
    known = {"type", "const", "enum", "minLength", "maxLength", "pattern"}
    for name, value in names.items():
        if name in ("const", "enum"):
            keys = [key for key in (value if name == "enum" else [value]) if isinstance(key, str)]
            pattern = "^(?:" + "|".join(map(literal, keys)) + ")$"
            if place.schema.get("minProperties", 0) > len(set(keys)):
                made.append({"type": sorted(kw.TYPES - {"object"})})
                continue
            if not keys:
                made.append({"additionalProperties": False})
                continue
        elif name == "pattern":
            pattern = value
        elif name == "minLength":
            pattern = f"^(?s:.){{{value},}}$"
        elif name == "maxLength":
            pattern = f"^(?s:.){{0,{value}}}$"
        elif name == "type" and "string" in place.part("propertyNames").types:
            continue
        elif name in kw.ASSERTIONS - known or name == "type":
            raise Inexact(place.part("propertyNames"), name)
        else:
            continue
        made.append({"patternProperties": {pattern: True}, "additionalProperties": False})
    return all_of(made)


def _contains(place: Place) -> Schema | None:
    schema, node = place.schema, place.node
    least, most = schema.get("minContains", 1), schema.get("maxContains")
    if "array" not in node.types:
        return None
    inner = schema["contains"]
    if inner is True or inner == {}:
        return {"minItems": least, **({} if most is None else {"maxItems": most})}
    if inner is False:
        return True if least == 0 else {"type": sorted(kw.TYPES - {"array"})}
    if least == 0 and most is None:
        return None
    longest = schema.get("maxItems")
    if least != 1 or most is not None or longest is None or longest > _MOST_PLACES:
        raise Inexact(node, "contains")
    wanted = place.whole(place.part("contains"))
    first = place.tree.first_items
    cases = [{"minItems": i + 1, first: [*([True] * i), wanted]} for i in range(longest)]
    return any_of([{"type": sorted(kw.TYPES - {"array"})}, *({"type": "array", **case} for case in cases)])


def _with_contains(place: Place) -> None:
    """minContains and maxContains judge nothing alone, and are read with `contains`."""


def _unique_items(place: Place) -> Schema | None:
    schema, node = place.schema, place.node
    if schema["uniqueItems"] is not True:
        if schema["uniqueItems"] is not False:
            raise Inexact(node, "uniqueItems")
        return None
    if "array" not in node.types or schema.get("maxItems", 2) < 2:
        return None
    values = _values_of_items(place)
    if values is None:
        raise Inexact(node, "uniqueItems")
    longest = min(schema.get("maxItems", len(values)), len(values))
    lengths = range(schema.get("minItems", 0), longest + 1)
    if sum(perm(len(values), n) for n in lengths) > _MOST_LISTS:
        raise Inexact(node, "uniqueItems")
    lists = [list(one) for n in lengths for one in itertools.permutations(values, n)]
    return any_of([{"type": sorted(kw.TYPES - {"array"})}, {"enum": lists} if lists else False])


def _values_of_items(place: Place) -> list[Any] | None:
    if "prefixItems" in place.schema or not isinstance(place.schema.get("items"), dict):
        return None
    items = place.part("items")
    target: Node | None = items
    while target is not None and isinstance(target.schema, dict) and not {"enum", "const"} & target.schema.keys():
        if target.types == {"boolean"}:
            return [True, False]
        target = place.tree.target(target)
    if target is None or not isinstance(target.schema, dict):
        return None
    listed = target.schema["enum"] if "enum" in target.schema else [target.schema["const"]]
    values: list[Any] = []
    try:
        for value in listed:
            if place.judge.holds(items, value) and not any(equal(value, other) for other in values):
                values.append(value)
    except Unsure:
        return None
    return values


def _unevaluated_properties(place: Place) -> Schema | None:
    schema, node = place.schema, place.node
    rule = schema["unevaluatedProperties"]
    if rule is True or rule == {} or "object" not in node.types:
        return None
    names: set[str] = set()
    patterns: set[str] = set()
    if _is_open(place, node, names, patterns, 0):
        return None
    rest = place.whole(place.part("unevaluatedProperties"))
    return {
        "properties": dict.fromkeys(sorted(names), True),
        "patternProperties": dict.fromkeys(sorted(patterns), True),
        "additionalProperties": rest,
    }


def _is_open(place: Place, node: Node, names: set[str], patterns: set[str], depth: int) -> bool:
    """Collect what a schema evaluates in every case; True where that is every key. Inexact where it depends."""
    schema = node.schema
    if isinstance(schema, bool):
        return False
    conditional = {"anyOf", "oneOf", "if", "dependentSchemas", "$dynamicRef", "$recursiveRef"} & schema.keys()
    if conditional or depth > 8 or (depth and "unevaluatedProperties" in schema):
        raise Inexact(node, "unevaluatedProperties")
    if "additionalProperties" in schema:
        return True
    names.update(schema.get("properties", ()))
    patterns.update(schema.get("patternProperties", ()))
    target = place.tree.target(node)
    if "$ref" in schema and target is None:
        raise Inexact(node, "unevaluatedProperties")
    others = [*([target] if target else []), *node.under("allOf")]
    return any([_is_open(place, one, names, patterns, depth + 1) for one in others])


def _unevaluated_items(place: Place) -> Schema | None:
    schema, node = place.schema, place.node
    rule = schema["unevaluatedItems"]
    if rule is True or rule == {} or "array" not in node.types or ("items" in schema and "prefixItems" not in schema):
        if isinstance(schema.get("items"), list):
            raise Inexact(node, "unevaluatedItems")
        return None
    in_place = {*kw.IN_PLACE, "$ref", "if", "contains", "dependentSchemas", "$dynamicRef", "not"}
    if in_place & schema.keys():
        raise Inexact(node, "unevaluatedItems")
    if "items" in schema:
        return None
    place.out["items"] = place.whole(place.part("unevaluatedItems"))
    return None


def _min_properties(place: Place) -> Schema | None:
    schema, node = place.schema, place.node
    properties = schema.get("properties")
    if not properties or "object" not in node.types:
        return None
    required = set(schema.get("required", ()))
    optional = [key for key in properties if key not in required and properties[key] is not False]
    more = schema["minProperties"] - len(required)
    if more <= 0:
        del place.out["minProperties"]
        return None
    if not optional:
        return None
    if not _is_closed(schema):
        if more > 1 or len(optional) > _MOST_CASES:
            raise Inexact(node, "minProperties")
        del place.out["minProperties"]
        other = {"properties": dict.fromkeys(optional, False), "minProperties": len(required) + 1}
        return any_of([*({"required": [key]} for key in optional), other])
    if comb(len(optional), more) > _MOST_CASES:
        raise Inexact(node, "minProperties")
    del place.out["minProperties"]
    cases = [{"required": list(keys)} for keys in itertools.combinations(optional, more)]
    return any_of([{"type": sorted(kw.TYPES - {"object"})}, *({"type": "object", **case} for case in cases)])


def _max_properties(place: Place) -> Schema | None:
    schema, node = place.schema, place.node
    properties = schema.get("properties")
    if not properties or "object" not in node.types:
        return None
    required = set(schema.get("required", ()))
    optional = [key for key in properties if key not in required and properties[key] is not False]
    most = schema["maxProperties"] - len(required)
    if not optional or most < 0:
        return None
    if _is_closed(schema):
        if most < len(optional) and comb(len(optional), most) > _MOST_CASES:
            raise Inexact(node, "maxProperties")
        del place.out["maxProperties"]
        if most >= len(optional):
            return None
        kept = itertools.combinations(optional, most)
        return any_of([{"properties": {key: False for key in optional if key not in keys}} for keys in kept])
    if sum(comb(len(optional), n) for n in range(most + 1)) > _MOST_CASES:
        raise Inexact(node, "maxProperties")
    del place.out["maxProperties"]
    exact = [keys for n in range(min(most, len(optional)) + 1) for keys in itertools.combinations(optional, n)]
    return any_of(
        [
            {
                "required": list(keys),
                "properties": {key: False for key in optional if key not in keys},
                "maxProperties": schema["maxProperties"],
            }
            for keys in exact
        ]
    )


def _is_closed(schema: dict[str, Any]) -> bool:
    return schema.get("additionalProperties") is False and not schema.get("patternProperties")


HANDLERS: dict[str, Callable[[Place], Schema | None]] = {
    "contains": _contains,
    "format": _format,
    "maxContains": _with_contains,
    "maxProperties": _max_properties,
    "minContains": _with_contains,
    "minProperties": _min_properties,
    "propertyNames": _property_names,
    "unevaluatedItems": _unevaluated_items,
    "unevaluatedProperties": _unevaluated_properties,
    "uniqueItems": _unique_items,
}
