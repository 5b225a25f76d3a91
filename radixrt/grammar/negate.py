"""The opposite of a schema, as a schema of keywords that are enforced: exact, or `Inexact`.

A schema is the conjunction of its keywords; its opposite is the disjunction of theirs. Each keyword judges one type and
passes all others, so its opposite demands that type: not {"minLength": 3} is {"type": "string", "maxLength": 2}.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from radixrt.grammar import keywords as kw
from radixrt.grammar.complement import all_but
from radixrt.grammar.judge import type_of
from radixrt.grammar.schema_tree import Node, Tree

Schema = Any
"""A JSON Schema: a dict or a bool."""

_BEYOND = {
    "minLength": ("string", "maxLength", -1),
    "maxLength": ("string", "minLength", 1),
    "minItems": ("array", "maxItems", -1),
    "maxItems": ("array", "minItems", 1),
    "minProperties": ("object", "maxProperties", -1),
    "maxProperties": ("object", "minProperties", 1),
}
_OPPOSITE_BOUND = {
    "minimum": "exclusiveMaximum",
    "maximum": "exclusiveMinimum",
    "exclusiveMinimum": "maximum",
    "exclusiveMaximum": "minimum",
}
MAX_ONE_OF = 8
"""Branches of a oneOf that is written out as cases."""


class Inexact(Exception):
    """No exact way to say it; never leaves the room. `node` and `keyword` tell where."""

    def __init__(self, node: Node, keyword: str) -> None:
        super().__init__(keyword)
        self.node = node
        self.keyword = keyword


def any_of(parts: Sequence[Schema]) -> Schema:
    """One of these at least, without what can be left out."""
    kept = [part for part in parts if part is not False]
    if any(part is True or part == {} for part in kept):
        return True
    return False if not kept else kept[0] if len(kept) == 1 else {"anyOf": kept}


def all_of(parts: Sequence[Schema]) -> Schema:
    """All of these, without what can be left out."""
    kept = [part for part in parts if part is not True and part != {}]
    if any(part is False for part in kept):
        return False
    return True if not kept else kept[0] if len(kept) == 1 else {"allOf": kept}


def without(key: str) -> Schema:
    """No object that has this property."""
    return {"properties": {key: False}}


class Negator:
    """`rewrite` gives the enforced form of a subschema that is needed as it is."""

    def __init__(self, tree: Tree, rewrite: Callable[[Node], Schema], *, legacy: bool) -> None:
        self._tree = tree
        self._rewrite = rewrite
        self._legacy = legacy
        self._trail: list[int] = []

    def negate(self, node: Node, types: set[str]) -> Schema:
        """What the schema at `node` refuses, among values of `types` (as `Node.types`). Raises Inexact."""
        schema = node.schema
        if isinstance(schema, bool):
            return not schema
        if id(node) in self._trail:
            raise Inexact(node, "$ref")
        self._trail.append(id(node))
        try:
            return any_of(list(self._parts(node, types)))
        finally:
            self._trail.pop()

    def _parts(self, node: Node, types: set[str]) -> Iterator[Schema]:
        schema = node.schema
        if "$ref" in schema:
            target = self._tree.target(node)
            if target is None:
                raise Inexact(node, "$ref")
            yield self.negate(target, types)
            if self._legacy:
                return
        inner = types & node.types if "type" in schema else types
        if "integer" in types and "number" in node.types and "type" in schema:
            inner = inner | {"integer"}
        for name, value in schema.items():
            yield from self._keyword(node, name, value, types if name == "type" else inner)

    def _keyword(self, node: Node, name: str, value: Any, types: set[str]) -> Iterator[Schema]:
        if name in _BEYOND:
            kind, opposite, step = _BEYOND[name]
            if kind in types and value + step >= 0:
                yield {"type": kind, opposite: value + step}
        elif name in _OPPOSITE_BOUND:
            yield from self._bound(node, name, value, types)
        elif name == "type":
            yield self._other_types(node, types)
        elif name in ("enum", "const"):
            yield from self._other_values(node, name, value if name == "enum" else [value], types)
        elif name in kw.OBJECT_KEYWORDS:
            if "object" in types:
                yield from self._object(node, name, value)
        elif name in kw.ARRAY_KEYWORDS:
            if "array" in types:
                yield from self._array(node, name, value)
        elif name in ("allOf", "anyOf", "oneOf", "not", "if"):
            yield from self._combined(node, name, types)
        elif name in kw.ASSERTIONS and name not in ("then", "else", "$ref"):
            judged = kw.JUDGES.get(name)
            if judged is None or judged & types:
                raise Inexact(node, name)

    def _bound(self, node: Node, name: str, value: Any, types: set[str]) -> Iterator[Schema]:
        if not {"integer", "number"} & types or isinstance(value, bool):
            return
        exclusive = node.schema.get("exclusive" + name[0].upper() + name[1:]) is True  # draft 4
        yield {"type": "number", _opposite(name, exclusive=exclusive): value}

    def _other_types(self, node: Node, types: set[str]) -> Schema:
        left = types - node.types
        if "number" in node.types:
            left -= {"integer"}
        elif "integer" in node.types and "number" in types:
            raise Inexact(node, "type")  # numbers with a fraction
        return {"type": sorted(left)} if left else False

    def _other_values(self, node: Node, name: str, values: Sequence[Any], types: set[str]) -> Iterator[Schema]:
        by_type: dict[str, list[Any]] = {}
        for value in values:
            kind = type_of(value)
            by_type.setdefault("number" if kind == "integer" else kind, []).append(value)
        numeric = {"integer", "number"}
        rest = {kind for kind in types if ("number" if kind in numeric else kind) not in by_type}
        if rest:
            yield {"type": sorted(rest)}
        for kind, group in by_type.items():
            if kind == "boolean" and kind in types and len(set(group)) == 1:
                yield {"enum": [not group[0]]}  # draft 4 knows no const
            elif kind == "string" and kind in types:
                yield {"type": "string", "pattern": all_but(group)}
            elif kind == "number" and numeric & types:
                yield from _other_numbers(group, "number" if "number" in types else "integer")
            elif kind in ("array", "object") and kind in types:
                if any(group):
                    raise Inexact(node, name)
                yield {"type": kind, "minItems" if kind == "array" else "minProperties": 1}

    def _object(self, node: Node, name: str, value: Any) -> Iterator[Schema]:
        if name == "required":
            yield from ({"type": "object", **without(key)} for key in value)
        elif name == "properties":
            for part in node.under(name):
                opposite = self.negate(part, set(kw.TYPES))
                if opposite is not False:
                    key = str(part.path[-1])
                    yield {"type": "object", "properties": {key: opposite}, "required": [key]}
        elif name == "dependentRequired" or name in ("dependencies", "dependentSchemas"):
            for key, names in value.items():
                if isinstance(names, list):
                    for one in names:
                        yield {"type": "object", "required": [key], **without(one)}
            for part in node.under(name):
                key = str(part.path[-1])
                yield all_of([{"type": "object", "required": [key]}, self.negate(part, {"object"})])
        elif (name == "propertyNames" and value is False) or (name == "additionalProperties" and value is False):
            if name == "additionalProperties" and {"properties", "patternProperties"} & node.schema.keys():
                raise Inexact(node, name)
            yield {"type": "object", "minProperties": 1}
        elif not (value is True or value == {}):
            raise Inexact(node, name)

    def _array(self, node: Node, name: str, value: Any) -> Iterator[Schema]:
        schema = node.schema
        if name == "contains":
            if "minContains" in schema or "maxContains" in schema:
                raise Inexact(node, "minContains" if "minContains" in schema else "maxContains")
            for part in node.under(name):
                yield {"type": "array", "items": self.negate(part, set(kw.TYPES))}
        elif name == "prefixItems" or (name == "items" and isinstance(value, list)):
            for i, part in enumerate(node.under(name)):
                opposite = self.negate(part, set(kw.TYPES))
                if opposite is not False:
                    yield {"type": "array", "minItems": i + 1, self._tree.first_items: [*([True] * i), opposite]}
        elif name in ("items", "additionalItems") and value is False:
            first = schema.get("items") if name == "additionalItems" else schema.get("prefixItems", [])
            if isinstance(first, list):
                yield {"type": "array", "minItems": len(first) + 1}
        elif name == "additionalItems" and not isinstance(schema.get("items"), list):
            return  # it judges nothing then
        elif name in ("minContains", "maxContains") and "contains" not in schema:
            return
        elif not (value is True or value == {} or (name == "uniqueItems" and value is False)):
            raise Inexact(node, name)

    def _combined(self, node: Node, name: str, types: set[str]) -> Iterator[Schema]:
        parts = list(node.under(name))
        if name == "not":
            yield from map(self._rewrite, parts)
        elif name == "allOf":
            yield from (self.negate(part, types) for part in parts)
        elif name == "anyOf":
            yield all_of([self.negate(part, types) for part in parts])
        elif name == "oneOf":
            if len(parts) > MAX_ONE_OF:
                raise Inexact(node, name)
            yield all_of([self.negate(part, types) for part in parts])
            for pair in itertools.combinations(parts, 2):
                yield all_of([self._rewrite(part) for part in pair])
        else:
            (test,) = parts
            for chosen in node.under("then"):
                yield all_of([self._rewrite(test), self.negate(chosen, types)])
            for chosen in node.under("else"):
                yield all_of([self.negate(test, types), self.negate(chosen, types)])


def _opposite(name: str, *, exclusive: bool) -> str:
    return {"minimum": "maximum", "maximum": "minimum"}[name] if exclusive else _OPPOSITE_BOUND[name]


def _other_numbers(values: Sequence[float], kind: str) -> Iterator[Schema]:
    """The ranges between numbers."""
    if kind == "integer":
        whole = sorted({int(value) for value in values if value == int(value)})
        for low, high in itertools.pairwise([None, *whole, None]):
            if low is not None and high is not None and high - low < 2:
                continue
            yield {
                "type": kind,
                **({} if low is None else {"minimum": low + 1}),
                **({} if high is None else {"maximum": high - 1}),
            }
        return
    for above, below in itertools.pairwise([None, *sorted(set(values)), None]):
        yield {
            "type": kind,
            **({} if above is None else {"exclusiveMinimum": above}),
            **({} if below is None else {"exclusiveMaximum": below}),
        }
