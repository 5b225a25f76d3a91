"""Whether the branches of a oneOf exclude one another for certain: then it is an anyOf."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from radixrt.grammar import keywords as kw
from radixrt.grammar.judge import equal
from radixrt.grammar.schema_tree import Node, Tree

_DEEPEST = 8


@dataclass
class Outline:
    """What a schema certainly asks for, seen from far: every value it takes fits this."""

    types: set[str] = field(default_factory=lambda: set(kw.TYPES))
    values: list[Any] | None = None
    """None: any."""
    required: set[str] = field(default_factory=set)
    properties: dict[str, Outline] = field(default_factory=dict)
    closed: bool = False
    """Only keys of `properties` may come."""
    impossible: bool = False


def exclude_one_another(tree: Tree, branches: Sequence[Node], *, legacy: bool) -> bool:
    """Whether no value satisfies two of the branches, as far as types, constants and keys tell."""
    outlines = [outline(tree, branch, legacy=legacy) for branch in branches]
    return all(_disjoint(a, b) for a, b in itertools.combinations(outlines, 2))


def outline(tree: Tree, node: Node, *, legacy: bool, depth: int = 0) -> Outline:
    """The outline of a schema, through its references and allOf."""
    schema = node.schema
    if not isinstance(schema, dict):
        return Outline(impossible=schema is False)
    if depth > _DEEPEST:
        return Outline()
    target = tree.target(node)
    if target is not None and legacy:
        return outline(tree, target, legacy=legacy, depth=depth + 1)
    own = Outline()
    if "type" in schema:
        own.types = node.types | ({"integer"} if "number" in node.types else set())
    if "const" in schema or "enum" in schema:
        own.values = [schema["const"]] if "const" in schema else list(schema["enum"])
    own.required = set(schema.get("required", ()))
    for part in node.under("properties"):
        own.properties[str(part.path[-1])] = outline(tree, part, legacy=legacy, depth=depth + 1)
    own.closed = schema.get("additionalProperties") is False and not schema.get("patternProperties")
    for other in [*([target] if target else []), *node.under("allOf")]:
        own = _both(own, outline(tree, other, legacy=legacy, depth=depth + 1))
    for name in ("anyOf", "oneOf"):
        branches = [outline(tree, branch, legacy=legacy, depth=depth + 1) for branch in node.under(name)]
        if branches:
            own.types &= set().union(*(branch.types for branch in branches))
    return own


def _both(a: Outline, b: Outline) -> Outline:
    made = Outline(a.types & b.types, a.values if b.values is None else b.values, a.required | b.required)
    for key in [*a.properties, *(key for key in b.properties if key not in a.properties)]:
        one, two = a.properties.get(key), b.properties.get(key)
        made.properties[key] = _both(one, two) if one and two else one or two or Outline()
    for part, other in ((a, b), (b, a)):
        if part.closed:
            made.closed = True
            for key in other.properties:
                if key not in part.properties:
                    made.properties[key] = Outline(impossible=True)
    made.impossible = a.impossible or b.impossible
    return made


def _disjoint(a: Outline, b: Outline) -> bool:
    if a.impossible or b.impossible:
        return True
    common = a.types & b.types
    if not common:
        return True
    if a.values is not None and b.values is not None and not any(equal(x, y) for x in a.values for y in b.values):
        return True
    return common == {"object"} and any(_key_excludes(a, b, key) for key in a.required | b.required)


def _key_excludes(a: Outline, b: Outline, key: str) -> bool:
    """`key` is there in one of the two at least, and no value of it suits both."""
    one = a.properties.get(key, Outline(impossible=a.closed))
    two = b.properties.get(key, Outline(impossible=b.closed))
    return _disjoint(one, two)
