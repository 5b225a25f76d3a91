"""How many keys the patterns of a schema leave an object at least: while it has fewer, it can get another one."""

from __future__ import annotations

from typing import Any

from radixrt.grammar.outline import Outline, outline_of
from radixrt.grammar.schema_tree import Node, Tree


def few_keys(document: dict[str, Any]) -> int | None:
    """How many keys an object must have before patterns may leave it no other; None where none can run out of keys.

    With a number, too, what is written of a key may only go on to one that is there.
    """
    judging = Tree(document).judging()
    nodes = [node for node in judging if "patternProperties" in node.schema]
    if any(map(_forbids_keys, nodes)):
        return 1
    closed = [node for node in nodes if node.schema.get("additionalProperties", True) not in (True, {})]
    if not closed:
        return None
    counts = [count for node in closed if (count := _fewest(node)) is not None]
    if len(nodes) > 1 and any(map(_joins, judging)):
        # The same pattern takes the same keys, however its objects meet; of different ones who knows.
        patterns = {_plainly(pattern) for node in nodes for pattern in node.schema["patternProperties"]}
        return 1 if counts or len(patterns) > 1 else None
    return min(counts, default=None)


def _forbids_keys(node: Node) -> bool:
    """Whether the keys of an open object are those that a pattern does not take."""
    return node.schema.get("additionalProperties", True) is not False and any(
        value is False for value in node.schema["patternProperties"].values()
    )


def _joins(node: Node) -> bool:
    """Whether other schemas may judge the same object as this one."""
    schema = node.schema
    return bool({"allOf", "anyOf", "oneOf"} & schema.keys()) or ("$ref" in schema and len(schema) > 1)


def _plainly(pattern: str) -> str:
    return ".+" if pattern in (".", "^.", ".$", "^.+", ".+$", "^.+$") else pattern


def _fewest(node: Node) -> int | None:
    """Of one object; None: its keys never run out."""
    schema = node.schema
    outlines = [outline_of(pattern) or Outline() for pattern in schema["patternProperties"]]
    if all(outline.endless for outline in outlines):
        return None
    # Declared keys come in their order, and may be among those that match: none of them counts.
    declared = schema.get("properties", {}).keys() | set(schema.get("required", ()))
    return max(min(outline.least for outline in outlines) - len(declared), 1)
