"""The fixed parts of a call as patterns that also tell whether a text may still become one."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from radixrt.dialects.dialect import Dialect

MAX_HEAD = 1024
"""Characters within which a call must have said its name."""
_SPACE = r"\s*"
_NAME = ["\\{", _SPACE, *'"name"', _SPACE, ":", _SPACE, '"', r'[^"\\]*', '"', _SPACE]


class Pattern:
    """A regular expression, and another one that matches the beginnings of what it matches."""

    def __init__(self, whole: str, begun: str) -> None:
        self._whole = re.compile(whole)
        self._begun = re.compile(begun)

    def match(self, text: str) -> re.Match[str] | None:
        return self._whole.match(text)

    def possible(self, text: str) -> bool:
        """Whether more text could make it match. (For texts that do not match yet.)"""
        return self._begun.fullmatch(text) is not None


@dataclass(frozen=True)
class Syntax:
    """Of one dialect: the head of the first call behind an opener, of those after it, and what follows arguments."""

    first: Pattern
    next: Pattern
    tail: Pattern

    @staticmethod
    @cache
    def of(dialect: Dialect) -> Syntax:
        if dialect.behind_name:
            head = _bare_head(dialect.behind_name)
            return Syntax(head, head, _tail(dialect))
        array = ["\\[", _SPACE] if dialect.is_list else []
        return Syntax(_head([_SPACE, *array]), _head([_SPACE]), _tail(dialect))


def _head(before: Sequence[str]) -> Pattern:
    """`{"name": "f", "arguments": ` with a `{` behind it, or `{"name": "f"}`."""
    front = [*before, *_NAME]
    name = "".join(front).replace(r'[^"\\]*', r'(?P<name>[^"\\]*)')
    keys = [
        [",", _SPACE, '"', *word, '"', _SPACE, ":", _SPACE] for word in ("arguments", "parameters")
    ]  # fmt: skip
    whole = f"{name}(?:(?P<none>\\}})|(?:{'|'.join(map(''.join, keys))})(?=\\{{))"
    return Pattern(whole, _begun(front, "|".join(_begun(key) for key in keys)))


def _bare_head(behind_name: str) -> Pattern:
    """`f[ARGS]` with a `{` behind it."""
    behind = [*map(re.escape, behind_name), _SPACE]
    name = r"[^\[\]{}\"\s]*"
    return Pattern(f"{_SPACE}(?P<name>{name}){''.join(behind)}(?P<none>(?!))?(?=\\{{)", _begun([_SPACE, name, *behind]))


def _tail(dialect: Dialect) -> Pattern:
    """The end of the call's object, and what stands behind it."""
    if dialect.behind_name:
        return Pattern("(?P<more>(?!))?", "(?!)")
    if dialect.is_list:
        atoms = [_SPACE, "\\}", _SPACE]
        return Pattern("".join(atoms) + "(?:(?P<more>,)|\\])", _begun(atoms))
    behind = [_SPACE, *map(re.escape, dialect.closer)] if dialect.closer else []
    atoms = [_SPACE, "\\}", *behind]
    return Pattern("".join(atoms) + "(?P<more>(?!))?", _begun(atoms))


def _begun(atoms: Sequence[str], last: str = "") -> str:
    """A pattern for every beginning of what the atoms match one after the other, and then `last`."""
    pattern = f"(?:{last})?" if last else ""
    for atom in reversed(atoms):
        pattern = f"(?:{atom}{pattern})?"
    return pattern
