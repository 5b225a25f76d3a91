"""Grammar text: which of the two notations it is, and what in it would not be enforced as it is meant.

Lark as llguidance reads it (its docs/syntax.md), and GBNF as llama.cpp does (grammars/README.md), which llguidance's
own converter turns into Lark. Grammars that would reach past the text are refused: special tokens, nested JSON schemas
(they have their own kind of constraint and their own gate), sampling options in rules.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from itertools import zip_longest

from radixrt.errors import ConstraintError
from radixrt.grammar.keywords import NOT_ENFORCED
from radixrt.grammar.limits import Limits
from radixrt.grammar.patterns import check_pattern
from radixrt.grammar.wording import grammar_words

_LARK_TOKEN = re.compile(
    r'(?P<string>"(?:[^"\\\n]|\\.)*"i?)|(?P<comment>//[^\n]*|\#[^\n]*)|(?P<regex>/(?:[^/\\\n]|\\.)+/[imslux]*)'
    r"|(?P<special><[^>\s]*>)|(?P<directive>%[a-z]+)|(?P<reference>@\w+)|(?P<options>(?<=\w)\[[^\]]*\])"
    r"|(?P<bounds>\{\s*\d*\s*,?\s*\d*\s*\}|~\s*\d+(?:\s*\.\.\s*\d+)?)|(?P<open>\()|(?P<close>\))|(?P<other>[\s\S])"
)
_GBNF_TOKEN = re.compile(
    r'(?P<string>"(?:[^"\\]|\\.)*")|(?P<comment>\#[^\n]*)|(?P<set>\[(?:[^\]\\]|\\.)*\])'
    r"|(?P<bounds>\{[^}\n]*\})|(?P<open>\()|(?P<close>\))|(?P<other>[\s\S])"
)
_GBNF_HEAD = re.compile(r"^[ \t]*([A-Za-z0-9_-]+)[ \t]*::=", re.MULTILINE)
_LARK_HEAD = re.compile(r"^[ \t]*(?:%|[?!]?(\w+)(?:\.-?\d+)?(?:\[[^\]]*\])?[ \t]*:)", re.MULTILINE)
_OTHER_HEAD = re.compile(r"^[ \t]*(?:<[\w -]+>[ \t]*::=|[A-Za-z][\w-]*[ \t]*:?=)", re.MULTILINE)
"""How rules begin in BNF and ABNF."""
_MACRO = re.compile(r"\b[A-Z]\w*\s*\(|\(\s*=")
_WIDE_ESCAPE = re.compile(r"\\(?:u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})|.)", re.DOTALL)
_RULE_OPTIONS = frozenset({"lazy", "suffix"})


def is_gbnf(text: str) -> bool:
    """GBNF where any line begins a rule with `name ::=`; else Lark."""
    return _GBNF_HEAD.search(text) is not None


def check_lark(text: str, limits: Limits) -> str:
    """The grammar as it was, after the checks; ConstraintError (param `grammar`) with a line number otherwise."""
    if found := _OTHER_HEAD.search(text):
        why = "a rule is written `name: ...` (Lark) or `name ::= ...` (GBNF), and not as here"
        raise _error(text[: found.start()].count("\n") + 1, why)
    plain = []
    for line, kind, token in _tokens(_LARK_TOKEN, text, limits):
        plain.append(_blank(kind, token))
        if kind == "special":
            raise _error(line, f"special tokens cannot be generated: {token}")
        if kind == "reference":
            raise _error(line, f"there is no other grammar to refer to: {token}")
        if kind == "directive" and token == "%json":
            raise _error(line, "%json is not enforced here: use a json_schema constraint")
        if kind == "directive" and token == "%llguidance":
            raise _error(line, "%llguidance options are not supported")
        if kind == "regex":
            check_pattern(
                token[1 : token.rindex("/")].replace("\\/", "/"),
                json_string=False,
                max_depth=limits.max_depth,
                max_repetition=limits.max_repetition,
                param="grammar",
                what=f"line {line}: regex",
            )
        if kind == "options":
            for name in re.findall(r"[A-Za-z_]+(?=\s*(?:=|,|\]))", re.sub(r'"(?:[^"\\]|\\.)*"|/[^/]*/', "", token)):
                if name not in _RULE_OPTIONS:
                    raise _error(line, f"the rule option {name!r} is not supported")
    _check_rules("".join(plain), _LARK_HEAD, empty={"start"})
    return text


def gbnf_to_lark(text: str, limits: Limits) -> str:
    """GBNF as Lark; ConstraintError (param `grammar`) with the place of the fault."""
    from llguidance.gbnf_to_lark import gbnf_to_lark as convert

    parts, plain = [], []
    for line, kind, token in _tokens(_GBNF_TOKEN, text, limits):
        plain.append(_blank(kind, token))
        if kind == "set" and any(pair in token for pair in ("&&", "--", "~~")):
            raise _error(line, f"a doubled &, - or ~ in {token} has another meaning here: write it once", NOT_ENFORCED)
        parts.append(_WIDE_ESCAPE.sub(_narrow, token) if kind in ("set", "string") else token)
    _check_rules("".join(plain), _GBNF_HEAD)
    try:
        return convert("".join(parts))
    except Exception as error:
        raise ConstraintError(grammar_words(str(error), text), param="grammar") from error


def check_gbnf(text: str, limits: Limits) -> str:
    """GBNF for a library that reads it itself; ConstraintError (param `grammar`) with the place of the fault.

    What only xgrammar reads in it (macros like `Regex(...)` and `TagDispatch(...)`, look-ahead `(= ...)`) is refused.
    """
    plain = []
    for _, kind, token in _tokens(_GBNF_TOKEN, text, limits):
        plain.append(_blank(kind, token))
    if found := _MACRO.search("".join(plain)):
        line = "".join(plain)[: found.start()].count("\n") + 1
        raise _error(line, f"{found[0]!r} is not GBNF and would not be enforced")
    _check_rules("".join(plain), _GBNF_HEAD)
    return wide_escapes(text)


def _blank(kind: str, token: str) -> str:
    """A token without what stands in it, on as many lines: of a text nothing is read as a rule."""
    if kind in ("string", "regex", "set", "bounds", "comment"):
        return "\n" * token.count("\n") + ("" if kind == "comment" else '""')
    return token


def _check_rules(plain: str, head: re.Pattern[str], empty: Collection[str] | None = None) -> None:
    """Each rule of a grammar (its tokens `_blank`) is there once, and says something; of Lark, where rules without
    words are usual, that is asked of those of `empty`. The libraries take the last of two, or the empty text."""
    heads, seen = list(head.finditer(plain)), dict[str, int]()
    for found, following in zip_longest(heads, heads[1:]):
        name, line = found[1], plain[: found.start()].count("\n") + 1
        end = len(plain) if following is None else following.start()
        if name is None:
            continue
        if name in seen:
            raise _error(line, f"{name} is defined twice, the first time on line {seen[name]}")
        seen[name] = line
        if not plain[found.end() : end].strip() and (empty is None or name in empty):
            raise _error(line, f'nothing stands behind {found[0].strip()}; the empty text is written ""')


def wide_escapes(text: str) -> str:
    """The grammar with each \\xHH as \\u00HH: xgrammar takes more than two digits for an \\x where more follow."""
    return re.sub(r"\\(?:x([0-9A-Fa-f]{2})|(.))", lambda m: f"\\u00{m[1]}" if m[1] else m[0], text, flags=re.DOTALL)


def _narrow(match: re.Match[str]) -> str:
    """An escape as the converter reads it rightly: it drops the leading zeros of \\u and \\U."""
    digits = match[1] or match[2]
    if digits is None:
        return match[0]
    code = int(digits, 16)
    if code < 0x80:
        return f"\\x{code:02x}"
    if code > 0x10FFFF or 0xD800 <= code < 0xE000:
        raise ConstraintError(f"the grammar names {match[0]}, which is no character", param="grammar")
    return chr(code)


def _tokens(token: re.Pattern[str], text: str, limits: Limits) -> Iterator[tuple[int, str, str]]:
    """(line, kind, text) of each token, with the limits on nesting and repetition checked on the way."""
    line, depth = 1, 0
    for match in token.finditer(text):
        kind = match.lastgroup or "other"
        if kind == "open":
            depth += 1
            if depth > limits.max_depth:
                raise _error(line, f"parentheses nest more than {limits.max_depth} deep, which is the limit")
        elif kind == "close":
            depth -= 1
        elif kind == "bounds":
            largest = max((int(number) for number in re.findall(r"\d+", match[0])), default=0)
            if largest > limits.max_repetition:
                raise _error(line, f"a repetition of {largest}; the limit is {limits.max_repetition}")
        yield line, kind, match[0]
        line += match[0].count("\n")


def _error(line: int, why: str, code: str | None = None) -> ConstraintError:
    return ConstraintError(f"line {line} of the grammar: {why}", param="grammar", code=code)
