"""All strings but a few, as a regular expression without look-ahead."""

from __future__ import annotations

from collections.abc import Iterable

_META = frozenset("\\.+*?()|[]{}^$/-")
_ANY = "(?s:.)"


def all_but(words: Iterable[str]) -> str:
    """A pattern, anchored at both ends, that matches every string but the given ones.

    The words as a trie: a string is another one if it leaves the trie, ends between words, or goes on after one.
    """
    root: dict[str, dict[str, object]] = {}
    ends: set[int] = set()
    for word in words:
        node: dict[str, dict[str, object]] = root
        for char in word:
            node = node.setdefault(char, {})  # type: ignore[assignment]
        ends.add(id(node))
    return f"^(?:{_other(root, ends)})$"


def _other(node: dict[str, dict[str, object]], ends: set[int]) -> str:
    """Every continuation from here that is no rest of a word."""
    # A chain of single letters nests one group deeper a letter, so it is written from its end, in a loop.
    chain: list[tuple[str, bool]] = []
    while len(node) == 1:
        ((char, following),) = node.items()
        chain.append((char, id(node) in ends))
        node = following  # type: ignore[assignment]
    ways = [] if id(node) in ends else [""]
    if node:
        ways.append(f"[^{''.join(map(_in_class, node))}]{_ANY}*")
        ways += [f"{literal(char)}(?:{_other(following, ends)})" for char, following in node.items()]  # type: ignore[arg-type]
    else:
        ways.append(f"{_ANY}+")
    text = "|".join(ways)
    for char, is_end in reversed(chain):
        text = "|".join([*([] if is_end else [""]), f"[^{_in_class(char)}]{_ANY}*", f"{literal(char)}(?:{text})"])
    return text


def literal(text: str) -> str:
    """A pattern that matches exactly this text."""
    return "".join(f"\\{char}" if char in _META else _plain(char) for char in text)


def _in_class(char: str) -> str:
    return f"\\{char}" if char in "\\]^-[" else _plain(char)


def _plain(char: str) -> str:
    return char if char.isprintable() else f"\\u{ord(char):04x}" if ord(char) < 0x10000 else char
