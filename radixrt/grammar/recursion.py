"""Schemas that refer to themselves: which recursions end, and whether a finite value exists."""

from __future__ import annotations

from collections.abc import Callable

from radixrt.errors import ConstraintError
from radixrt.grammar import keywords as kw
from radixrt.grammar.schema_tree import Node, Tree, pointer


def check_recursion(tree: Tree) -> None:
    """Raises ConstraintError, pointing at the reference, where judging a value comes back to the same schema and value
    (`{"$ref": "#"}`), and where every value would have to be infinite (a required property of the same schema).
    """
    judging = tree.judging()
    _check_loops(tree, judging)
    _check_finite(tree, judging)


def _check_loops(tree: Tree, judging: list[Node]) -> None:
    done: set[int] = set()
    for start in judging:
        trail: list[Node] = []
        on_trail: set[int] = set()
        stack: list[tuple[Node, bool]] = [(start, True)]
        while stack:
            node, entering = stack.pop()
            if not entering:
                on_trail.discard(id(node))
                trail.pop()
                done.add(id(node))
                continue
            if id(node) in on_trail:
                raise _loop(trail[next(i for i, n in enumerate(trail) if n is node) :])
            if id(node) in done or not isinstance(node.schema, dict):
                continue
            trail.append(node)
            on_trail.add(id(node))
            stack.append((node, False))
            stack.extend((part, True) for part in node.under(*kw.IN_PLACE))
            found = tree.target(node)
            if found is not None:
                stack.append((found, True))


def _loop(nodes: list[Node]) -> ConstraintError:
    by_ref = next((node for node in nodes if "$ref" in node.schema), nodes[0])
    place = pointer((*by_ref.path, "$ref"))
    return ConstraintError(f"$ref {by_ref.schema.get('$ref')!r} leads back to itself without going deeper", param=place)


def _check_finite(tree: Tree, judging: list[Node]) -> None:
    """Least fixed point: a schema is finite once all that its values must hold is."""
    finite: set[int] = set()
    grown = True
    while grown:
        grown = False
        for node in reversed(judging):  # parts stand behind what holds them
            if id(node) not in finite and _is_finite(tree, node, finite):
                finite.add(id(node))
                grown = True
    if id(tree.root) in finite:
        return
    culprit = next((n for n in judging if id(n) not in finite and "$ref" in n.schema), tree.root)
    place = (*culprit.path, "$ref") if "$ref" in culprit.schema else culprit.path
    raise ConstraintError(
        "every value of this schema would hold another one of it, without end: make the reference optional",
        param=pointer(place) or "json_schema",
    )


def _is_finite(tree: Tree, node: Node, finite: set[int]) -> bool:
    def known(part: Node) -> bool:
        # A schema that is false is the back end's to refuse, with its reason.
        return id(part) in finite or not isinstance(part.schema, dict)

    target = tree.target(node)
    if target is not None and not known(target):
        return False
    if not all(known(part) for part in node.under("allOf")):
        return False
    for name in ("anyOf", "oneOf"):
        branches = list(node.under(name))
        if branches and not any(known(branch) for branch in branches):
            return False
    if "const" in node.schema or "enum" in node.schema:
        return True
    # A value of any type without parts will do; otherwise the parts that must be there decide.
    ends = {"array": _array_ends(node, known), "object": _object_ends(node, known)}
    return any(ends.get(kind, True) for kind in node.types)


def _object_ends(node: Node, known: Callable[[Node], bool]) -> bool:
    required = set(node.schema.get("required", ()))
    return all(known(part) for part in node.under("properties") if part.path[-1] in required)


def _array_ends(node: Node, known: Callable[[Node], bool]) -> bool:
    least = node.schema.get("minItems", 0)
    first = list(node.under("prefixItems"))
    if isinstance(node.schema.get("items"), list):
        first, rest = list(node.under("items")), list(node.under("additionalItems"))
    else:
        rest = list(node.under("items"))
    return all(known(part) for part in first[:least]) and (least <= len(first) or all(known(part) for part in rest))
