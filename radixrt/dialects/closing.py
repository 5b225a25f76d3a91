"""A function's parameters without undeclared keys, in every object that they are made of."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote

_Path = tuple[str, ...]

_OTHERS = frozenset(
    {"$ref", "$dynamicRef", "$recursiveRef", "allOf", "anyOf", "oneOf", "not", "if", "const", "enum", "propertyNames",
     "additionalProperties", "patternProperties", "unevaluatedProperties", "dependentSchemas", "dependencies"}
)  # fmt: skip
"""Beside one of these an object's undeclared keys are somebody else's business."""
_KEYS = _OTHERS | {"properties", "required", "minProperties", "dependentRequired"}
"""Keywords that tell of an object's keys: beside one of them another schema describes the object but in part."""
_IN_PLACE = frozenset({"allOf", "anyOf", "oneOf"})
_PARTIAL = frozenset({"not", "if", "then", "else", "contains", "propertyNames", "patternProperties", "dependentSchemas",
                      "dependencies", "unevaluatedProperties", "unevaluatedItems"})  # fmt: skip


def close(schema: dict[str, Any]) -> dict[str, Any]:
    """A copy that allows no undeclared keys where it says nothing about them: a function has the parameters it has.

    Narrower than JSON Schema asks: what satisfies the result satisfies `schema`. An object is closed wherever one
    schema describes it alone: under `properties`, items, `$defs`, in the branches of anyOf, in those of oneOf that
    exclude one another already. Left open, with all they hold and refer to, are parts that describe an object together
    (allOf, $ref or branches beside `properties`), and what stands under `not`, `if` and their like.
    """
    return _Closing(schema).result


class _Closing:
    def __init__(self, schema: dict[str, Any]) -> None:
        self.document = schema
        self.result = dict(schema)
        self.partly: list[Any] = []
        """Parts of the document that describe a value together with others."""
        alone: list[tuple[_Path, dict[str, Any]]] = []
        # Without recursion: nobody has bounded the depth yet.
        waiting: list[tuple[_Path, dict[str, Any]]] = [((), self.result)]
        while waiting:
            path, node = waiting.pop()
            alone.append((path, node))
            for name in list(node):
                waiting += ((path + more, part) for more, part in self._parts(node, name) if isinstance(part, dict))
        kept = self._kept()
        lengths = {len(path) for path in kept}
        for path, node in alone:
            if _closable(node) and not any(path[:length] in kept for length in lengths):
                node["additionalProperties"] = False

    def _parts(self, node: dict[str, Any], name: str) -> Iterator[tuple[_Path, Any]]:
        """Copies, put into `node`, of the schemas under a keyword that describe a value alone."""
        value = node[name]
        if name in ("properties", "$defs", "definitions") or (name == "patternProperties" and _is_map(node)):
            if isinstance(value, dict):
                node[name] = {key: _copy(part) for key, part in value.items()}
                yield from (((name, key), part) for key, part in node[name].items())
        elif name in ("items", "prefixItems", "additionalItems", "additionalProperties") or (
            name in _IN_PLACE and self._is_alone(node, name)
        ):
            node[name] = _copy(value)
            if isinstance(value, list):
                node[name] = [_copy(part) for part in value]
                yield from (((name, str(i)), part) for i, part in enumerate(node[name]))
            else:
                yield (name,), node[name]
        elif name in _IN_PLACE or name in _PARTIAL:
            self.partly.append(value)
        elif name == "$ref" and _KEYS & node.keys() - {name}:
            self.partly.append({"$ref": value})

    def _is_alone(self, node: dict[str, Any], name: str) -> bool:
        branches = node[name]
        if _KEYS & node.keys() - {name} or not isinstance(branches, list):
            return False
        if name == "allOf":
            return len(branches) == 1
        return name == "anyOf" or self._exclusive(branches)

    def _exclusive(self, branches: list[Any]) -> bool:
        """Whether branches of a oneOf differ in type, objects in a required string; closing could not tell them apart.

        A value that fits two open branches must not come to fit one closed one.
        """
        types: list[str] = []
        objects: list[dict[str, set[str]]] = []
        for branch in branches:
            target = self._at(branch)
            kind = target.get("type") if isinstance(target, dict) else None
            if not isinstance(kind, str):
                return False
            if kind == "object":
                objects.append(_marks(target))
            else:
                types.append("number" if kind == "integer" else kind)
        if len(set(types)) != len(types):
            return False
        return len(objects) < 2 or any(_differ([marks.get(name) for marks in objects]) for name in objects[0])

    def _at(self, branch: Any) -> Any:
        """A schema, or what it refers to within the document."""
        for _ in range(8):
            if not isinstance(branch, dict) or not isinstance(branch.get("$ref"), str):
                return branch
            path = _target(branch["$ref"])
            branch = self.document if path is not None else None
            for step in path or ():
                branch = _child(branch, step)
        return None

    def _kept(self) -> set[_Path]:
        """Places that stay as they are, since a part that describes a value with others refers to them."""
        kept: set[_Path] = set()
        waiting = list(self.partly)
        while waiting:
            part = waiting.pop()
            if isinstance(part, list):
                waiting += part
            elif isinstance(part, dict):
                waiting += part.values()
                if isinstance(reference := part.get("$ref"), str):
                    path = _target(reference)
                    for place in (("$defs",), ("definitions",)) if path is None else (path,):
                        if place not in kept:
                            kept.add(place)
                            waiting.append(self._at({"$ref": "#" + "".join(f"/{_escaped(step)}" for step in place)}))
        return kept


def _child(value: Any, step: str) -> Any:
    if isinstance(value, list) and step.isascii() and step.isdigit() and len(step) < 9:
        return value[int(step)] if int(step) < len(value) else None
    return value.get(step) if isinstance(value, dict) else None


def _copy(value: Any) -> Any:
    return dict(value) if isinstance(value, dict) else value


def _is_map(node: dict[str, Any]) -> bool:
    """Whether no key can match two of an object's patterns and properties."""
    patterns = node["patternProperties"]
    return isinstance(patterns, dict) and len(patterns) == 1 and not node.get("properties")


def _closable(node: dict[str, Any]) -> bool:
    kind = node.get("type")
    declared = node.get("properties")
    is_object = kind == "object" or (isinstance(kind, list) and "object" in kind)
    if not is_object and not (kind is None and isinstance(declared, dict)):
        return False
    names = declared.keys() if isinstance(declared, dict) else set()
    required = node.get("required")
    # Keys that are not declared may be required, by name or by number.
    counted = "minProperties" in node or (isinstance(required, list) and not names >= set(map(str, required)))
    return not _OTHERS & node.keys() and not counted


def _marks(schema: dict[str, Any]) -> dict[str, set[str]]:
    """Required properties of which only certain strings are possible -> those strings."""
    properties, required = schema.get("properties"), schema.get("required")
    marks: dict[str, set[str]] = {}
    for name in required if isinstance(required, list) else ():
        said = properties.get(name) if isinstance(properties, dict) and isinstance(name, str) else None
        if isinstance(said, dict):
            values = [said["const"]] if "const" in said else said.get("enum")
            if isinstance(values, list) and all(isinstance(value, str) for value in values):
                marks[name] = set(values)
    return marks


def _differ(values: list[set[str] | None]) -> bool:
    sets = [one for one in values if one is not None]
    return len(sets) == len(values) and len(set().union(*sets)) == sum(map(len, sets))


def _target(reference: str) -> _Path | None:
    """The place that a reference by JSON pointer (RFC 6901) means; None: it is another kind of reference."""
    if reference == "#":
        return ()
    if not reference.startswith("#/"):
        return None
    return tuple(step.replace("~1", "/").replace("~0", "~") for step in unquote(reference[2:]).split("/"))


def _escaped(step: str) -> str:
    return step.replace("~", "~0").replace("/", "~1").replace("%", "%25")
