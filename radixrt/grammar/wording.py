"""What a library says against a constraint, in the words of this room: what is wrong, where, and what to do.

A library knows its own options and internals, which whoever sent the constraint does not. Its words are matched against
tables; those that no table knows go to the log, and the error says what can be said without them.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from typing import NamedTuple

from radixrt.grammar.keywords import NOT_ENFORCED

log = logging.getLogger(__name__)

UNSATISFIABLE = "schema_unsatisfiable"
"""Code of a refusal of a well-formed schema that no value satisfies."""


class Said(NamedTuple):
    """A refusal in our words."""

    text: str
    keywords: tuple[str, ...] = ()
    """Keywords that it is about: the first place in the schema where one stands is the pointer."""
    value: str | None = None
    """What stands at the keyword, as the library quotes it."""
    code: str | None = None


_REGEX_FAULTS = (
    ("lookaround", "^ and $ are enforced only at the beginning and the end, and look-around not at all"),
    ("unclosed group", "a group ( that is not closed"),
    ("unopened group", "a ) without its ("),
    ("unclosed character class", "a class [ that is not closed"),
    ("class range", "a range in a class whose end comes before its start"),
    ("repetition operator missing", "a quantifier with nothing before it"),
    ("repetition count range", "a repetition {n,m} whose end is below its start"),
    ("counted repetition", "a { that is not closed; a plain brace is written \\{"),
    ("valid decimal", "a repetition without its first number; a plain brace is written \\{"),
    ("Unicode property", "a Unicode property \\p{...} that does not exist"),
    ("duplicate capture group", "two groups of one name"),
    ("capture group", "a group's name that holds more than letters, digits and _"),
    ("flag", "inline flags that cannot be read"),
    ("scalar value", "a character code that is no character"),
    ("escape", "an escape that cannot be read"),
    ("too big", "it is too large"),
    ("too large", "it is too large"),
)
_ANCHORS = "lookaround"

_SCHEMA_WORDS: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    (
        "oneOf constraints",
        "oneOf is enforced only where its branches certainly exclude one another: let them differ in type or in a "
        "required constant, or write anyOf",
        ("oneOf",),
    ),
    (
        "min/maxProperties",
        "minProperties and maxProperties are enforced beside optional properties only where these are few: require "
        "the declared properties, or leave it out and check the result",
        ("minProperties", "maxProperties"),
    ),
    (
        "patternProperty",
        "patternProperties are enforced only where no key can match two of the patterns: make them exclude one another",
        ("patternProperties",),
    ),
    (
        "circular references",
        "a $ref that leads back to itself is enforced only where nothing stands beside it: move what does into the "
        "schema that it refers to",
        ("$ref",),
    ),
    ("Unknown format", "this format is not known: leave it out, or write it as a pattern", ("format",)),
    (
        "intersection stack",
        "too many schemas come together in one place here: write fewer allOf and $ref inside one another",
        ("allOf", "$ref"),
    ),
    (
        "schema too large",
        "too many schemas come together here: fewer anyOf, oneOf and enum inside one allOf, or beside one another",
        ("allOf", "oneOf", "anyOf"),
    ),
    ("not present in a registry", "a $ref is in another document, which is never fetched", ("$ref",)),
    ("retriev", "a $ref is in another document, which is never fetched", ("$ref",)),
    ("Pointer", "a $ref refers to nothing in this schema", ("$ref",)),
    ("nchor", "a $ref refers to nothing in this schema", ("$ref",)),
    ("multipleOf", "this multipleOf cannot be enforced: leave it out and check the result", ("multipleOf",)),
)
_BEYOND = re.compile(r"(\w+) \((-?[\d.e+-]+)\) is (?:greater than|equal to) (?:(\w+) \((-?[\d.e+-]+)\)|number of prop)")
_REQUIRED = re.compile(r"required property '(.*)' is unsatisfiable", re.DOTALL)
_BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
_STRINGS = ("pattern", "format", "minLength", "maxLength")
_NOTHING: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("required > maxProperties", "more properties are required than maxProperties allows", ("maxProperties",)),
    ("minProperties > max", "minProperties is above maxProperties", ("minProperties",)),
    ("multiple of", "no multiple of the number lies within the bounds", ("multipleOf",)),
    ("integer interval", "no integer lies within the bounds", ("minimum", "exclusiveMinimum", "maximum")),
    ("Regex is empty", "no string has the pattern, format and length together", _STRINGS),
    ("length constraints", "the string that is asked for has not the length that is asked for", _STRINGS),
    ("prefixItems", "an item that must be there cannot be", ("minItems",)),
    ("required item", "an item that must be there cannot be", ("minItems",)),
    ("anyOf", "nothing satisfies any of the branches", ("anyOf", "oneOf")),
    ("incompatible", "what is asked for together excludes one another", ("allOf", "const", "enum", "$ref", "type")),
)


def schema_words(message: str) -> Said:
    """Of llguidance, about a JSON Schema."""
    if "Unsatisfiable" in message:
        return _unsatisfiable(message)
    if message.startswith("Unimplemented keys"):
        names = tuple(re.findall(r'"([^"]+)"', message))
        shown = ", ".join(names)
        advice = "leave it out, or write it in another way"
        return Said(f"the keyword {shown} cannot be enforced: {advice}", names, code=NOT_ENFORCED)
    for words, text, names in _SCHEMA_WORDS:
        if words in message:
            return Said(text, names, code=NOT_ENFORCED)
    if "range" in message and "regex parse error" not in message:
        return Said("these bounds are too large to be enforced exactly", _BOUNDS, code=NOT_ENFORCED)
    if "egex" in message or _ANCHORS in message:
        # A pattern that means something is not enforced; one that cannot be read is a fault.
        code = NOT_ENFORCED if _ANCHORS in message else None
        return Said(f"pattern: {regex_words(message)}", ("pattern", "patternProperties"), _pattern_in(message), code)
    log.info("llguidance refuses a schema: %s", message)
    return Said("it cannot be enforced: write it in other words, or try backend xgrammar")


def _unsatisfiable(message: str) -> Said:
    if found := _REQUIRED.search(message):
        text = f"nothing satisfies the schema here: the required property {found[1]!r} can have no value"
        return Said(text, ("required",), found[1], UNSATISFIABLE)
    if found := _BEYOND.search(message):
        name, value, other, most = found.groups()
        against = f"{other} {most}" if other else "the number of properties there can be"
        text = f"nothing satisfies the schema here: {name} {value} goes beyond {against}"
        return Said(text, (name, "const", "enum"), value, UNSATISFIABLE)
    for words, text, names in _NOTHING:
        if words in message:
            return Said(f"nothing satisfies the schema here: {text}", names, code=UNSATISFIABLE)
    return Said("nothing satisfies the schema", code=UNSATISFIABLE)


def regex_words(message: str) -> str:
    """Of a library, about a regular expression: the fault and its place."""
    why = next((ours for words, ours in _REGEX_FAULTS if words in message), None)
    if why is None:
        log.info("a library refuses a regex: %s", message)
        why = "it cannot be read or enforced"
    caret = re.search(r"regex parse error:\n    .*\n    ( *)\^", message)
    return why if caret is None else f"{why} (at character {len(caret[1])})"


def _pattern_in(message: str) -> str | None:
    found = re.search(r"regex parse error:\n    (.*)\n", message)
    return found[1] if found else None


_GRAMMAR_WORDS: Sequence[tuple[str, str]] = (
    (r"unknown name: \"?([^\"\n]+)\"?", "the name {0} is not defined"),
    (r"(?:Rule|rule) '([^'\n]+)' not found", "the name {0} is not defined"),
    (r"Rule \"([^\"\n]+)\" is not defined", "the name {0} is not defined"),
    (r"no start rule found", "there is no rule named start, where a grammar begins"),
    (r"No 'root' rule found", "there is no rule named root, where a grammar begins"),
    (r"[Rr]ule '([^'\n]+)' already exists", "{0} is defined twice (start is a name of its own)"),
    (r"duplicate (?:rule|token): \"?([^\"\n]+)\"?", "{0} is defined twice"),
    (r"circular reference in token \"?([^\"\n]+?)\"? definition", "the terminal {0} refers to itself"),
    (r"range end must be >= start, got \((\d+), (\d+)\)", "a repetition {{{0},{1}}} whose end is below its start"),
    (r"& is only supported", "& stands only in terminals: write the rule's name in capitals"),
    (r"Unknown common regex: ([\w.]+)", "there is nothing to import by the name {0}"),
    (r"lower bound is larger", "a range in a class whose end comes before its start"),
    (r"lexer error", "a text, regex or sign that is not closed or not known"),
    (r"Expect \" in string", "a text that is not closed"),
    (r"[Uu]nexpected end of input", "it ends in the middle of a rule"),
    (r"Expected token '([^'\n]+)', found '([^'\n]*)'", "expected {0}, found {1}"),
    (r"Expected value", "expected a name, a text or a regex"),
    (r"Expected (name|'[^']+')", "expected {0}"),
)


_SIGNS = {"\\n": "the end of the line", "rule_name": "a name", "token_name": "a name"}
"""Signs of a library's reader, in words."""
_MISSING = re.compile(r"unknown name: \"?([\w-]+)|Rule '([\w-]+)' not found")


def grammar_words(message: str, text: str, *, own_lines: bool = True) -> str:
    """Of a library, about the grammar `text`; `own_lines`: its line numbers are those of that text, but for what was
    put behind it. Else a line is named where the name at fault stands."""
    place = re.search(r"(?:^|\bat )(\d+)\((\d+)\)|at line (\d+)", message)
    last = text.rstrip().count("\n") + 1
    number = min(int(place[1] or place[3]), last) if place and own_lines else None
    if number is None and (name := _MISSING.search(message)):
        number = _line_of(name[1] or name[2], text)
    line = "the grammar: " if number is None else f"line {number} of the grammar: "
    if "regex" in message and ("regex parse error" in message or _ANCHORS in message):
        return f"{line}regex: {regex_words(message)}"
    for pattern, ours in _GRAMMAR_WORDS:
        if found := re.search(pattern, message):
            return line + ours.format(*(_SIGNS.get(word, word) for word in found.groups()))
    log.info("a library refuses a grammar: %s", message)
    return f"{line}it cannot be read" + ("" if number is None else " from here on")


def _line_of(name: str, text: str) -> int | None:
    """Where a rule's name stands first."""
    found = re.search(rf"(?<![\w-]){name}(?![\w-])", text)
    return None if found is None else text.count("\n", 0, found.start()) + 1


GAVE_UP = "its library gave up; write it in other words, or name another backend"
"""Why is not known."""
TOO_MANY_WAYS = "there are too many ways to read the text so far; a less ambiguous constraint would do"


def running_words(failure: str) -> str:
    """Of a library, about a row that it cannot follow further."""
    log.info("a constraint can no longer be followed: %s", failure)
    if re.search(r"TooComplex|too complex|items|lexer|states|fuel|limit", failure):
        return TOO_MANY_WAYS
    return GAVE_UP


def first_words(error: str) -> str:
    """A library's message without its state dump, at most 300 characters."""
    words = error.split("\n<state>")[0].strip()
    return words if len(words) <= 300 else words[:297] + "..."
