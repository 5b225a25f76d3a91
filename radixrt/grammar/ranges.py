"""One kind of number range that llguidance 1.9 gets wrong, found by comparing all kinds with exact arithmetic.

A `number` above an integer bound L, exclusive, and below L + 1 (6 < x <= 6.5) is given the text "6" too; the same below
an exclusive integer maximum. Such a pair is refused, also where its two bounds come from schemas that are merged.
"""

from __future__ import annotations

from collections.abc import Sequence

from radixrt.errors import ConstraintError
from radixrt.grammar.keywords import BOUNDS, NOT_ENFORCED
from radixrt.grammar.schema_tree import Node, pointer

_MERGED_WITH = BOUNDS | {"additionalProperties", "items", "patternProperties", "prefixItems", "properties"}


def check_narrow_ranges(nodes: Sequence[Node]) -> None:
    """`nodes`: every subschema that judges a value. Raises ConstraintError, pointing at the exclusive bound."""
    numeric = [node for node in nodes if "number" in node.types and BOUNDS & node.schema.keys()]
    groups = [numeric] if any(map(_merges, nodes)) else [[node] for node in numeric]
    for group in groups:
        for node in group:
            for name, sign in (("exclusiveMinimum", 1), ("exclusiveMaximum", -1)):
                bound = _exclusive(node, name)
                if bound is None or bound != int(bound):
                    continue
                if any(0 < sign * (other - bound) < 1 for opposite in group for other in _limits(opposite, sign)):
                    raise ConstraintError(
                        f"{name} {bound} with another bound less than 1 away cannot be enforced exactly",
                        param=pointer((*node.path, name)),
                        code=NOT_ENFORCED,
                    )


def _exclusive(node: Node, name: str) -> float | None:
    value: float | None = node.schema.get(name)
    if isinstance(value, bool):  # draft 4
        value = node.schema.get(name.replace("exclusiveM", "m")) if value else None
    return value


def _limits(node: Node, sign: int) -> list[float]:
    """The node's upper bounds (sign 1) or lower ones (-1)."""
    names = ("maximum", "exclusiveMaximum") if sign > 0 else ("minimum", "exclusiveMinimum")
    values = (node.schema.get(name) for name in names)
    return [value for value in values if value is not None and not isinstance(value, bool)]


def _merges(node: Node) -> bool:
    """Whether bounds of different subschemas can come together through this one."""
    schema = node.schema
    joined = [name for name in ("$ref", "anyOf", "oneOf") if name in schema]
    return (
        "allOf" in schema
        or len(joined) > 1
        or bool(joined and _MERGED_WITH & schema.keys())
        or {"properties", "patternProperties"} <= schema.keys()
    )
