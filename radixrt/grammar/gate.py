"""The gate in front of the JSON Schema compiler: a schema is well formed and enforced whole, or refused with a pointer.

Passes over the document, each over plain dictionaries:
1. every subschema, reachable or not: are the keywords' values of the right kind, within the limits, and such that the
   back end enforces them exactly (`_Checker`);
2. `$ref` and the in-place applicators: no value may have to be judged for ever, and a finite instance must exist
   (`recursion.py`);
3. every subschema that judges a value: what the back end does not enforce is said in other words, or refused
   (`rewrite.py`); then the second pass again, and the ranges that the back end gets wrong.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from decimal import Decimal
from typing import Any, NoReturn

import msgspec

from radixrt.errors import ConstraintError
from radixrt.grammar import keywords as kw
from radixrt.grammar.limits import Limits
from radixrt.grammar.patterns import check_pattern, is_writable
from radixrt.grammar.ranges import check_narrow_ranges
from radixrt.grammar.recursion import check_recursion
from radixrt.grammar.rewrite import rewrite
from radixrt.grammar.schema_text import parse
from radixrt.grammar.schema_tree import Node, Path, Tree, pointer
from radixrt.grammar.wording import UNSATISFIABLE, Said

_EXACT = 2**53
"""Integers up to here are exact as doubles, which is what the back end computes bounds in."""
_INT64 = 2**63
_LARGEST = int(sys.float_info.max)
"""Beyond it a back end cannot read a number at all."""


class Gated(msgspec.Struct, frozen=True):
    """A schema that passed the gate."""

    source: str
    """JSON text for the back end."""
    added: tuple[str, ...] = ()
    """Pointers to the keywords that are enforced because they were said in other words."""


def check_schema(
    source: str, limits: Limits, *, param: str = "json_schema", also: Callable[[Tree], None] | None = None
) -> Gated:
    """The schema for the back end, after all checks and rewriting (a schema `true` is written `{}`).

    `also` is a back end's own gate, which sees the schema as it will be sent.

    Raises ConstraintError; its `param` is a JSON pointer (RFC 6901) into the schema, or `param` where it is about the
    whole.
    """
    schema = parse(source, max_depth=limits.max_depth, param=param)
    if schema is False:
        raise ConstraintError("the schema is false: nothing can satisfy it", param=param, code=UNSATISFIABLE)
    if schema is not True and not isinstance(schema, dict):
        raise ConstraintError("a schema must be an object (or true)", param=param)
    if schema is True:
        schema, source = {}, "{}"
    tree = Tree(schema)
    checker = _Checker(limits)
    for node in tree.nodes:
        checker.check(node)
    check_recursion(tree)
    rewritten = rewrite(tree)
    document = rewritten.document
    if document == schema:
        check_narrow_ranges(tree.judging())
        if also is not None:
            also(tree)
        return Gated(source)
    if not isinstance(document, dict):
        raise ConstraintError("nothing satisfies this schema", param=param, code=UNSATISFIABLE)
    text = json.dumps(document, ensure_ascii=False, separators=(",", ":"))
    if len(text) > limits.max_rewritten_bytes:
        raise ConstraintError(
            f"written in the keywords that are enforced the schema is {len(text)} characters long; "
            f"the limit is {limits.max_rewritten_bytes}",
            param=param,
        )
    try:
        tree = Tree(document)
        check_recursion(tree)
        check_narrow_ranges(tree.judging())
        if also is not None:
            also(tree)
    except ConstraintError as error:
        raise ConstraintError(error.message, param=rewritten.origin(error.param or ""), code=error.code) from None
    return Gated(text, tuple(dict.fromkeys(rewritten.added)))


def locate(source: str, said: Said, limits: Limits) -> str | None:
    """JSON pointer of the keyword that a back end's refusal is about, as far as its words tell."""
    schema = parse(source, max_depth=limits.max_depth, param="json_schema")
    if not isinstance(schema, dict):
        return None
    places = [
        (pointer((*node.path, name)), node.schema[name])
        for node in Tree(schema).nodes
        if isinstance(node.schema, dict)
        for name in said.keywords
        if name in node.schema
    ]
    exact = (place for place, value in places if said.value is not None and _quotes(value, said.value))
    return next(exact, places[0][0] if places else None)


def _quotes(value: Any, quoted: str) -> bool:
    """Whether a keyword's value is, or holds, what a library quotes as text."""
    if isinstance(value, list | dict):
        return quoted in value
    if _is_number(value):
        with suppress(ValueError):
            return bool(value == float(quoted))
    return bool(value == quoted)


class _Checker:
    """Pass 1: the values of keywords, one schema at a time."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits

    def check(self, node: Node) -> None:
        schema, path = node.schema, node.path
        if not isinstance(schema, dict):
            if not isinstance(schema, bool):
                _refuse(path, f"must be a schema (an object or a boolean), but is {_short(schema)}")
            return
        for name, value in schema.items():
            self._keyword(node, name, value, (*path, name))
        for low, high, kind in kw.PAIRS:
            # Elsewhere it may be a part that need not be there, or that nothing refers to.
            if not path and node.types == {kind} and schema.get(low, 0) > schema.get(high, math.inf):
                _refuse((*path, low), f"{low} is above {high}: nothing can satisfy it", UNSATISFIABLE)

    def _keyword(self, node: Node, name: str, value: Any, path: Path) -> None:
        if isinstance(value, int) and abs(value) > _LARGEST:
            _refuse(path, f"{name} is a number of {len(str(abs(value)))} digits: so large a one cannot be enforced")
        if name == "x-guidance":
            _refuse(path, "the keyword 'x-guidance' would change how the schema is enforced")
        elif name == "type":
            self._type(value, path)
        elif name == "enum":
            self._enum(value, path)
        elif name == "const":
            _check_constant(value, path)
        elif name == "required":
            self._required(value, path)
        elif name in kw.COUNTS:
            self._count(name, value, path)
        elif name in kw.BOUNDS:
            _check_bound(node, name, value, path)
        elif name == "multipleOf":
            self._multiple(value, path)
        elif name in kw.STRINGS:
            if not isinstance(value, str):
                _refuse(path, f"{name} must be a string, but is {_short(value)}")
            if name == "pattern":
                self._pattern(value, path)
        elif name in kw.SCHEMA_LIST:
            if not isinstance(value, list) or not value:
                _refuse(path, f"{name} must be a list of schemas, not empty, but is {_short(value)}")
        elif name in kw.SCHEMA_MAP or name in ("dependencies", "dependentRequired"):
            self._map(name, value, path)
        elif name == "uniqueItems" and not isinstance(value, bool):
            _refuse(path, f"uniqueItems must be true or false, but is {_short(value)}")

    def _type(self, value: Any, path: Path) -> None:
        names = value if isinstance(value, list) else [value]
        if not names:
            _refuse(path, "type must name at least one type")
        for i, one in enumerate(names):
            if not isinstance(one, str) or one not in kw.TYPES:
                place = (*path, i) if isinstance(value, list) else path
                _refuse(place, f"{_short(one)} is not a type; the types are {', '.join(sorted(kw.TYPES))}")

    def _enum(self, value: Any, path: Path) -> None:
        if not isinstance(value, list) or not value:
            _refuse(path, f"enum must be a list of values, not empty, but is {_short(value)}")
        if len(value) > self.limits.max_choices:
            _refuse(path, f"enum holds {len(value)} values; the limit is {self.limits.max_choices}")
        for i, one in enumerate(value):
            _check_constant(one, (*path, i))

    def _required(self, value: Any, path: Path) -> None:
        if not isinstance(value, list):
            _refuse(path, f"{path[-1]} must be a list of property names, but is {_short(value)}")
        for i, one in enumerate(value):
            if not isinstance(one, str):
                _refuse((*path, i), f"{path[-1]} must hold property names, but holds {_short(one)}")
        if len(value) > self.limits.max_properties:
            _refuse(path, f"{path[-1]} names {len(value)} properties; the limit is {self.limits.max_properties}")

    def _count(self, name: str, value: Any, path: Path) -> None:
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            _refuse(path, f"{name} must be an integer of 0 or more, written without a point, but is {_short(value)}")
        limit = self.limits.max_minimum_count if name.startswith("min") else 2**31 - 1
        if value > limit:
            _refuse(path, f"{name} is {value}; the limit is {limit}")

    def _multiple(self, value: Any, path: Path) -> None:
        if not _is_number(value) or value <= 0:
            _refuse(path, f"multipleOf must be a number above 0, but is {_short(value)}")
        number = Decimal(repr(value)).normalize()
        places = max(0, -int(number.as_tuple().exponent))
        if number.scaleb(places) > self.limits.max_multiple_of:
            _refuse(path, f"multipleOf is {value}; without its point it must be at most {self.limits.max_multiple_of}")

    def _pattern(self, value: str, path: Path) -> None:
        check_pattern(
            value,
            json_string=True,
            max_depth=self.limits.max_depth,
            max_repetition=self.limits.max_repetition,
            param=pointer(path),
            what="pattern",
        )

    def _map(self, name: str, value: Any, path: Path) -> None:
        if not isinstance(value, dict):
            _refuse(path, f"{name} must be an object, but is {_short(value)}")
        if name == "properties" and len(value) > self.limits.max_properties:
            _refuse(path, f"properties holds {len(value)} properties; the limit is {self.limits.max_properties}")
        if name == "patternProperties":
            for key in value:
                self._pattern(key, (*path, key))
        if name in ("dependencies", "dependentRequired"):
            for key, names in value.items():
                if isinstance(names, list):
                    self._required(names, (*path, key))
                elif name == "dependentRequired":
                    _refuse((*path, key), f"must be a list of property names, but is {_short(names)}")


def _check_bound(node: Node, name: str, value: Any, path: Path) -> None:
    if isinstance(value, bool) and name.startswith("exclusive"):
        return  # draft 4
    if not _is_number(value):
        _refuse(path, f"{name} must be a number, but is {_short(value)}")
    exclusive = name.startswith("exclusive")
    lower = name.endswith("inimum")
    outward = value < 0 if lower else value > 0
    if abs(value) < _EXACT:
        return
    if "number" not in node.types and abs(value) >= _INT64 - 1 and outward and not exclusive:
        return  # beyond what is ever written for an integer
    if exclusive or abs(value) >= _INT64 or (isinstance(value, int) and int(float(value)) != value):
        _refuse(path, f"{name} is {value}: a bound so large cannot be enforced exactly", kw.NOT_ENFORCED)


def _check_constant(value: Any, path: Path) -> None:
    """Only values that the back end writes exactly as they are."""
    for place, one in _parts(value, path):
        if isinstance(one, str) and not is_writable(one):
            _refuse(place, "this string holds a control character that cannot be generated", kw.NOT_ENFORCED)
        if isinstance(one, int) and not isinstance(one, bool):
            try:
                exact = int(float(one)) == one
            except OverflowError:
                exact = False
            if not exact:
                _refuse(place, f"the number {one} is too large to be enforced exactly", kw.NOT_ENFORCED)


def _parts(value: Any, path: Path) -> Iterator[tuple[Path, Any]]:
    yield path, value
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _parts(inner, (*path, key))
    elif isinstance(value, list):
        for i, inner in enumerate(value):
            yield from _parts(inner, (*path, i))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _refuse(path: Path, why: str, code: str | None = None) -> NoReturn:
    raise ConstraintError(why, param=pointer(path), code=code)
