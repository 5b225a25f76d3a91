"""What can be said of a program before it runs: its numbers and names are unique, its references point back, its forks
are bounded. A fault's `param` leads to its place: `items[1].branches[0][1].index`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from radixrt.errors import InvalidRequest
from radixrt.params import Constraint
from radixrt.results import ModelInfo
from radixrt.segments import MAX_ITEMS, BeginTurn, EndTurn, Gen, Select, Start
from radixrt.server.native import check_constraint
from radixrt.server.program_types import MAX_BRANCHES, MAX_FORK_DEPTH, Fork, HttpItem, Template

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
_REFERENCE = re.compile(r"\{\{(?:(?P<index>[0-9]{1,9})|(?P<fork>[A-Za-z_][A-Za-z0-9_]*)\[(?P<branch>[0-9]{1,9})\])\}\}")


Home: TypeAlias = tuple[str, int]
"""A fork's name, and which of its branches."""


@dataclass(frozen=True)
class Reference:
    """What a template takes the text of: the Gen or Select of an index, or a branch of a fork."""

    index: int = -1
    fork: str = ""
    branch: int = -1


@dataclass
class Plan:
    """A program that may run."""

    gens: list[int] = field(default_factory=list)
    selects: list[int] = field(default_factory=list)
    forks: list[str] = field(default_factory=list)
    constraints: list[tuple[str, Constraint | None]] = field(default_factory=list)
    """Of each gen, with where it stands."""
    index_homes: dict[int, Home] = field(default_factory=dict)
    fork_homes: dict[str, Home] = field(default_factory=dict)
    """The innermost branch that a Gen, a Select or a Fork stands in; those outside of all branches are not here."""


@dataclass
class _Scope:
    """What a template may refer to where it stands."""

    samples: dict[int, int] = field(default_factory=dict)
    """By index: how many there are of it."""
    branches: dict[str, int] = field(default_factory=dict)
    """How many each fork has."""
    home: Home | None = None

    def of_branch(self, home: Home) -> _Scope:
        return _Scope(dict(self.samples), dict(self.branches), home)


def plan(items: Sequence[HttpItem], info: ModelInfo) -> Plan:
    """Raises InvalidRequest for a program that cannot run as it is on this model."""
    if sum(1 for _ in _all(items)) > MAX_ITEMS:
        raise InvalidRequest(f"items may hold at most {MAX_ITEMS} entries, those of branches included", param="items")
    made = Plan()
    _walk(items, "items", _Scope(), made, depth=0)
    for where, constraint in made.constraints:
        check_constraint(constraint, info, f"{where}.constraint")
    if not made.gens and not made.selects:
        raise InvalidRequest("a program must hold at least one Gen or Select", param="items")
    return made


def references(text: str) -> list[str | Reference]:
    """A template's pieces, in order. Raises ValueError for braces that are no reference."""
    pieces: list[str | Reference] = []
    at = 0
    for found in _REFERENCE.finditer(text):
        pieces.append(text[at : found.start()])
        at = found.end()
        if found["index"] is not None:
            pieces.append(Reference(index=int(found["index"])))
        else:
            pieces.append(Reference(fork=found["fork"], branch=int(found["branch"])))
    pieces.append(text[at:])
    for piece in pieces:
        if isinstance(piece, str) and "{{" in piece:
            raise ValueError(piece[piece.index("{{") :][:20])
    return pieces


def _all(items: Sequence[HttpItem]) -> Iterator[HttpItem]:
    for item in items:
        yield item
        if isinstance(item, Fork):
            for branch in item.branches:
                yield from _all(branch)


def _walk(items: Sequence[HttpItem], where: str, scope: _Scope, made: Plan, *, depth: int) -> None:
    """Check `items`; what they make known is added to `scope` and `made`."""
    for i, item in enumerate(items):
        at = f"{where}[{i}]"
        if isinstance(item, Gen | Select):
            if item.index in made.gens or item.index in made.selects:
                raise _at(f"{at}.index", f"each Gen and each Select needs an index of its own: {item.index} is taken")
            if isinstance(item, Gen):
                made.constraints.append((at, item.constraint))
            (made.gens if isinstance(item, Gen) else made.selects).append(item.index)
            scope.samples[item.index] = item.sampling.n if isinstance(item, Gen) else 1
            if scope.home is not None:
                made.index_homes[item.index] = scope.home
        elif isinstance(item, Fork):
            _fork(item, at, scope, made, depth=depth + 1)
        elif isinstance(item, Template):
            _template(item, f"{at}.text", scope)
        elif isinstance(item, Start) and depth:
            raise _at(at, "a branch goes on from where its fork stands: it cannot hold a Start")


def _fork(fork: Fork, at: str, scope: _Scope, made: Plan, *, depth: int) -> None:
    if depth > MAX_FORK_DEPTH:
        raise _at(at, f"forks may stand in each other's branches {MAX_FORK_DEPTH} deep, and this one is {depth}")
    if _NAME.fullmatch(fork.name) is None:
        raise _at(
            f"{at}.name", f"a fork's name is 1 to 64 of the characters A-Z, a-z, 0-9 and _, but is {fork.name!r:.80}"
        )
    if fork.name in made.forks:
        raise _at(f"{at}.name", f"each Fork needs a name of its own: {fork.name!r} is taken")
    if not 1 <= len(fork.branches) <= MAX_BRANCHES:
        raise _at(f"{at}.branches", f"a fork has 1 to {MAX_BRANCHES} branches, and this one {len(fork.branches)}")
    made.forks.append(fork.name)
    if scope.home is not None:
        made.fork_homes[fork.name] = scope.home
    inner = [scope.of_branch((fork.name, number)) for number in range(len(fork.branches))]
    for number, branch in enumerate(fork.branches):
        place = f"{at}.branches[{number}]"
        if not branch:
            raise _at(place, "a branch must hold at least one item")
        if fork.join and any(isinstance(item, BeginTurn | EndTurn) for item in branch):
            raise _at(place, "what holds turns cannot be concatenated: leave join out, and refer to the branch")
        _walk(branch, place, inner[number], made, depth=depth)
    for seen in inner:
        scope.samples |= seen.samples
        scope.branches |= seen.branches
    scope.branches[fork.name] = len(fork.branches)


def _template(template: Template, at: str, scope: _Scope) -> None:
    try:
        pieces = references(template.text)
    except ValueError as error:
        raise _at(at, f"a reference is {{{{index}}}} or {{{{fork[branch]}}}}, but there is {error}") from None
    for piece in pieces:
        if isinstance(piece, str):
            continue
        if piece.fork:
            branches = scope.branches.get(piece.fork)
            if branches is None:
                raise _at(at, f"no fork called {piece.fork!r} stands before this; there are: {_list(scope.branches)}")
            if piece.branch >= branches:
                raise _at(at, f"the fork {piece.fork!r} has branches 0 to {branches - 1}, and no {piece.branch}")
        elif piece.index not in scope.samples:
            raise _at(at, f"no Gen or Select of index {piece.index} is before this; there are: {_list(scope.samples)}")
        elif scope.samples[piece.index] > 1:
            raise _at(
                at, f"the Gen of index {piece.index} has {scope.samples[piece.index]} samples, and so no one text"
            )


def _list(known: Sequence[object] | dict[int, int] | dict[str, int]) -> str:
    return ", ".join(str(name) for name in list(known)[:20]) or "none"


def _at(where: str, why: str) -> InvalidRequest:
    return InvalidRequest(f"{where}: {why}", param=where)
