"""A gate over regular expressions: what Rust's syntax reads differently, or would be enforced wrongly, is refused.

llguidance hands regexes to Rust's regex-syntax, which agrees with Python and ECMA-262 on most of the syntax and takes
some of the rest in silence with another meaning: `[a&&b]`, `[a[b]]`, `a++`. Those are refused here, with the place.
What Rust itself refuses (look-around, back-references) it says itself; those that are common get a clearer text here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from radixrt.errors import ConstraintError
from radixrt.grammar.keywords import NOT_ENFORCED

_BOUNDS = re.compile(r"\{(\d+)(?:(,)(\d*))?\}")
_QUANTIFIER = re.compile(r"[*+?]|\{\d+(?:,\d*)?\}")
_LETTER_ESCAPES = frozenset("dDwWsStnrfvxupP")
_LOOK_AROUND = ("(?=", "(?!", "(?<=", "(?<!")
_UNWRITABLE = frozenset({*range(0x20), 0x7F} - {0x08, 0x09, 0x0A, 0x0C, 0x0D})
"""Characters that JSON can only spell as \\uXXXX, which the JSON grammars here do not write."""
_SETS = {
    "d": frozenset(range(0x30, 0x3A)),
    "w": frozenset({*range(0x30, 0x3A), *range(0x41, 0x5B), *range(0x61, 0x7B), 0x5F}),
    "s": frozenset({0x09, 0x0A, 0x0B, 0x0C, 0x0D, 0x20}),
}
_NAMED = {"t": 0x09, "n": 0x0A, "r": 0x0D, "f": 0x0C, "v": 0x0B}
_ASCII = frozenset(range(128))


def is_writable(text: str) -> bool:
    """Whether a JSON string written by the JSON grammars can hold this text."""
    return not any(ord(char) in _UNWRITABLE for char in text)


def check_pattern(
    pattern: str, *, json_string: bool, max_depth: int, max_repetition: int, param: str, what: str
) -> None:
    """Raises ConstraintError, with the position in the pattern, for what would not be enforced as it is meant.

    Args:
        pattern: the regular expression.
        json_string: it constrains the content of a JSON string (ECMA-262 reading), not the whole text.
        max_depth: groups inside one another.
        max_repetition: bounds of {n,m}.
        param: request field or JSON pointer for the error.
        what: how the error calls the pattern ("regex", "pattern").
    """
    _Scanner(pattern, json_string, max_depth, max_repetition, param, what).run()


@dataclass
class _Scanner:
    text: str
    json_string: bool
    max_depth: int
    max_repetition: int
    param: str
    what: str
    at: int = 0
    depth: int = 0

    def refuse(self, why: str, at: int | None = None) -> ConstraintError:
        place = self.at if at is None else at
        shown = self.text[max(0, place - 20) : place + 20]
        return ConstraintError(f"{self.what}: {why} (at character {place}, near {shown!r})", param=self.param)

    def unsupported(self, why: str, at: int | None = None) -> ConstraintError:
        """A pattern that means something, which is not enforced."""
        error = self.refuse(why, at)
        return ConstraintError(error.message, param=error.param, code=NOT_ENFORCED)

    def run(self) -> None:
        text = self.text
        while self.at < len(text):
            char = text[self.at]
            if char == "(":
                self._group()
            elif char == ")":
                self.depth -= 1
                self.at += 1
            elif char == "[":
                self._class()
            elif char == "\\":
                self._literal(self._escape())
            else:
                self._literal(ord(char))
                self.at += 1
            if char not in "(|":
                self._quantifiers()

    def _literal(self, code: int | frozenset[int] | None) -> None:
        if self.json_string and isinstance(code, int) and code in _UNWRITABLE:
            raise self.refuse("a control character that JSON strings here cannot hold")

    def _group(self) -> None:
        if any(self.text.startswith(opening, self.at) for opening in _LOOK_AROUND):
            raise self.unsupported("look-ahead and look-behind cannot be enforced")
        if self.text.startswith(("(?>", "(?(", "(?P=", "(?P>", "(?#"), self.at):
            raise self.unsupported("this kind of group cannot be enforced")
        self.depth += 1
        if self.depth > self.max_depth:
            raise self.refuse(f"groups nest more than {self.max_depth} deep, which is the limit")
        self.at += 1
        if self.text.startswith("?", self.at):
            end = re.compile(r"\?(?:P?<[^>]*>|[A-Za-z-]*[:)])?").match(self.text, self.at)
            if end is not None:
                if end[0][-1] in ":)" and not set(end[0][1:-1]) <= set("imsu-"):
                    raise self.unsupported("of the inline flags only i, m, s and u can be enforced")
                if end[0].endswith(")"):
                    self.depth -= 1
                self.at = max(end.end(), self.at + 1)

    def _quantifiers(self) -> None:
        match = _QUANTIFIER.match(self.text, self.at)
        if match is None:
            return
        bounds = _BOUNDS.fullmatch(match[0])
        if bounds and any(number and int(number) > self.max_repetition for number in (bounds[1], bounds[3])):
            raise self.refuse(f"a repetition of more than {self.max_repetition}, which is the limit")
        self.at = match.end()
        if self.text.startswith("?", self.at):
            self.at += 1
        if _QUANTIFIER.match(self.text, self.at):
            raise self.unsupported("a quantifier on a quantifier cannot be enforced: use a group (?:...)")

    def _escape(self) -> int | frozenset[int] | None:
        """Step over an escape: the ASCII it stands for (a code, or a set), or None for anything beyond."""
        start = self.at
        char = self.text[start + 1 : start + 2]
        if not char:
            raise self.refuse("a backslash at the end")
        self.at += 2
        if char.isdigit() or char == "k":
            raise self.unsupported("back-references cannot be enforced", start)
        if char in "bB<>":
            raise self.unsupported("word boundaries cannot be enforced", start)
        if char.isascii() and char.isalpha():
            anchors = "" if self.json_string else "Az"
            if char not in _LETTER_ESCAPES and char not in anchors:
                raise self.refuse(f"the escape \\{char} is not supported", start)
            return self._letter(char, start)
        return ord(char)

    def _letter(self, char: str, start: int) -> int | frozenset[int] | None:
        if char.lower() in _SETS:
            found = _SETS[char.lower()]
            return found if char.islower() else _ASCII - found
        if char in _NAMED:
            return _NAMED[char]
        if char in "xu":
            width = 2 if char == "x" else 4
            match = re.compile(rf"\{{([0-9A-Fa-f]{{1,8}})\}}|([0-9A-Fa-f]{{{width}}})").match(self.text, self.at)
            if match is None:
                raise self.refuse(f"\\{char} needs {width} hexadecimal digits", start)
            self.at = match.end()
            return int(match[1] or match[2], 16)
        if char in "pP" and self.text.startswith("{", self.at):
            end = self.text.find("}", self.at)
            self.at = len(self.text) if end < 0 else end + 1
        elif char in "pP":
            self.at += 1
        return None

    def _class(self) -> None:
        """Step over a [class]; `members` collects its ASCII part."""
        start = self.at
        self.at += 1
        negated = self.text.startswith("^", self.at)
        self.at += negated
        members: set[int] = set()
        rest = False
        if self.text.startswith("]", self.at):
            raise self.refuse("an empty class, or a ] that must be written \\]")
        while not self.text.startswith("]", self.at):
            low = self._member(start)
            if isinstance(low, int) and self._range_follows():
                self.at += 1
                high = self._member(start)
                if not isinstance(high, int):
                    raise self.refuse("a range must end in a character")
                members.update(range(low, min(high, 127) + 1))
                rest = rest or high > 127
            elif isinstance(low, int):
                members.add(low)
                rest = rest or low > 127
            elif low is not None:
                members |= low
            else:
                rest = True
        self.at += 1
        ascii_part = _ASCII - members if negated else members & _ASCII
        if self.json_string and ascii_part and ascii_part <= _UNWRITABLE:
            raise self.refuse(
                "a class whose ASCII part is only control characters that JSON strings cannot hold", start
            )

    def _range_follows(self) -> bool:
        # "--" is Rust's set difference, wherever it stands in a class.
        return self.text.startswith("-", self.at) and self.text[self.at + 1 : self.at + 2] not in ("]", "-", "")

    def _member(self, start: int) -> int | frozenset[int] | None:
        if self.at >= len(self.text):
            raise self.refuse("a class [ that is not closed", start)
        if self.text.startswith(("&&", "--", "~~"), self.at):
            raise self.refuse(f"{self.text[self.at]!r} twice in a class has another meaning here: escape both")
        char = self.text[self.at]
        if char == "[":
            raise self.refuse("a [ inside a class must be written \\[")
        if char == "\\":
            return self._escape()
        self.at += 1
        return ord(char)
