"""A schema said in the keywords that the back end enforces, where that can be done exactly.

Keywords that the back end knows stay where they are, so that references into the schema still arrive; what it does not
know is taken out, and the same thing said in other words is put at the end of the subschema's `allOf`:

    not S              -> the opposite of S (negate.py)
    if S then T else E -> anyOf [allOf [S, T], allOf [not S, E]]
    dependencies k: T  -> anyOf [no k, allOf [k, T]]
    oneOf              -> anyOf, where the branches exclude one another; else each branch and not the others
    enum, const        -> the values that also satisfy all the rest (judge.py)
    contains, uniqueItems, propertyNames, unevaluated*, min/maxProperties, format -> rewrite_parts.py

What cannot be said is refused, with a pointer to the keyword.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeAlias

from radixrt.errors import ConstraintError
from radixrt.grammar import keywords as kw
from radixrt.grammar import rewrite_parts as parts
from radixrt.grammar.exclusive import exclude_one_another
from radixrt.grammar.judge import Judge, Unsure
from radixrt.grammar.negate import MAX_ONE_OF, Inexact, Negator, Schema, all_of, any_of, without
from radixrt.grammar.schema_tree import Node, Path, Tree, pointer

Origins: TypeAlias = dict[int, Path]
_STANDARD = "json-schema.org/"
_DRAFTS = ("draft-03", "draft-04", "draft-06", "draft-07")
_KEPT_BESIDE_REF = frozenset({"$ref", "$defs", "definitions", "$schema"})
_FINITE_VALUES = 2000


class Rewritten:
    """The new document, and where its parts come from."""

    def __init__(self, document: Schema, origins: Origins, added: list[str]) -> None:
        self.document = document
        self.added = added
        """Pointers to the keywords that are said in other words now."""
        self._origins = origins

    def origin(self, place: str) -> str:
        """The pointer into the schema that was sent, for one into the new document."""
        value: Any = self.document
        found = place
        for part in place.split("/")[1:]:
            key = part.replace("~1", "/").replace("~0", "~")
            try:
                value = value[int(key)] if isinstance(value, list) else value[key]
            except (KeyError, IndexError, TypeError, ValueError):
                break
            if id(value) in self._origins:
                found = pointer(self._origins[id(value)])
        return found


def rewrite(tree: Tree) -> Rewritten:
    """Raises ConstraintError for the first keyword that cannot be enforced."""
    worker = _Rewriter(tree)
    document = worker.whole(tree.root)
    return Rewritten(document, worker.origins, worker.added)


def is_legacy(document: dict[str, Any]) -> bool:
    """Whether the schema says that it is of draft 7 or before, where what stands beside a `$ref` is ignored."""
    named = document.get("$schema")
    return isinstance(named, str) and any(draft in named for draft in _DRAFTS)


class _Rewriter:
    def __init__(self, tree: Tree) -> None:
        self.tree = tree
        self.legacy = is_legacy(tree.root.schema)
        self.before_2020 = tree.first_items == "items"
        """`prefixItems` means nothing there, and `items` beside it something else."""
        self.origins: Origins = {}
        self.added: list[str] = []
        self._judging = {id(node) for node in tree.judging()}
        self._judge = Judge(tree, legacy=self.legacy)
        self._negator = Negator(tree, self.whole, legacy=self.legacy)

    def whole(self, node: Node) -> Schema:
        """The enforced form of the schema at `node`."""
        schema = node.schema
        if not isinstance(schema, dict) or id(node) not in self._judging:
            return schema
        out = self._natives(node)
        if self.legacy and "$ref" in schema:
            return out
        values = self._values(node) if self._needs_more(node) else None
        if values is not None:
            keep = {name: value for name, value in out.items() if name in _KEPT_BESIDE_REF and name != "$ref"}
            self.added.append(pointer((*node.path, "const" if "const" in schema else "enum")))
            return {**keep, "enum": values} if values else {**keep, "allOf": [False]} if keep else False
        extras: list[Schema] = []
        for name, made in self._extras(node, out):
            place = (*node.path, name)
            self.added.append(pointer(place))
            for extra in made if isinstance(made, list) else [made]:
                if extra is False or (isinstance(extra, dict) and extra):
                    self._mark(extra, place)
                    extras.append(extra)
        if extras:
            out["allOf"] = [*out.get("allOf", []), *extras]
        return out

    def _mark(self, value: Any, place: Path) -> None:
        if isinstance(value, dict):
            self.origins.setdefault(id(value), place)
            for inner in value.values():
                self._mark(inner, place)
        elif isinstance(value, list):
            for inner in value:
                self._mark(inner, place)

    def _natives(self, node: Node) -> dict[str, Any]:
        """What the back end knows, in the schema's order, its subschemas rewritten."""
        schema = node.schema
        beside_ref = self.legacy and "$ref" in schema
        made: dict[str, Any] = {}
        for name, value in schema.items():
            if name == "$schema" and _STANDARD not in str(value):
                continue  # a meta-schema of somebody's own: it says nothing that judges a value
            if name in kw.REWRITTEN or (beside_ref and name not in _KEPT_BESIDE_REF):
                continue
            inner = {part.path[len(node.path) + 1 :]: part for part in node.under(name)}
            if not inner:
                made[name] = value
            elif () in inner:
                made[name] = self.whole(inner[()])
            elif isinstance(value, list):
                made[name] = [self.whole(inner[(i,)]) for i in range(len(value))]
            else:
                made[name] = {key: self.whole(inner[(key,)]) for key in value}
        return made

    def _needs_more(self, node: Node) -> bool:
        """Whether something that judges the same value is not the back end's own."""
        seen: set[int] = set()
        todo = [node]
        while todo:
            one = todo.pop()
            if id(one) in seen or not isinstance(one.schema, dict):
                continue
            seen.add(id(one))
            if kw.REWRITTEN & one.schema.keys() or "oneOf" in one.schema:
                return True
            todo.extend(one.under("allOf", "anyOf"))
            if (target := self.tree.target(one)) is not None:
                todo.append(target)
        return False

    def _values(self, node: Node) -> list[Any] | None:
        """All values that satisfy the schema, where an enum or const makes them few; None: not known."""
        found = self._listed(node, 0)
        if found is None or len(found) > _FINITE_VALUES:
            return None
        try:
            return [value for value in found if self._judge.holds(node, value)]
        except Unsure:
            return None

    def _listed(self, node: Node, depth: int) -> list[Any] | None:
        schema = node.schema
        if not isinstance(schema, dict) or depth > 8:
            return None
        target = self.tree.target(node)
        if not (self.legacy and target is not None):
            if "const" in schema:
                return [schema["const"]]
            if "enum" in schema:
                return list(schema["enum"])
        others = [*([target] if target else []), *node.under("allOf")]
        return next((values for one in others if (values := self._listed(one, depth + 1)) is not None), None)

    def _extras(self, node: Node, out: dict[str, Any]) -> Iterator[tuple[str, Schema | list[Schema]]]:
        """(keyword, the same in other words), for the keywords that `_natives` left out or has to change in `out`."""
        schema = node.schema
        types = node.types | ({"integer"} if "number" in node.types else set())
        for name, value in schema.items():
            try:
                if name == "not":
                    yield name, [self._negator.negate(part, types) for part in node.under("not")]
                elif name == "if":
                    yield name, self._cases(node, types)
                elif name in ("dependencies", "dependentRequired", "dependentSchemas"):
                    if "object" in types:
                        yield name, self._dependencies(node, name, value)
                elif name == "oneOf":
                    if (made := self._one_of(node, types)) is not None:
                        del out[name]
                        yield name, made
                elif name in ("then", "else"):
                    continue  # with `if`
                elif name in parts.HANDLERS:
                    made = parts.HANDLERS[name](parts.Place(node, out, self.tree, self._judge, self.whole))
                    if made is not None:
                        yield name, made
                elif name in kw.REWRITTEN or (name == "prefixItems" and self.before_2020):
                    raise Inexact(node, name)
            except Inexact as error:
                raise self._refusal(node, name, error) from None

    def _refusal(self, node: Node, name: str, error: Inexact) -> ConstraintError:
        place = pointer((*node.path, name))
        if (error.node, error.keyword) == (node, name):
            why = ""
        else:
            why = f" (with {error.keyword!r} at {pointer(error.node.path) or 'the root'} in it)"
        return ConstraintError(
            f"the keyword {name!r} cannot be enforced here{why}: {kw.advice(name)}", param=place, code=kw.NOT_ENFORCED
        )

    def _cases(self, node: Node, types: set[str]) -> Schema:
        (test,) = node.under("if")
        then, other = (next(iter(node.under(name)), None) for name in ("then", "else"))
        if then is None and other is None:
            return True
        yes = True if then is None else self.whole(then)
        no = True if other is None else self.whole(other)
        if isinstance(test.schema, bool):
            return yes if test.schema else no
        return any_of(
            [all_of([self.whole(test), yes]), all_of([self._negator.negate(test, types), no])],
        )

    def _dependencies(self, node: Node, name: str, value: dict[str, Any]) -> list[Schema]:
        made: list[Schema] = []
        for key, names in value.items():
            if isinstance(names, list):
                made.append(any_of([without(key), {"type": "object", "required": [key, *names]}]) if names else True)
        for part in node.under(name):
            key = str(part.path[-1])
            made.append(any_of([without(key), all_of([{"type": "object", "required": [key]}, self.whole(part)])]))
        return made

    def _one_of(self, node: Node, types: set[str]) -> Schema | None:
        """None: left to the back end, which takes it only where it can prove more of the branches than we do."""
        branches = list(node.under("oneOf"))
        if len(branches) == 1 or exclude_one_another(self.tree, branches, legacy=self.legacy):
            return any_of([self.whole(branch) for branch in branches])
        if len(branches) > MAX_ONE_OF:
            return None
        try:
            opposite = [self._negator.negate(branch, types) for branch in branches]
        except Inexact:
            return None
        return any_of(
            [
                all_of([self.whole(branch), *(other for j, other in enumerate(opposite) if j != i)])
                for i, branch in enumerate(branches)
            ]
        )
