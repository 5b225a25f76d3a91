"""A schema document as a list of its subschemas, with their places and what they refer to."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeAlias
from urllib.parse import unquote

from radixrt.errors import ConstraintError
from radixrt.grammar import keywords as kw

Path: TypeAlias = tuple[str | int, ...]


def pointer(path: Sequence[str | int]) -> str:
    """JSON pointer (RFC 6901) of a path; "" is the whole document."""
    return "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in path)


@dataclass(eq=False)
class Node:
    """One subschema. `schema` is what stands there, which is a dict unless the document is malformed or a boolean."""

    path: Path
    schema: Any
    base: Node | None
    """The enclosing schema resource (nearest one with an `$id`), which `#...` references start from; None: itself."""
    parts: list[tuple[str, Node]] = field(default_factory=list)
    """(keyword, subschema) in document order."""

    @property
    def types(self) -> set[str]:
        """Types that a value may have as far as this schema's own `type` says."""
        named = self.schema.get("type") if isinstance(self.schema, dict) else None
        if named is None:
            return set(kw.TYPES)
        return {one for one in (named if isinstance(named, list) else [named]) if isinstance(one, str)}

    def under(self, *names: str) -> Iterator[Node]:
        return (part for name, part in self.parts if name in names)


class Tree:
    """All subschemas of a document (a dict), root first."""

    def __init__(self, document: dict[str, Any]) -> None:
        self.nodes: list[Node] = []
        self._by_value: dict[int, Node] = {}
        self.root = self._add((), document, None)
        # A reference may make a schema of any place in the document: the list grows while it is walked.
        for node in self.nodes:
            with suppress(ConstraintError):
                self.target(node)

    @property
    def first_items(self) -> str:
        """The keyword that a list of schemas for the first items has in the document's draft."""
        named = str(self.root.schema.get("$schema"))
        return "items" if any(draft in named for draft in kw.BEFORE_2020) else "prefixItems"

    def _add(self, path: tuple[str | int, ...], schema: Any, base: Node | None) -> Node:
        node = Node(path, schema, base)
        self.nodes.append(node)
        if not isinstance(schema, dict):
            return node
        self._by_value[id(schema)] = node
        is_resource = isinstance(schema.get("$id"), str) and not schema["$id"].startswith("#")
        inner = node if base is None or is_resource else base
        node.base = None if inner is node else base
        for name, value in schema.items():
            for key, one in _subschemas(name, value):
                node.parts.append((name, self._add((*path, name, *key), one, inner)))
        return node

    def target(self, node: Node) -> Node | None:
        """What `node`'s `$ref` refers to; None where it has none, or one that only the back end can resolve.

        Raises ConstraintError for a reference to another document, or to nothing.
        """
        ref = node.schema.get("$ref") if isinstance(node.schema, dict) else None
        if not isinstance(ref, str):
            return None
        place = pointer((*node.path, "$ref"))
        if not ref.startswith("#"):
            if not any(isinstance(n.schema, dict) and ("$id" in n.schema or "id" in n.schema) for n in self.nodes):
                raise ConstraintError(f"$ref {ref!r} is in another document, which is never fetched", param=place)
            return None
        if ref != "#" and not ref.startswith("#/"):
            return self._anchor(ref[1:])
        base = node.base or node
        for start in (base, self.root):
            found = _follow(start.schema, ref[1:])
            if found is not None:
                path, schema = found
                return self._by_value.get(id(schema)) or self._add((*start.path, *path), schema, base)
        raise ConstraintError(f"$ref {ref!r} refers to nothing in this schema", param=place)

    def _anchor(self, name: str) -> Node | None:
        for node in self.nodes:
            if isinstance(node.schema, dict):
                marks = (node.schema.get("$anchor"), node.schema.get("$id"), node.schema.get("id"))
                if name == marks[0] or f"#{name}" in marks[1:]:
                    return node
        return None

    def judging(self) -> list[Node]:
        """Subschemas that judge some value, from the root through applicators and references, in document order."""
        seen: set[int] = set()
        todo = [self.root]
        while todo:
            node = todo.pop()
            if id(node) in seen or not isinstance(node.schema, dict):
                continue
            seen.add(id(node))
            todo.extend(part for name, part in node.parts if name not in ("$defs", "definitions", "contentSchema"))
            found = self.target(node)
            if found is not None:
                todo.append(found)
        return [node for node in self.nodes if id(node) in seen]


def _subschemas(name: str, value: Any) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    if name in kw.ONE_SCHEMA and not (name == "items" and isinstance(value, list)):
        yield (), value
    elif (name in kw.SCHEMA_LIST or name == "items") and isinstance(value, list):
        yield from (((i,), one) for i, one in enumerate(value))
    elif name in kw.SCHEMA_MAP and isinstance(value, dict):
        yield from (((key,), one) for key, one in value.items())
    elif name == "dependencies" and isinstance(value, dict):
        yield from (((key,), one) for key, one in value.items() if not isinstance(one, list))


def _follow(value: Any, reference: str) -> tuple[tuple[str | int, ...], Any] | None:
    """Path and value that a JSON pointer (percent-encoded) leads to; None where it leads nowhere."""
    path: list[str | int] = []
    for part in unquote(reference).split("/")[1:]:
        key: str | int = part.replace("~1", "/").replace("~0", "~")
        if isinstance(value, list) and part.isascii() and part.isdigit() and int(part) < len(value):
            key = int(part)
        elif not isinstance(value, dict) or key not in value:
            return None
        value = value[key]
        path.append(key)
    return tuple(path), value
